/* SPDX-License-Identifier: MIT */
/*
 * stdio on connections, where its calls are libc's own: a connection that is put at the numbers of stdin and stdout, in a program that goes
 * on by these, and streams that libc closes, or opens again, by itself. The server has the family.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

#define TURNS 100
#define QUESTIONS 50

/* Small messages to and fro, so that what comes next may come by a ring. */
static void warm_up(struct end *end)
{
	meet(end);
	for (uint64_t i = 0; i < TURNS; i++) {
		if (end->server)
			take_quietly(end->fd, 10, 6, i * 10);
		give_pattern(end->fd, 10, end->server ? 7 : 6, i * 10);
		if (!end->server)
			take_quietly(end->fd, 10, 7, i * 10);
	}
}

/* The lowest free number is `to`. */
static int duplicate_to(int fd, int to, long how)
{
	if (how == DUP_DUP || how == DUP_FCNTL)
		MUST(close(to));
	switch (how) {
	case DUP_DUP:
		return dup(fd);
	case DUP_DUP2:
		return dup2(fd, to);
	case DUP_DUP3:
		return dup3(fd, to, O_CLOEXEC);
	case DUP_SYSCALL:
		return (int)syscall(SYS_dup3, fd, to, 0);
	default:
		return fcntl(fd, F_DUPFD, to);
	}
}

static void ask(int fd, int number)
{
	char question[64], answer[64], got[64] = "";
	int bytes;

	give(fd, question, (size_t)snprintf(question, sizeof(question), "question %d\n", number));
	bytes = snprintf(answer, sizeof(answer), "answer to question %d\n", number);
	EXPECT(recv(fd, got, (size_t)bytes, MSG_WAITALL) == bytes);
	EXPECT(!strcmp(got, answer));
}

/* Argument: the way to stdin's number and stdout's. */
void stdio_serves(struct end *end, long how)
{
	char line[64];

	warm_up(end);
	if (!end->server) {
		await(end, "ready");
		for (int i = 0; i < QUESTIONS; i++)
			ask(end->fd, i);
		MUST(shutdown(end->fd, SHUT_WR));
		CALL(recv(end->fd, line, sizeof(line), 0));
		return;
	}
	CALL(duplicate_to(end->fd, 0, how));
	CALL(duplicate_to(end->fd, 1, how));
	MUST(close(end->fd));
	tell(end, "ready");
	while (fgets(line, sizeof(line), stdin)) {
		printf("answer to %s", line);
		fflush(stdout);
	}
	note("end: %d, error: %d", feof(stdin) != 0, ferror(stdin) != 0);
}

/* Answers alone go by stdout; each second one goes by the connection's own number, as do the requests. */
void stdio_answers(struct end *end, long how)
{
	char line[64] = "", word[8];

	warm_up(end);
	if (end->server)
		CALL(duplicate_to(end->fd, 1, how));
	for (int i = 0; i < QUESTIONS; i++) {
		int bytes = snprintf(word, sizeof(word), "%06d\n", i);

		if (!end->server) {
			give(end->fd, word, (size_t)bytes);
			EXPECT(recv(end->fd, line, (size_t)bytes, MSG_WAITALL) == bytes && !strcmp(line, word));
			continue;
		}
		EXPECT(recv(end->fd, line, (size_t)bytes, MSG_WAITALL) == bytes);
		if (i % 2)
			give(end->fd, line, (size_t)bytes);
		else
			EXPECT(printf("%s", line) == bytes && !fflush(stdout));
	}
}

