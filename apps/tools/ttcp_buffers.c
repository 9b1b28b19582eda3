/* SPDX-License-Identifier: MIT */
/* zc-ttcp's buffers, and what is in them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "apps/tools/ttcp.h"

#define PAGE 4096u

size_t buffers_stride(const struct ttcp_options *options)
{
	return (options->offset_bytes + options->bytes + PAGE - 1) / PAGE * PAGE;
}

int buffers_open(struct buffers *buffers, const struct ttcp_options *options, struct fault *fault)
{
	size_t stride = buffers_stride(options);

	*buffers = (struct buffers){ .count = options->buffers, .bytes = options->bytes };
	buffers->at = calloc(buffers->count, sizeof(*buffers->at));
	buffers->memory = aligned_alloc(PAGE, stride * buffers->count);
	if (!buffers->at || !buffers->memory)
		return fault_errno(fault, ENOMEM, "no memory for %llu buffers of %llu bytes",
				   (unsigned long long)buffers->count, (unsigned long long)buffers->bytes);
	/* Every page is there before anything is measured. */
	memset(buffers->memory, 't', stride * buffers->count);
	for (uint64_t i = 0; i < buffers->count; i++)
		buffers->at[i] = buffers->memory + i * stride + options->offset_bytes;
	return 0;
}

void buffers_close(struct buffers *buffers)
{
	free(buffers->at);
	free(buffers->memory);
}

/* The seeds of a buffer in mode touch: what it held at first, and what window `window` wrote to it. */
static uint64_t first_seed(const struct pattern *pattern, uint64_t buffer)
{
	return pattern_seed(pattern, buffer, 1);
}

static uint64_t window_seed(const struct pattern *pattern, uint64_t window, uint64_t buffer)
{
	return pattern_seed(pattern, window, (uint32_t)buffer + 2);
}

void content_begin(const struct buffers *buffers, const struct ttcp_options *options, const struct pattern *pattern)
{
	for (uint64_t i = 0; options->mode == MODE_TOUCH && i < buffers->count; i++)
		pattern_fill(buffers->at[i], buffers->bytes, first_seed(pattern, i));
}

void content_fill(const struct buffers *buffers, const struct ttcp_options *options, const struct pattern *pattern,
		  uint64_t message)
{
	if (options->shared.verify && options->mode != MODE_TOUCH)
		pattern_fill(buffers_get(buffers, message), buffers->bytes, pattern_seed(pattern, message, 0));
}

void content_touch(const struct buffers *buffers, const struct ttcp_options *options, const struct pattern *pattern,
		   uint64_t message)
{
	uint64_t window = (message + 1) / options->window;

	if (options->mode != MODE_TOUCH || (message + 1) % options->window)
		return;
	for (uint64_t i = 0; i < buffers->count; i++) {
		if (options->touch == TOUCH_PAGE)
			pattern_touch(buffers->at[i], buffers->bytes, window_seed(pattern, window, i));
		else
			pattern_fill(buffers->at[i], buffers->bytes, window_seed(pattern, window, i));
	}
}

bool content_check(const struct buffers *buffers, const struct ttcp_options *options, const struct pattern *pattern,
		   uint64_t message, struct mismatch *wrong)
{
	const char *bytes = buffers_get(buffers, message);
	uint64_t buffer = message % buffers->count, window = message / options->window;

	if (options->mode != MODE_TOUCH)
		return pattern_check(bytes, buffers->bytes, pattern_seed(pattern, message, 0), wrong);
	if (!window)
		return pattern_check(bytes, buffers->bytes, first_seed(pattern, buffer), wrong);
	if (options->touch == TOUCH_ALL)
		return pattern_check(bytes, buffers->bytes, window_seed(pattern, window, buffer), wrong);
	return pattern_check_touched(bytes, buffers->bytes, first_seed(pattern, buffer),
				     window_seed(pattern, window, buffer), wrong);
}
