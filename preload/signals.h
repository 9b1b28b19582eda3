/* SPDX-License-Identifier: MIT */
/* SIGSEGV shared between the mprotect guard and the program (calls_signal.c). */
#ifndef ZC_PRELOAD_SIGNALS_H
#define ZC_PRELOAD_SIGNALS_H

/* Installs the guard's handler in front of the program's; for guard_install_handler. Returns 0 or -errno. */
int signals_take_fault(void);

#endif
