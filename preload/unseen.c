/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/unseen.h"

#include "common/log.h"
#include "common/sys.h"
#include "preload/guest.h"
#include "preload/lock.h"

static _Atomic uint32_t never_wiped = 1;
static void (*run)(void);

_Atomic uint32_t *unseen_word = &never_wiped;
__thread uint32_t unseen_announced __attribute__((tls_model("initial-exec")));

void unseen_start(void (*child)(void))
{
	_Atomic uint32_t *word = sys_map(sizeof(*word), MAP_PRIVATE);

	if (!word)
		return;
	atomic_store(word, 1);
	run = child;
	if (sys_call(SYS_madvise, (long)word, sizeof(*word), MADV_WIPEONFORK, 0, 0, 0) < 0)
		sys_call(SYS_munmap, (long)word, sizeof(*word), 0, 0, 0, 0);
	else
		unseen_word = word;
}

void unseen_ends(void)
{
	unseen_announced = 0;
	atomic_store(unseen_word, 1);
}

void unseen_settle(void)
{
	if (!unseen_fork() || unseen_announced || guest_sandboxed())
		return;
	/* Signals wait with their handlers: one would meet what is half done. */
	lock_deeper();
	unseen_ends();
	run();
	lock_less_deep();
	log_info("a fork that was not seen: connections of before are this process's no longer");
}
