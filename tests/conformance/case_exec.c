/* SPDX-License-Identifier: MIT */
/*
 * Bytes that have arrived and are not received yet when a connection changes hands: exec, fork and exec, posix_spawn, children
 * that merely inherit it. First the two ends talk for a while, so that whatever moves the bytes is in full swing.
 */
#define _GNU_SOURCE
#include <aio.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"
#include "first.h"

extern char **environ;

#define MANY 3
#define FIRST_NUMBER 140

static void take_all(int fd, void *data, size_t bytes)
{
	EXPECT(recv(fd, data, bytes, MSG_WAITALL) == (ssize_t)bytes);
}

/* The server sends so much that nobody receives yet, and says so. Returns whether this is the server. */
static bool send_unread(struct end *end, size_t bytes)
{
	if (!end->server) {
		await(end, "sent");
		await_bytes(end->fd, bytes < 1000 ? (int)bytes : 1000);
		return false;
	}
	give_pattern(end->fd, bytes, 6, 0);
	tell(end, "sent");
	return true;
}

/* What the server does after its unread bytes: more of them when it is asked, and everything that comes back is right. */
static void serve_on(struct end *end, size_t bytes)
{
	char c;

	take_all(end->fd, &c, 1);
	give_pattern(end->fd, bytes, 6, bytes);
	take_to_end(end->fd, 7, 0);
}

static void finish(int fd, size_t bytes)
{
	take_pattern(fd, bytes, 6, 0);
	MUST(send(fd, "x", 1, 0));
	take_pattern(fd, bytes, 6, bytes);
	give_pattern(fd, bytes, 7, 0);
	CALL(close(fd));
}

static void look_by_epoll(int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };
	int set = (int)MUST(epoll_create1(0));

	MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
	CALL(epoll_wait(set, &event, 1, 10000));
	note("epoll: %s", event_names(event.events));
	MUST(close(set));
}

static void look_by_select(int fd)
{
	struct timeval time = { .tv_sec = 10 };
	fd_set set;

	FD_ZERO(&set);
	FD_SET(fd, &set);
	CALL(select(fd + 1, &set, NULL, NULL, &time));
}

/* A new program finds what its predecessor has not received, by every way of looking. */
void exec_unread(struct end *end, long bytes)
{
	char peeked[10];
	int unread = 0;

	if (!stage()) {
		meet_and_go(end);
		if (send_unread(end, (size_t)bytes)) {
			serve_on(end, (size_t)bytes);
			return;
		}
		exec_stage(end, 1);
	}
	note_poll(end->fd, POLLIN);
	look_by_select(end->fd);
	look_by_epoll(end->fd);
	MUST(ioctl(end->fd, FIONREAD, &unread));
	note("unread: %d", bytes <= 1000 ? unread : unread > 0);
	CALL(recv(end->fd, peeked, sizeof(peeked), MSG_PEEK));
	EXPECT(pattern_check(peeked, sizeof(peeked), 6, 0));
	finish(end->fd, (size_t)bytes);
}

/* The first call of the new program, before any constructor, is a recv of what was left to it. */
void exec_first_call(struct end *end, long bytes)
{
	char number[16];

	if (!stage()) {
		meet_and_go(end);
		if (send_unread(end, (size_t)bytes)) {
			serve_on(end, (size_t)bytes);
			return;
		}
		snprintf(number, sizeof(number), "%d", end->fd);
		setenv(FIRST_FD, number, 1);
		exec_stage(end, 1);
	}
	EXPECT(first.got == sizeof(first.data) && pattern_check(first.data, sizeof(first.data), 6, 0));
	take_pattern(end->fd, (size_t)bytes - sizeof(first.data), 6, sizeof(first.data));
	MUST(send(end->fd, "x", 1, 0));
	take_pattern(end->fd, (size_t)bytes, 6, (size_t)bytes);
	CALL(close(end->fd));
}

#define STREAMS 12
#define STREAM_BYTES 1500000

/* How much of a stream is received before the exec: anything. */
static size_t part_of(int stream)
{
	return (size_t)stream * 7919 * 7919 * 31 % (STREAM_BYTES / 2);
}

/* The server never pauses: the exec comes in the middle of its sends. Each program takes over one stream and begins another. */
void exec_streaming(struct end *end, long unused)
{
	int now = stage();

	for (int i = 0; end->server && i < STREAMS; i++) {
		meet_and_go(end);
		give_pattern(end->fd, STREAM_BYTES, 6, 0);
		take_to_end(end->fd, 7, 0);
		MUST(close(end->fd));
	}
	if (end->server)
		return;
	if (now) {
		take_quietly(end->fd, STREAM_BYTES - part_of(now), 6, part_of(now));
		give_pattern(end->fd, 1000, 7, 0);
		CALL(close(end->fd));
	}
	if (now == STREAMS)
		return;
	meet_and_go(end);
	take_quietly(end->fd, part_of(now + 1), 6, 0);
	exec_stage(end, now + 1);
}

