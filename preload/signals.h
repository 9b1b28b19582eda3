/* SPDX-License-Identifier: MIT */
/* Signals that the library and the program share (calls_signal.c). */
#ifndef ZC_PRELOAD_SIGNALS_H
#define ZC_PRELOAD_SIGNALS_H

/* Installs the guard's handler in front of the program's; for guard_install_handler. Returns 0 or -errno. */
int signals_take_fault(void);

/* In the child of a fork: locks of threads that are not there are free. */
void signals_after_fork(void);

#endif
