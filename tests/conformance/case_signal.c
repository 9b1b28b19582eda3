/* SPDX-License-Identifier: MIT */
/*
 * Signals: which calls they end and with what, handlers that send, storms during transfers, masks of waits, SIGPIPE, and a
 * program's own SIGSEGV handler. A timer ticks until the call under test has been met by a tick; nothing is timed.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/time.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

#define TICKS 5

static volatile sig_atomic_t ticks;
static struct end *ticking;

static void tick(int number)
{
	int saved = errno;

	if (++ticks == TICKS && ticking)
		tell(ticking, "ticked");
	errno = saved;
}

static void start_ticks(struct end *end, int flags, int us)
{
	struct itimerval time = { { 0, us }, { 0, us } };
	struct sigaction action = { .sa_handler = tick, .sa_flags = flags };

	ticks = 0;
	ticking = end;
	MUST(sigaction(SIGALRM, &action, NULL));
	MUST(setitimer(ITIMER_REAL, &time, NULL));
}

static void stop_ticks(void)
{
	struct itimerval none = { 0 };

	MUST(setitimer(ITIMER_REAL, &none, NULL));
}

static void wait_once(int fd, long how)
{
	struct pollfd look = { .fd = fd, .events = POLLIN };
	struct epoll_event event = { .events = EPOLLIN };
	struct iovec iov = { (char[16]){ 0 }, 16 };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
	int set = (int)MUST(epoll_create1(0));
	fd_set in;

	FD_ZERO(&in);
	FD_SET(fd, &in);
	MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
	if (how == SIGNAL_RECV)
		CALL(recv(fd, iov.iov_base, 16, 0));
	else if (how == SIGNAL_WAITALL)
		CALL(recv(fd, iov.iov_base, 3, MSG_WAITALL));
	else if (how == SIGNAL_RECVMSG)
		CALL(recvmsg(fd, &message, 0));
	else if (how == SIGNAL_READ)
		CALL(read(fd, iov.iov_base, 16));
	else if (how == SIGNAL_POLL)
		CALL(poll(&look, 1, -1));
	else if (how == SIGNAL_PPOLL)
		CALL(ppoll(&look, 1, NULL, NULL));
	else if (how == SIGNAL_SELECT)
		CALL(select(fd + 1, &in, NULL, NULL, NULL));
	else if (how == SIGNAL_PSELECT)
		CALL(pselect(fd + 1, &in, NULL, NULL, NULL, NULL));
	else if (how == SIGNAL_EPOLL)
		CALL(epoll_wait(set, &event, 1, -1));
	else if (how == SIGNAL_EPOLL_PWAIT)
		CALL(epoll_pwait(set, &event, 1, -1, NULL));
	else
		CALL(epoll_pwait2(set, &event, 1, NULL, NULL));
	close(set);
}

/* Once without SA_RESTART, once with it: then the other end sends after some ticks, should the call go on. */
void signal_ends_wait(struct end *end, long how)
{
	char rest[3];

	meet(end);
	if (end->server) {
		await(end, "ticked");
		give(end->fd, "abc", 3);
		await(end, "done");
		return;
	}
	/* Large, so that a path that has something in flight has it here. */
	start_ticks(NULL, 0, 2000);
	wait_once(end->fd, how);
	stop_ticks();
	start_ticks(end, SA_RESTART, 2000);
	wait_once(end->fd, how);
	while (ticks < TICKS)
		usleep(1000);
	stop_ticks();
	if (how > SIGNAL_READ)
		EXPECT(recv(end->fd, rest, 3, MSG_WAITALL) == 3);
	tell(end, "done");
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* siginterrupt() is old, and in use */

/* The same by signal() and siginterrupt(), in either order: what the latter says is for what is installed, and for what will be. */
void signal_interrupts(struct end *end, long later)
{
	struct itimerval time = { { 0, 2000 }, { 0, 2000 } };
	struct sigaction now;
	char data[3];

	meet_and_go(end);
	for (int ends = 1; !end->server && ends >= 0; ends--) {
		ticks = 0;
		ticking = ends ? NULL : end;
		if (!later)
			signal(SIGALRM, tick);
		MUST(siginterrupt(SIGALRM, ends));
		if (later)
			signal(SIGALRM, tick);
		MUST(sigaction(SIGALRM, NULL, &now));
		note("restarts: %d", (now.sa_flags & SA_RESTART) != 0);
		MUST(setitimer(ITIMER_REAL, &time, NULL));
		CALL(recv(end->fd, data, sizeof(data), MSG_WAITALL));
		stop_ticks();
	}
	if (end->server) {
		await(end, "ticked");
		give(end->fd, "abc", 3);
	}
	meet_at(end, "done");
}

#pragma GCC diagnostic pop

void signal_ends_timed_recv(struct end *end, long flags)
{
	struct timeval time = { .tv_sec = 100 };
	char data[10];

	meet(end);
	if (!end->server) {
		MUST(setsockopt(end->fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
		start_ticks(NULL, (int)flags, 2000);
		CALL(recv(end->fd, data, sizeof(data), 0));
		stop_ticks();
	}
	meet_at(end, "done");
}

/* A blocking send against a stalled receiver ends with a part, then with EINTR; with SA_RESTART it goes on. */
void signal_ends_send(struct end *end, long restart)
{
	size_t bytes = 4000000, done = 0;
	char *data;

	meet_small(end);
	if (end->server) {
		await(end, restart ? "ticked" : "interrupted");
		take_quietly(end->fd, (size_t)(restart ? 4000000 : await_number(end)), 6, 0);
		tell(end, "drained");
		return;
	}
	data = malloc(bytes);
	pattern_fill(data, bytes, 6, 0);
	start_ticks(restart ? end : NULL, restart ? SA_RESTART : 0, 2000);
	while (done < bytes) {
		ssize_t rc = send(end->fd, data + done, bytes - done, 0);

		if (rc < 0) {
			note("in the end: %s", errno_name(errno));
			break;
		}
		done += (size_t)rc;
	}
	stop_ticks();
	if (!restart) {
		tell(end, "interrupted");
		tell_number(end, (long)done);
	}
	await(end, "drained");
	free(data);
}

/* Ticks all the time while bytes go both ways. */
void signal_storm(struct end *end, long piece)
{
	size_t total = 1000000;

	meet(end);
	start_ticks(NULL, SA_RESTART, 150);
	for (size_t done = 0; done < total; done += (size_t)piece) {
		if (!end->server)
			give_pattern(end->fd, (size_t)piece, 6, done);
		else
			take_quietly(end->fd, (size_t)piece, 6, done);
	}
	if (end->server)
		give_pattern(end->fd, total, 7, 0);
	else
		take_quietly(end->fd, total, 7, 0);
	stop_ticks();
	note("all");
}

/* A handler sends on the connection that it interrupts: whatever had been sent before comes before. */
static volatile sig_atomic_t sent_by_main, sent_by_handler;
static int handler_fd;
#define RECORD 16
#define RECORDS 20000

static void send_record(char kind, int number, int seen)
{
	char record[RECORD + 1];

	/* No stdio: a handler may interrupt it. */
	record[0] = kind;
	for (int i = 0; i < 7; i++) {
		record[7 - i] = (char)('0' + number % 10);
		record[15 - i] = (char)('0' + seen % 10);
		number /= 10;
		seen /= 10;
	}
	record[8] = ' ';
	EXPECT(send(handler_fd, record, RECORD, 0) == RECORD);
}

static void send_in_handler(int number)
{
	int saved = errno;

	send_record('H', sent_by_handler, sent_by_main);
	sent_by_handler++;
	errno = saved;
}

static bool check_record(const char *record, int *next_main, int *next_handler)
{
	int number = atoi(record + 1), seen = atoi(record + 9);

	if (record[0] == 'M' && number == (*next_main)++)
		return true;
	if (record[0] == 'H' && number == (*next_handler)++ && seen <= *next_main)
		return true;
	note_wrong("record '%.16s' after M%d and H%d", record, *next_main - 1, *next_handler - 1);
	return false;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* old programs have it */
void signal_handler_sends(struct end *end, long by_sigset)
{
	struct itimerval time = { { 0, 100 }, { 0, 100 } };
	struct sigaction action = { .sa_handler = send_in_handler, .sa_flags = SA_RESTART };
	int next_main = 0, next_handler = 0;
	char record[RECORD + 1] = { 0 };

	meet(end);
	if (!end->server) {
		handler_fd = end->fd;
		if (by_sigset)
			EXPECT(sigset(SIGALRM, send_in_handler) == SIG_DFL);
		else
			MUST(sigaction(SIGALRM, &action, NULL));
		if (by_sigset)
			EXPECT(sigset(SIGALRM, send_in_handler) == send_in_handler);
		MUST(setitimer(ITIMER_REAL, &time, NULL));
		for (int i = 0; i < RECORDS || !sent_by_handler; i++) {
			send_record('M', i, 0);
			sent_by_main++;
		}
		stop_ticks();
		return;
	}
	while (recv(end->fd, record, RECORD, MSG_WAITALL) == RECORD && check_record(record, &next_main, &next_handler))
		;
	note("all of main: %d, some of the handler: %d", next_main >= RECORDS, next_handler > 0);
}
#pragma GCC diagnostic pop

/* A signal that is pending and let in by the mask of a wait ends that wait, and only there. */
void signal_mask(struct end *end, long how)
{
	struct epoll_event event = { .events = EPOLLIN };
	struct pollfd look = { .events = POLLIN };
	sigset_t blocked, open;
	fd_set in;
	int set;

	meet(end);
	look.fd = end->fd;
	set = (int)MUST(epoll_create1(0));
	MUST(epoll_ctl(set, EPOLL_CTL_ADD, end->fd, &event));
	sigemptyset(&open);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	MUST(sigprocmask(SIG_BLOCK, &blocked, NULL));
	ticking = NULL;
	signal(SIGUSR1, tick);
	MUST(raise(SIGUSR1));
	FD_ZERO(&in);
	FD_SET(end->fd, &in);
	CALL(poll(&look, 1, 0));
	note("handled: %d", (int)ticks);
	if (how == SIGNAL_PPOLL)
		CALL(ppoll(&look, 1, NULL, &open));
	else if (how == SIGNAL_PSELECT)
		CALL(pselect(end->fd + 1, &in, NULL, NULL, NULL, &open));
	else if (how == SIGNAL_EPOLL_PWAIT)
		CALL(epoll_pwait(set, &event, 1, -1, &open));
	else
		CALL(epoll_pwait2(set, &event, 1, NULL, &open));
	note("handled: %d", (int)ticks);
	MUST(raise(SIGUSR1));
	note("handled: %d", (int)ticks);
	meet_at(end, "done");
}

/* SIGPIPE as it is by default. */
void signal_pipe_kills(struct end *end, long bytes)
{
	char *data = calloc(1, (size_t)bytes);
	pid_t child;

	meet(end);
	if (end->server) {
		MUST(close(end->fd));
		tell(end, "closed");
		return;
	}
	await(end, "closed");
	child = (pid_t)MUST(fork());
	if (!child) {
		for (;;) {
			send(end->fd, data, (size_t)bytes, 0);
			poll(&(struct pollfd){ .fd = end->fd }, 1, -1);
		}
	}
	reap(child);
	free(data);
}

/* The program's SIGSEGV handler stays the program's, whoever else wants to know of faults. */
static sigjmp_buf back;
static void *volatile fault_at;

static void on_fault(int number, siginfo_t *info, void *context)
{
	fault_at = info->si_addr;
	siglongjmp(back, 1);
}

void signal_fault(struct end *end, long when)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER }, old;
	char *bad = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	meet(end);
	if (end->server) {
		take_to_end(end->fd, 2, 0);
		return;
	}
	if (when)
		give_pattern(end->fd, 300000, 2, 0);
	MUST(sigaction(SIGSEGV, NULL, &old));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	note("before: %s", old.sa_handler == SIG_DFL ? "default" : "another");
#endif
	MUST(sigaction(SIGSEGV, &action, NULL));
	if (!when)
		give_pattern(end->fd, 300000, 2, 0);
	MUST(sigaction(SIGSEGV, NULL, &old));
	note("now: %s, flags %#x", old.sa_sigaction == on_fault ? "ours" : "another",
	     (unsigned int)old.sa_flags & (SA_SIGINFO | SA_NODEFER | SA_ONSTACK | SA_RESTART));
	for (int i = 0; i < 3; i++) {
		fault_at = NULL;
		if (!sigsetjmp(back, 1))
			*(volatile char *)(bad + i) = 1;
		note("fault at the place: %d", fault_at == bad + i);
	}
	give_pattern(end->fd, 300000, 2, 300000);
	note("signal(): %s", (void *)signal(SIGSEGV, SIG_DFL) == (void *)on_fault ? "ours" : "another");
	note("signal(): %s", signal(SIGSEGV, SIG_IGN) == SIG_DFL ? "default" : "another");
}