/* Again and again, each program receives a little. */
void exec_relay(struct end *end, long bytes)
{
	size_t part = (size_t)bytes / 4;
	char data[part];
	int now = stage();

	if (!now) {
		meet_and_go(end);
		if (send_unread(end, (size_t)bytes)) {
			serve_on(end, (size_t)bytes);
			return;
		}
	}
	if (now < 3) {
		take_all(end->fd, data, part);
		EXPECT(pattern_check(data, part, 6, part * (size_t)now));
		exec_stage(end, now + 1);
	}
	take_pattern(end->fd, (size_t)bytes - 3 * part, 6, 3 * part);
	MUST(send(end->fd, "x", 1, 0));
	take_pattern(end->fd, (size_t)bytes, 6, (size_t)bytes);
	CALL(close(end->fd));
}

/* Some of it received before, and more sent after that: whatever way the bytes took, they are next to each other. */
void exec_halfway(struct end *end, long bytes)
{
	size_t half = (size_t)bytes / 2;

	if (!stage()) {
		meet_and_go(end);
		if (send_unread(end, (size_t)bytes)) {
			await(end, "half");
			give_pattern(end->fd, 100, 6, (size_t)bytes);
			tell(end, "more");
			serve_on(end, (size_t)bytes + 100);
			return;
		}
		take_pattern(end->fd, half, 6, 0);
		tell(end, "half");
		await(end, "more");
		exec_stage(end, 1);
	}
	take_pattern(end->fd, (size_t)bytes + 100 - half, 6, half);
	MUST(send(end->fd, "x", 1, 0));
	take_pattern(end->fd, (size_t)bytes + 100, 6, (size_t)bytes + 100);
	give_pattern(end->fd, 1000, 7, 0);
	CALL(close(end->fd));
}

/* Several connections, one of which is known by two numbers, and another under its twin alone. */
void exec_many(struct end *end, long bytes)
{
	char name[16], text[16];
	int fds[MANY];

	if (!stage()) {
		for (int i = 0; i < MANY; i++) {
			meet_and_go(end);
			fds[i] = end->fd;
			send_unread(end, (size_t)bytes);
		}
		for (int i = 0; i < MANY && end->server; i++) {
			end->fd = fds[i];
			serve_on(end, (size_t)bytes);
		}
		if (end->server)
			return;
		MUST(dup2(fds[0], 200));
		MUST(dup2(fds[1], 201));
		MUST(close(fds[1]));
		fds[1] = 201;
		for (int i = 0; i < MANY; i++) {
			snprintf(name, sizeof(name), "EXEC_FD%d", i);
			snprintf(text, sizeof(text), "%d", fds[i]);
			setenv(name, text, 1);
		}
		exec_stage(end, 1);
	}
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "EXEC_FD%d", i);
		fds[i] = atoi(getenv(name));
	}
	take_pattern(fds[0], (size_t)bytes / 2, 6, 0);
	take_pattern(200, (size_t)bytes - (size_t)bytes / 2, 6, (size_t)bytes / 2);
	MUST(close(fds[0]));
	MUST(send(200, "x", 1, 0));
	take_pattern(200, (size_t)bytes, 6, (size_t)bytes);
	CALL(close(200));
	for (int i = 1; i < MANY; i++)
		finish(fds[i], (size_t)bytes);
}

/* Under the last of many numbers. */
void exec_last_number(struct end *end, long bytes)
{
	size_t half = (size_t)bytes / 2;

	if (!stage()) {
		meet_and_go(end);
		if (!end->server)
			end->fd = keep_last_number(end->fd);
		meet_at(end, "known by one");
		if (send_unread(end, (size_t)bytes)) {
			serve_on(end, (size_t)bytes);
			return;
		}
		take_pattern(end->fd, half, 6, 0);
		exec_stage(end, 1);
	}
	take_pattern(end->fd, (size_t)bytes - half, 6, half);
	MUST(send(end->fd, "x", 1, 0));
	take_pattern(end->fd, (size_t)bytes, 6, (size_t)bytes);
	give_pattern(end->fd, 1000, 7, 0);
	CALL(close(end->fd));
}

