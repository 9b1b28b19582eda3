/* SPDX-License-Identifier: MIT */
/*
 * What went wrong, in words. The place that detects a failure knows which message and which byte; it writes them here,
 * and whoever ends the program prints them. The first failure stays: later ones are its consequences.
 */
#ifndef ZC_TOOLS_FAULT_H
#define ZC_TOOLS_FAULT_H

#include <stddef.h>
#include <stdint.h>

#define EXIT_USAGE 2

struct fault {
	int code; /* 0: none; otherwise an errno */
	char text[400];
};

/* Writes the text, unless there is one already. Returns -code. */
int fault_set(struct fault *fault, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* As fault_set(), the text of errno `code` appended. */
int fault_errno(struct fault *fault, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/*
 * Says where in a message a stream ended. `verb` is "sent" or "received"; `code` is -errno, or 1 for the peer's end of
 * file. Returns a negative errno.
 */
int fault_in_message(struct fault *fault, int code, const char *verb, uint64_t message, size_t done, size_t bytes);

/* Prints "TOOL: text" on standard error. */
void tell(const char *tool, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
