/* SPDX-License-Identifier: MIT */
/* The log of log.h. System calls are made raw: the libc names may be our own wrappers. */
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/sys.h"

_Atomic unsigned int log_level_now = LOG_NONE;
static _Atomic int log_fd = -1;

static const char *const level_names[] = { "none", "error", "warn", "info", "trace" };

struct sink {
	char *out;
	size_t bytes;
	size_t used;
};

static void put_char(struct sink *sink, char c)
{
	if (sink->used + 1 < sink->bytes)
		sink->out[sink->used] = c;
	sink->used++;
}

static void put_number(struct sink *sink, uint64_t number, unsigned int base, int width, char pad)
{
	char digits[24];
	int count = 0;

	do {
		digits[count++] = "0123456789abcdef"[number % base];
		number /= base;
	} while (number);
	while (width-- > count)
		put_char(sink, pad);
	while (count)
		put_char(sink, digits[--count]);
}

static void put_text(struct sink *sink, const char *text)
{
	for (text = text ? text : "(null)"; *text; text++)
		put_char(sink, *text);
}

static void put_signed(struct sink *sink, int64_t number, int width, char pad)
{
	if (number < 0)
		put_char(sink, '-');
	put_number(sink, number < 0 ? -(uint64_t)number : (uint64_t)number, 10, width, pad);
}

/* Formats one conversion; *format points behind the '%'. */
static void put_conversion(struct sink *sink, const char **format, va_list *list)
{
	const char *c = *format;
	char pad = *c == '0' ? '0' : ' ';
	int width = 0, is_long = 0;

	while (*c >= '0' && *c <= '9')
		width = width * 10 + (*c++ - '0');
	while (*c == 'l' || *c == 'z') {
		is_long = 1;
		c++;
	}
	switch (*c) {
	case 's':
		put_text(sink, va_arg(*list, const char *));
		break;
	case 'c':
		put_char(sink, (char)va_arg(*list, int));
		break;
	case 'd':
		put_signed(sink, is_long ? va_arg(*list, long) : va_arg(*list, int), width, pad);
		break;
	case 'u':
	case 'x':
		put_number(sink, is_long ? va_arg(*list, unsigned long) : va_arg(*list, unsigned int),
			   *c == 'x' ? 16 : 10, width, pad);
		break;
	default:
		put_char(sink, *c ? *c : '%');
		break;
	}
	*format = *c ? c + 1 : c;
}

size_t log_format_list(char *out, size_t bytes, const char *format, va_list list)
{
	struct sink sink = { out, bytes, 0 };
	va_list copy;

	va_copy(copy, list);
	while (*format) {
		if (*format != '%') {
			put_char(&sink, *format++);
			continue;
		}
		format++;
		put_conversion(&sink, &format, &copy);
	}
	va_end(copy);
	if (bytes)
		out[sink.used < bytes ? sink.used : bytes - 1] = '\0';
	return sink.used;
}

size_t log_format(char *out, size_t bytes, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	size_t used = log_format_list(out, bytes, format, list);
	va_end(list);
	return used;
}

int log_open(enum log_level level, const char *file)
{
	long fd;

	if (level == LOG_NONE)
		return 0;
	if (file)
		fd = sys_call(SYS_openat, AT_FDCWD, (long)file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644, 0, 0);
	else
		fd = sys_call(SYS_fcntl, 2, F_DUPFD_CLOEXEC, SYS_FD_HIGH, 0, 0, 0);
	if (fd == -EINVAL) /* a low RLIMIT_NOFILE leaves no room up there */
		fd = sys_call(SYS_fcntl, 2, F_DUPFD_CLOEXEC, 3, 0, 0, 0);
	if (fd < 0)
		return (int)fd;
	atomic_store(&log_fd, sys_fd_raise((int)fd));
	atomic_store(&log_level_now, level);
	return 0;
}

int log_descriptor(void)
{
	return atomic_load_explicit(&log_fd, memory_order_relaxed);
}

void log_write(enum log_level level, const char *format, ...)
{
	char line[512];
	va_list list;
	int fd = log_descriptor();
	size_t used;
	struct stat file;

	if (fd < 0)
		return;
	used = log_format(line, sizeof(line), "zc[%d] %s: ", (int)sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0),
			  level_names[level]);
	va_start(list, format);
	used += log_format_list(line + used, sizeof(line) - used, format, list);
	va_end(list);
	if (used > sizeof(line) - 2)
		used = sizeof(line) - 2;
	line[used++] = '\n';
	/* A line less, rather than the program's end. Its position may be the program's, too, and is left alone. */
	if (!sys_call(SYS_fstat, fd, (long)&file, 0, 0, 0, 0) && S_ISREG(file.st_mode) &&
	    !sys_file_may_have((uint64_t)file.st_size + used))
		return;
	sys_call(SYS_write, fd, (long)line, (long)used, 0, 0, 0);
}

void log_refused(const char *message)
{
	char line[1024];
	size_t used = log_format(line, sizeof(line), "zc: %s\n", message);

	if (used >= sizeof(line)) {
		used = sizeof(line) - 1;
		line[used - 1] = '\n';
	}
	sys_call(SYS_write, 2, (long)line, (long)used, 0, 0, 0);
}