/* What the kernel finds to be no program: a name that is empty, and a script that does not say for what. */
static void fail_otherwise(int fd)
{
	static const char script[] = "exit 0\n";
	char path[64];
	int file = (int)MUST(memfd_create("script", 0));

	MUST(write(file, script, sizeof(script) - 1));
	MUST(fchmod(file, 0700));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	CALL(execl("", "nothing", NULL));
	note_poll(fd, POLLIN);
	CALL(execl(path, "script", NULL));
	note_poll(fd, POLLIN);
	MUST(fcntl(fd, F_SETFD, FD_CLOEXEC));
	CALL(execl(path, "script", NULL));
	MUST(fcntl(fd, F_SETFD, 0));
	MUST(close(file));
}

/* An exec that fails, at the first look or in the kernel's, takes nothing away. */
void exec_fails_unread(struct end *end, long bytes)
{
	static char huge[1 << 18];

	meet_and_go(end);
	if (send_unread(end, (size_t)bytes)) {
		serve_on(end, (size_t)bytes);
		return;
	}
	CALL(execl("/nowhere/nothing", "nothing", NULL));
	memset(huge, 'x', sizeof(huge) - 1);
	for (int i = 0; i < 3; i++) {
		CALL(execl("/proc/self/exe", "corpus", huge, NULL));
		note_poll(end->fd, POLLIN);
	}
	fail_otherwise(end->fd);
	finish(end->fd, (size_t)bytes);
}

/* The same in a sandbox, which allows everything; its number is what it was. */
void exec_fails_sandboxed(struct end *end, long bytes)
{
	struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	const struct sock_fprog filter = { 1, &allow };

	meet_and_go(end);
	if (send_unread(end, (size_t)bytes)) {
		serve_on(end, (size_t)bytes);
		return;
	}
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
	CALL(execl("/nowhere/nothing", "nothing", NULL));
	CALL(open("/dev/null", O_RDONLY) == end->fd);
	finish(end->fd, (size_t)bytes);
}

/* Under more numbers than are followed. */
void exec_many_numbers(struct end *end, long bytes)
{
	if (!stage()) {
		meet_and_go(end);
		if (send_unread(end, (size_t)bytes)) {
			serve_on(end, (size_t)bytes);
			return;
		}
		for (int i = 0; i < 12; i++)
			MUST(dup2(end->fd, FIRST_NUMBER + 10 * i));
		exec_stage(end, 1);
	}
	for (int i = 0; i < 11; i++)
		MUST(close(FIRST_NUMBER + 10 * i));
	MUST(close(end->fd));
	finish(FIRST_NUMBER + 110, (size_t)bytes);
}

static pid_t run_true(int how)
{
	char *const argv[] = { (char *)"true", NULL };
	pid_t child = -1;

	if (how == 0)
		EXPECT(!posix_spawnp(&child, "true", NULL, NULL, argv, environ));
	else
		child = how == 1 ? vfork() : fork();
	if (!child) {
		execvp("true", argv);
		_exit(9);
	}
	return (pid_t)MUST(child);
}

/* Children that inherit the connection and have no use for it. */
void exec_leaks(struct end *end, long bytes)
{
	meet_and_go(end);
	if (send_unread(end, (size_t)bytes)) {
		serve_on(end, (size_t)bytes);
		return;
	}
	for (int i = 0; i < 3; i++)
		reap(run_true(i));
	CALL(system("true"));
	finish(end->fd, (size_t)bytes);
}

/* Without unread bytes, too; and the talk goes on. */
void exec_leaks_idle(struct end *end, long unused)
{
	meet_and_go(end);
	for (int i = 0; i < 4; i++) {
		if (!end->server && i < 3)
			reap(run_true(i));
		else if (!end->server)
			CALL(system("true"));
		get_going(end);
	}
}

static void *receive_stream(void *fd)
{
	take_quietly(*(int *)fd, STREAM_BYTES, 6, 0);
	return NULL;
}

static void *receive_echo(void *fd)
{
	take_quietly(*(int *)fd, STREAM_BYTES, 7, 0);
	return NULL;
}

static void *send_stream(void *fd)
{
	give_pattern(*(int *)fd, STREAM_BYTES, 7, 0);
	return NULL;
}