/* What has come already, and was not received, is the first that stdin has. */
void stdio_unread(struct end *end, long how)
{
	static const char first[] = "one\ntwo\nthree\n", second[] = "four\nfive\n";
	char line[64] = "";

	warm_up(end);
	if (!end->server) {
		give(end->fd, first, strlen(first));
		await(end, "ready");
		give(end->fd, second, strlen(second));
		MUST(shutdown(end->fd, SHUT_WR));
		await(end, "done");
		return;
	}
	await_bytes(end->fd, (int)strlen(first));
	CALL(duplicate_to(end->fd, 0, how));
	MUST(close(end->fd));
	tell(end, "ready");
	while (fgets(line, sizeof(line), stdin))
		note("line: %.*s", (int)strcspn(line, "\n"), line);
	note("end: %d, error: %d", feof(stdin) != 0, ferror(stdin) != 0);
	CALL(fclose(stdin));
	tell(end, "done");
}

struct file {
	int fd;
	char path[32];
};

static struct file make_file(const char *text)
{
	struct file file = { .fd = (int)MUST(memfd_create("corpus", MFD_CLOEXEC)) };

	snprintf(file.path, sizeof(file.path), "/proc/self/fd/%d", file.fd);
	MUST(pwrite(file.fd, text, strlen(text), 0));
	return file;
}

static void note_file(const struct file *file)
{
	char text[64] = "";
	ssize_t bytes = pread(file->fd, text, sizeof(text) - 1, 0);

	note("the file has %zd: %.*s", bytes, (int)strcspn(text, "\n"), text);
}

/* A number that fclose() has closed is a file's next. Argument: whether the stream is one of fdopen()'s, or stdin's or stdout's. */
static void close_stream(struct end *end, FILE *stream, int number)
{
	struct file file = make_file("of the file\n");
	char text[64] = "";
	int fd;

	if (stream != stdin)
		EXPECT(fprintf(stream, "said last\n") > 0);
	CALL(fclose(stream));
	fd = open(file.path, O_RDWR);
	note("the number is the same: %d", fd == number);
	note("read: %zd", read(fd, text, 3));
	note("wrote: %zd", pwrite(fd, "log", 3, 0));
	note_file(&file);
	MUST(close(fd));
	MUST(close(file.fd));
}

static void reopen_stream(FILE *stream, int number)
{
	struct file file = make_file("");

	EXPECT(fprintf(stream, "said last\n") > 0);
	note("there is a stream: %d", freopen(file.path, "w", stream) == stream);
	note("the number is the same: %d", fileno(stream) == number);
	EXPECT(write(number, "log\n", 4) == 4);
	EXPECT(fprintf(stream, "and more\n") > 0);
	EXPECT(!fflush(stream));
	note_file(&file);
	MUST(close(file.fd));
}

/* The client finds what the streams have had to write, each time, and nothing else. */
static void hear(struct end *end, int times)
{
	char text[256];
	ssize_t got, bytes = 0;

	while ((got = recv(end->fd, text + bytes, sizeof(text) - (size_t)bytes, 0)) > 0)
		bytes += got;
	EXPECT(got == 0 && bytes == times * (ssize_t)strlen("said last\n"));
	for (ssize_t i = 0; i < bytes; i += 10)
		EXPECT(!memcmp(text + i, "said last\n", 10));
}

void stdio_closed(struct end *end, long argument)
{
	int twin;

	warm_up(end);
	if (!end->server) {
		hear(end, 2);
		return;
	}
	twin = (int)MUST(dup(end->fd));
	close_stream(end, fdopen(twin, "w"), twin);
	MUST(dup2(end->fd, 1));
	close_stream(end, stdout, 1);
	MUST(dup2(end->fd, 0));
	close_stream(end, stdin, 0);
	MUST(close(end->fd));
}

void stdio_reopened(struct end *end, long argument)
{
	FILE *stream;
	int twin;

	warm_up(end);
	if (!end->server) {
		hear(end, 2);
		return;
	}
	twin = (int)MUST(dup(end->fd));
	stream = fdopen(twin, "w");
	reopen_stream(stream, twin);
	MUST(fclose(stream));
	MUST(dup2(end->fd, 1));
	reopen_stream(stdout, 1);
	MUST(fclose(stdout));
	MUST(close(end->fd));
}
