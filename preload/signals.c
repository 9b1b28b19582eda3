/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/signals.h"

#include <signal.h>
#include <string.h>

#include "common/sys.h"
#include "rdma/guard.h"

#define FAULTS (1ull << (SIGSEGV - 1))
#define IN_PLACE (1ull << (SIGSTKFLT - 1))

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

static uint64_t given(int how, uint64_t mask)
{
	bool faults = mask & FAULTS;

	mask &= ~(FAULTS | IN_PLACE);
	if (faults)
		mask |= how == SIG_UNBLOCK ? FAULTS | IN_PLACE : IN_PLACE;
	return mask;
}

/* A sigset_t may be larger than the kernel's, of which alone a program may have memory. */
const sigset_t *signals_given(int how, const sigset_t *set, sigset_t *room)
{
	uint64_t mask;

	if (!set || !guard_may_use_signal())
		return set;
	memcpy(&mask, set, sizeof(mask));
	mask = given(how, mask);
	memset(room, 0, sizeof(*room));
	memcpy(room, &mask, sizeof(mask));
	return room;
}

bool signals_faults_blocked(const sigset_t *set)
{
	uint64_t mask;

	memcpy(&mask, set, sizeof(mask));
	return guard_may_use_signal() && mask & IN_PLACE;
}

void signals_told(sigset_t *set)
{
	uint64_t mask;

	if (!signals_faults_blocked(set))
		return;
	memcpy(&mask, set, sizeof(mask));
	mask |= FAULTS;
	memcpy(set, &mask, sizeof(mask));
}

bool signals_start(void)
{
	uint64_t mask;

	if (!guard_may_use_signal() || sys_call(SYS_rt_sigprocmask, SIG_BLOCK, 0, (long)&mask, sizeof(mask), 0, 0))
		return false;
	mask = given(SIG_SETMASK, mask);
	sys_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&mask, 0, sizeof(mask), 0, 0);
	return mask & IN_PLACE;
}

bool signals_before_exec(void)
{
	const uint64_t faults = FAULTS;
	uint64_t mask;

	if (!guard_may_use_signal() || sys_call(SYS_rt_sigprocmask, SIG_BLOCK, 0, (long)&mask, sizeof(mask), 0, 0) ||
	    !(mask & IN_PLACE) || mask & FAULTS)
		return false;
	return !sys_call(SYS_rt_sigprocmask, SIG_BLOCK, (long)&faults, 0, sizeof(faults), 0, 0);
}

void signals_exec_failed(bool blocked)
{
	const uint64_t faults = FAULTS;

	if (blocked)
		sys_call(SYS_rt_sigprocmask, SIG_UNBLOCK, (long)&faults, 0, sizeof(faults), 0, 0);
}

const posix_spawnattr_t *signals_spawned(const posix_spawnattr_t *attributes, posix_spawnattr_t *room)
{
	sigset_t mask;
	short flags = 0;

	if (attributes)
		posix_spawnattr_getflags(attributes, &flags);
	if (!guard_may_use_signal() || flags & POSIX_SPAWN_SETSIGMASK)
		return attributes;
	sigemptyset(&mask);
	if (sys_call(SYS_rt_sigprocmask, SIG_BLOCK, 0, (long)&mask, sizeof(uint64_t), 0, 0) ||
	    !signals_faults_blocked(&mask))
		return attributes;
	signals_told(&mask);
	if (attributes)
		*room = *attributes;
	else
		posix_spawnattr_init(room);
	posix_spawnattr_setflags(room, (short)(flags | POSIX_SPAWN_SETSIGMASK));
	posix_spawnattr_setsigmask(room, &mask);
	return room;
}