/* Children come and go while two threads of each end receive and send. */
void exec_leaks_busy(struct end *end, long how)
{
	pthread_t receiver, sender;

	for (int i = 0; i < STREAMS; i++) {
		meet_and_go(end);
		if (end->server) {
			MUST(-pthread_create(&sender, NULL, receive_echo, &end->fd));
			give_pattern(end->fd, STREAM_BYTES, 6, 0);
			MUST(-pthread_join(sender, NULL));
		} else {
			MUST(-pthread_create(&receiver, NULL, receive_stream, &end->fd));
			MUST(-pthread_create(&sender, NULL, send_stream, &end->fd));
			for (int k = 0; k < 3; k++)
				reap(run_true((int)how));
			MUST(-pthread_join(receiver, NULL));
			MUST(-pthread_join(sender, NULL));
		}
		get_going(end);
		MUST(close(end->fd));
	}
}

/*
 * What follows may end in a reset where bytes can't follow to a program that knows nothing of the library; in nothing else: what
 * comes is right, and the stream does not end before all of it.
 */
static void take_all_or_reset(int fd, size_t bytes)
{
	char data[4096];
	size_t done = 0;

	while (done < bytes) {
		ssize_t got = recv(fd, data, sizeof(data) < bytes - done ? sizeof(data) : bytes - done, 0);

		if (got <= 0) {
			EXPECT(got < 0 && (errno == ECONNRESET || errno == ENOTCONN));
			return;
		}
		EXPECT(pattern_check(data, (size_t)got, 6, done));
		done += (size_t)got;
	}
}

static void serve_or_reset(struct end *end, size_t bytes)
{
	char data[4096];

	give_pattern(end->fd, bytes, 6, 0);
	tell(end, "sent");
	while (recv(end->fd, data, sizeof(data), 0) > 0)
		;
}

/* A program without the library. */
void exec_foreign(struct end *end, long bytes)
{
	if (!stage()) {
		meet_and_go(end);
		if (end->server) {
			serve_or_reset(end, (size_t)bytes);
			return;
		}
		await(end, "sent");
		await_bytes(end->fd, 100);
		unsetenv("LD_PRELOAD");
		unsetenv("CORPUS_LIBRARY");
		exec_stage(end, 1);
	}
	take_all_or_reset(end->fd, (size_t)bytes);
}

/* To another process, which might be anybody. */
void exec_passed(struct end *end, long bytes)
{
	pid_t child;
	int pair[2];

	meet_and_go(end);
	if (end->server) {
		serve_or_reset(end, (size_t)bytes);
		return;
	}
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	child = (pid_t)MUST(fork());
	if (!child) {
		close(end->fd);
		take_all_or_reset(take_descriptor(pair[1]), (size_t)bytes);
		_exit(0);
	}
	await(end, "sent");
	await_bytes(end->fd, 100);
	pass_descriptor(pair[0], end->fd);
	MUST(close(end->fd));
	reap(child);
}

/* Receives some bytes by a thread of libc's, or by itself as long as that is refused. */
static size_t take_some(int fd, size_t position)
{
	char data[50];
	struct aiocb block = { .aio_fildes = fd, .aio_buf = data, .aio_nbytes = sizeof(data) };
	const struct aiocb *const list[] = { &block };
	ssize_t got;

	if (aio_read(&block)) {
		EXPECT(errno == EAGAIN);
		got = recv(fd, data, sizeof(data), 0);
	} else {
		MUST(aio_suspend(list, 1, NULL));
		got = aio_return(&block);
	}
	EXPECT(got > 0 && pattern_check(data, (size_t)got, 6, position));
	return got > 0 ? (size_t)got : 0;
}

/* By libc's own threads, and by stdio. */
void exec_aio(struct end *end, long bytes)
{
	size_t done = 0;

	meet_and_go(end);
	if (send_unread(end, (size_t)bytes)) {
		serve_on(end, (size_t)bytes);
		return;
	}
	for (size_t got = 1; got && done < (size_t)bytes; done += got)
		got = take_some(end->fd, done);
	MUST(send(end->fd, "x", 1, 0));
	for (size_t got = 1; got && done < 2 * (size_t)bytes; done += got)
		got = take_some(end->fd, done);
}

void exec_stdio(struct end *end, long bytes)
{
	static char data[1 << 20];
	FILE *file;

	meet_and_go(end);
	if (send_unread(end, (size_t)bytes)) {
		serve_on(end, (size_t)bytes);
		return;
	}
	file = fdopen(end->fd, "r+");
	EXPECT(file != NULL);
	CALL(fread(data, 1, (size_t)bytes, file));
	EXPECT(pattern_check(data, (size_t)bytes, 6, 0));
	MUST(send(end->fd, "x", 1, 0));
	CALL(fread(data, 1, (size_t)bytes, file));
	EXPECT(pattern_check(data, (size_t)bytes, 6, (size_t)bytes));
	CALL(fclose(file));
}
