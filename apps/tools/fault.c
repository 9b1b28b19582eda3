/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "apps/tools/fault.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int fault_write(struct fault *fault, int code, int with_reason, const char *format, va_list list)
{
	size_t used;

	if (fault->code)
		return -code;
	fault->code = code;
	vsnprintf(fault->text, sizeof(fault->text), format, list);
	used = strlen(fault->text);
	if (with_reason)
		snprintf(fault->text + used, sizeof(fault->text) - used, ": %s", strerrordesc_np(code));
	return -code;
}

int fault_set(struct fault *fault, int code, const char *format, ...)
{
	va_list list;
	int rc;

	va_start(list, format);
	rc = fault_write(fault, code, 0, format, list);
	va_end(list);
	return rc;
}

int fault_errno(struct fault *fault, int code, const char *format, ...)
{
	va_list list;
	int rc;

	va_start(list, format);
	rc = fault_write(fault, code, 1, format, list);
	va_end(list);
	return rc;
}

int fault_in_message(struct fault *fault, int code, const char *verb, uint64_t message, size_t done, size_t bytes)
{
	if (code > 0)
		return fault_set(fault, EPIPE, "the peer closed in mid-message: %zu of %zu bytes of message %llu %s",
				 done, bytes, (unsigned long long)message, verb);
	return fault_errno(fault, -code, "the connection broke with %zu of %zu bytes of message %llu %s", done, bytes,
			   (unsigned long long)message, verb);
}

void tell(const char *tool, const char *format, ...)
{
	char line[640];
	va_list list;
	int used = snprintf(line, sizeof(line), "%s: ", tool);

	va_start(list, format);
	vsnprintf(line + used, sizeof(line) - (size_t)used, format, list);
	va_end(list);
	fflush(stdout);
	fprintf(stderr, "%s\n", line);
}
