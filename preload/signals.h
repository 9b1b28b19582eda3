/* SPDX-License-Identifier: MIT */
/* Signals that the library and the program share (calls_signal.c). */
#ifndef ZC_PRELOAD_SIGNALS_H
#define ZC_PRELOAD_SIGNALS_H

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

/* Installs the guard's handler in front of the program's; for guard_install_handler. Returns 0 or -errno. */
int signals_take_fault(void);

/* In the child of a fork: locks of threads that are not there are free. */
void signals_after_fork(void);

#endif
