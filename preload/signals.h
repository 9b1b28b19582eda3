/* SPDX-License-Identifier: MIT */
/* Signals that the library and the program share (calls_signal.c). */
#ifndef ZC_PRELOAD_SIGNALS_H
#define ZC_PRELOAD_SIGNALS_H

#include <stdint.h>

/*
 * Handlers of the program that have run on this thread. A wait that spins before it sleeps would not be ended by the signals
 * that come meanwhile, as the kernel's is: it compares. signals_end_calls counts those without SA_RESTART.
 */
extern __thread uint32_t signals_run __attribute__((tls_model("initial-exec")));
extern __thread uint32_t signals_end_calls __attribute__((tls_model("initial-exec")));

/* Installs the guard's handler in front of the program's; for guard_install_handler. Returns 0 or -errno. */
int signals_take_fault(void);

/* In the child of a fork: locks of threads that are not there are free. */
void signals_after_fork(void);

#endif
