/* SPDX-License-Identifier: MIT */
/* Finds the libzc.so that belongs to this zc: ZC_LIBRARY, else the build tree's, else the installed one. */
#ifndef ZC_APPS_ZC_LIBRARY_H
#define ZC_APPS_ZC_LIBRARY_H

#include <stddef.h>

/*
 * Finds the library. Returns 0 with its absolute path in `out`, or -errno; then `out` says in a sentence what is wrong and
 * where it was looked for.
 */
int library_find(char *out, size_t bytes);

/*
 * Puts the library (and, in a sanitizer build, the sanitizer's runtime before it) in front of what LD_PRELOAD names
 * already, in this process's environment. Returns 0 or -errno.
 */
int library_preload(const char *library);

/* Tells the directory that this command is in. Returns 0 or -errno. */
int own_directory(char *out, size_t bytes);

#endif
