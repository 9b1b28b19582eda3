/* SPDX-License-Identifier: MIT */
/* Signals that the library and the program share (calls_signal.c). */
#ifndef ZC_PRELOAD_SIGNALS_H
#define ZC_PRELOAD_SIGNALS_H

#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Handlers of the program that have run on this thread. A wait that spins before it sleeps would not be ended by the signals
 * that come meanwhile, as the kernel's is: it compares. signals_end_calls counts those without SA_RESTART.
 */
extern __thread uint32_t signals_run __attribute__((tls_model("initial-exec")));
extern __thread uint32_t signals_end_calls __attribute__((tls_model("initial-exec")));

/*
 * The signal whose handler of the program's runs on this thread, or 0, as the wrapper notes it: one that was left by siglongjmp() is there yet, but for the
 * thread's mask.
 */
struct signals_running {
	int signal;
	bool deferred; /* it is in the mask */
};
extern __thread struct signals_running signals_running __attribute__((tls_model("initial-exec")));

/*
 * Whether this thread may have been interrupted in the middle of anything, in malloc() say: what a handler calls may neither allocate nor
 * free. POSIX lets it send and receive. One system call in a handler, none outside.
 */
bool signals_interrupt(void);

/* Installs our handler of SIGSEGV in front of the program's, once; for guard_install_handler too. Returns 0 or -errno. */
int signals_take_fault(void);

/*
 * The kernel ends a process that faults with SIGSEGV blocked, and a write to guarded memory is such a fault under mprotect: so
 * where that may be the guard, SIGSEGV is never blocked, and SIGSTKFLT, which no kernel sends, is in its place: what the program
 * believes of SIGSEGV. The mask itself has it, and not a variable, for that is what threads inherit, and what siglongjmp(),
 * setcontext() and the return from a handler bring back. What the program wants of SIGSTKFLT is lost.
 */

/* What the kernel is given for a mask of the program's: `set` itself, or `room`. For sa_mask and masks of waits: SIG_SETMASK. */
const sigset_t *signals_given(int how, const sigset_t *set, sigset_t *room);

/* Makes a mask of the kernel's what the program believes. */
void signals_told(sigset_t *set);

/* Whether the program believes SIGSEGV to be blocked in a mask of the kernel's. */
bool signals_faults_blocked(const sigset_t *set);

/* After guard_start(): the mask that this thread has inherited. Returns whether SIGSEGV was blocked in it. */
bool signals_start(void);

/* Before exec, so that the next program inherits what this one believes; and where that has failed. Returns whether it is blocked now. */
bool signals_before_exec(void);
void signals_exec_failed(bool blocked);

/*
 * Attributes for posix_spawn, whose child inherits what this program believes of its mask, not ours: `attributes` (NULL: none) as they are,
 * or `room` with that.
 */
const posix_spawnattr_t *signals_spawned(const posix_spawnattr_t *attributes, posix_spawnattr_t *room);

/* In the child of a fork: locks of threads that are not there are free. */
void signals_after_fork(void);

#endif
