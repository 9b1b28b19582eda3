/* SPDX-License-Identifier: MIT */
#ifndef ZC_PRELOAD_STDIO_H
#define ZC_PRELOAD_STDIO_H

/* A connection has come to one of the numbers of stdin, stdout and stderr, by a call that duplicates. Keeps errno. */
void stdio_gets(int fd);

#endif
