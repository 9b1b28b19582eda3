/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/signals.h"

#include <signal.h>

#include "common/sys.h"

__thread struct signals_running signals_running __attribute__((tls_model("initial-exec")));

bool signals_interrupt(void)
{
	uint64_t blocked = 0;

	if (!signals_running.signal)
		return false;
	if (signals_running.deferred &&
	    !sys_call(SYS_rt_sigprocmask, SIG_BLOCK, 0, (long)&blocked, sizeof(blocked), 0, 0) &&
	    !(blocked & 1ull << (signals_running.signal - 1)))
		signals_running.signal = 0; /* siglongjmp() has brought the mask back */
	return signals_running.signal != 0;
}
