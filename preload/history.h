/* SPDX-License-Identifier: MIT */
/*
 * Who in this process rewrites what it has sent: by call site, and by buffer. A guard on such a buffer costs more than the copy
 * that it saves, so a site or a buffer that faults in a quarter of its guarded sends goes without guards for a while, on every
 * connection; then it may try again, each time later as long as it still does, and the rest is not made to pay for it.
 *
 * A buffer is looked at first: where some of a site's buffers are rewritten, the others need not go with them. What a buffer is
 * blamed for is taken from its site.
 *
 * A table of fixed size holds those that have faulted, and nobody else. A row is one word and changes as a whole; in a full set
 * the one that was not used for the longest time makes room. No locks: it is written to by whoever meets a fault, in a signal
 * handler maybe, and what a lost race costs is a guess. Pure bookkeeping; the clock is the caller's. Threads: any.
 */
#ifndef ZC_PRELOAD_HISTORY_H
#define ZC_PRELOAD_HISTORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/clock.h"

#define HISTORY_SETS 256
#define HISTORY_WAYS 4
#define HISTORY_SITE_FAULTS 12 /* so many at least before a site is blamed: its buffers come first */
#define HISTORY_BUFFER_FAULTS 8
#define HISTORY_PAUSE_FIRST 64 /* sends without guards after that; twice as many each time */
#define HISTORY_PAUSE_MAX 4096
#define HISTORY_WINDOW 64		    /* guarded sends, after which what is known counts half */
#define HISTORY_FORGET_NS (10 * NS_PER_SEC) /* an address that was not heard of for so long may be another's */

/* All zeroes: nobody has. */
struct history {
	struct history_row {
		_Atomic uint64_t word;
		_Atomic uint64_t used_ns;
	} rows[HISTORY_SETS][HISTORY_WAYS];
};

/* Where a send comes from; 0: not known. */
struct history_keys {
	uint64_t site, buffer;
};

enum history_blame {
	HISTORY_NOBODY,
	HISTORY_SITE,
	HISTORY_BUFFER,
};

/* Returns the keys for a call that returns to `site` (0: not known) and sends so many bytes from `start`. */
struct history_keys history_keys(uintptr_t site, const void *start, size_t bytes);

/*
 * Before a send: who speaks against a guard. *begins: this has just been found, so whoever else counts the same faults may
 * begin anew.
 */
enum history_blame history_ask(struct history *history, struct history_keys keys, uint64_t now, bool *begins);

/* A guarded send of these has begun; one has faulted. */
void history_guarded(struct history *history, struct history_keys keys, uint64_t now);
void history_faulted(struct history *history, struct history_keys keys, uint64_t now);

#endif
