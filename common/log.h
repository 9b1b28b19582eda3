/* SPDX-License-Identifier: MIT */
/*
 * The log: silent unless asked. One raw write a line, to a descriptor of our own (high, close-on-exec), never stdio and
 * never malloc; errno is kept; one relaxed load when it is off. Safe in a signal handler.
 */
#ifndef ZC_COMMON_LOG_H
#define ZC_COMMON_LOG_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

enum log_level { LOG_NONE, LOG_ERROR, LOG_WARN, LOG_INFO, LOG_TRACE };

extern _Atomic unsigned int log_level_now;

/*
 * Opens the log at `level`, in `file` or on a duplicate of standard error if that is NULL. Returns 0 or -errno; then the
 * log stays off.
 */
int log_open(enum log_level level, const char *file);

/* Returns the descriptor that the log writes to, -1 if none: callers keep it out of the guest's hands. */
int log_descriptor(void);

/* Tells on standard error, whatever the level: a setting that was asked for and can't be had is no noise. */
void log_refused(const char *message);

/* Writes one line; the newline is added. Use the macros. */
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * Formats as snprintf does, for %s %d %u %ld %lu %zu %x %lx %c %% (and widths of %x) only, without locale, malloc or locks. Returns the bytes that
 * the whole text takes.
 */
size_t log_format(char *out, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
size_t log_format_list(char *out, size_t bytes, const char *format, va_list list);

#define LOG_AT(level, ...)                                                                                             \
	do {                                                                                                           \
		if (atomic_load_explicit(&log_level_now, memory_order_relaxed) >= (level))                             \
			log_write((level), __VA_ARGS__);                                                               \
	} while (0)
#define log_error(...) LOG_AT(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) LOG_AT(LOG_WARN, __VA_ARGS__)
#define log_info(...) LOG_AT(LOG_INFO, __VA_ARGS__)
#define log_trace(...) LOG_AT(LOG_TRACE, __VA_ARGS__)

#endif
