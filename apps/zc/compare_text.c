/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "apps/zc/compare_run.h"

#define TAIL_BYTES 600
#define TAIL_LINES 6

char *text_substitute(const char *text, const struct placeholder *list)
{
	char *out = NULL;
	size_t bytes;
	FILE *stream = open_memstream(&out, &bytes);

	if (!stream)
		return NULL;
	while (*text) {
		const struct placeholder *p = list;

		while (p->name && strncmp(text, p->name, strlen(p->name)))
			p++;
		if (p->name) {
			fputs(p->value, stream);
			text += strlen(p->name);
		} else {
			fputc(*text++, stream);
		}
	}
	if (fclose(stream)) {
		free(out);
		return NULL;
	}
	return out;
}

char *text_read(const char *file, size_t bytes)
{
	char *text = malloc(bytes + 1);
	FILE *stream = fopen(file, "re");
	size_t got = stream && text ? fread(text, 1, bytes, stream) : 0;

	if (stream)
		fclose(stream);
	if (!text)
		return NULL;
	/* What was printed may hold NULs, and a reader of the text would stop there. */
	for (size_t i = 0; i < got; i++)
		if (!text[i])
			text[i] = ' ';
	text[got] = '\0';
	return text;
}

static const char *last_lines(const char *text)
{
	const char *at = text + strlen(text);
	int lines = 0;

	while (at > text) {
		if (at[-1] == '\n' && ++lines > TAIL_LINES)
			break;
		at--;
	}
	return at;
}

char *text_tail(const char *file)
{
	char text[TAIL_BYTES + 1] = "";
	FILE *stream = fopen(file, "re");
	size_t got = 0;

	if (stream) {
		if (fseek(stream, -TAIL_BYTES, SEEK_END))
			rewind(stream);
		got = fread(text, 1, TAIL_BYTES, stream);
		fclose(stream);
	}
	for (size_t i = 0; i < got; i++)
		if (text[i] != '\n' && (text[i] < ' ' || text[i] > '~'))
			text[i] = text[i] == '\t' ? ' ' : '?';
	while (got && (text[got - 1] == '\n' || text[got - 1] == ' '))
		got--;
	text[got] = '\0';
	return strdup(last_lines(text));
}
