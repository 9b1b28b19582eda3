/* SPDX-License-Identifier: MIT */
/* The transcript and the control channel of an end. */
#define _GNU_SOURCE
#include "end.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transcript.h"

static struct transcript *transcript;

void transcript_open(int fd)
{
	transcript = mmap(NULL, sizeof(*transcript), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (transcript == MAP_FAILED)
		exit(3);
}

static void append(const char *prefix, const char *format, va_list list)
{
	char line[TRANSCRIPT_LINE];
	int saved = errno;
	size_t bytes, at;

	bytes = (size_t)snprintf(line, sizeof(line), "%s", prefix);
	bytes += (size_t)vsnprintf(line + bytes, sizeof(line) - bytes - 1, format, list);
	if (bytes > sizeof(line) - 2)
		bytes = sizeof(line) - 2;
	line[bytes++] = '\n';
	at = atomic_fetch_add(&transcript->used, bytes);
	if (at + bytes < sizeof(transcript->text))
		memcpy(transcript->text + at, line, bytes);
	errno = saved;
}

void note(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	append("", format, list);
	va_end(list);
}

void note_wrong(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	append(TRANSCRIPT_WRONG, format, list);
	va_end(list);
}

void note_pair(void)
{
	atomic_store(&transcript->has_pair, true);
}

void note_result(const char *call, long result)
{
	if (result == -1)
		note("%s: %s", call, errno_name(errno));
	else
		note("%s: %ld", call, result);
}

void die(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	append(TRANSCRIPT_WRONG, format, list);
	va_end(list);
	_exit(4);
}

void tell(struct end *end, const char *word)
{
	ssize_t rc;

	do
		rc = send(end->control, word, strlen(word) + 1, MSG_NOSIGNAL);
	while (rc < 0 && errno == EINTR);
	if (rc < 0)
		die("the other end is gone: told '%s': %s", word, errno_name(errno));
}

static void hear(struct end *end, char *word, size_t room)
{
	ssize_t rc;

	do
		rc = recv(end->control, word, room, 0);
	while (rc < 0 && errno == EINTR);
	if (rc <= 0)
		die("the other end is gone: %s", rc ? errno_name(errno) : "end of file");
}

void await(struct end *end, const char *word)
{
	char heard[64];

	hear(end, heard, sizeof(heard));
	if (strcmp(heard, word) != 0)
		die("awaited '%s', heard '%s'", word, heard);
}

void tell_number(struct end *end, long number)
{
	char word[32];

	snprintf(word, sizeof(word), "=%ld", number);
	tell(end, word);
}

long await_number(struct end *end)
{
	char heard[64];

	hear(end, heard, sizeof(heard));
	if (heard[0] != '=')
		die("awaited a number, heard '%s'", heard);
	return atol(heard + 1);
}

void meet_at(struct end *end, const char *word)
{
	tell(end, word);
	await(end, word);
}

void reap(int child)
{
	int status;
	pid_t rc;

	do
		rc = waitpid(child, &status, 0);
	while (rc < 0 && errno == EINTR);
	if (rc < 0)
		note_wrong("waitpid: %s", errno_name(errno));
	else if (WIFEXITED(status))
		note("child: exit %d", WEXITSTATUS(status));
	else
		note("child: signal %d", WTERMSIG(status));
}

int stage(void)
{
	const char *text = getenv("CORPUS_STAGE");

	return text ? atoi(text) : 0;
}

void exec_stage(struct end *end, int next)
{
	char number[16], fd[16];
	char *const argv[] = { (char *)"corpus", (char *)"--end", (char *)(end->server ? "server" : "client"),
			       (char *)end->name, NULL };

	snprintf(number, sizeof(number), "%d", next);
	snprintf(fd, sizeof(fd), "%d", end->fd);
	setenv("CORPUS_STAGE", number, 1);
	setenv("CORPUS_FD", fd, 1);
	execv("/proc/self/exe", argv);
	die("execv: %s", errno_name(errno));
}
