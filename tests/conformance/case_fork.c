/* SPDX-License-Identifier: MIT */
/*
 * All that makes a child with a copy of the process's memory: its connections are held by two processes then, and what either
 * closes, makes, or sends is its own. The client end has the family.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "common/sys.h"
#include "end.h"

#define STACK_BYTES (1 << 18)
#define FORKS 20
#define TURNS 20 /* until the ends have met, whatever the path waits for */

struct child {
	struct end *end;
	int port;
	void (*run)(const struct child *child);
};

static int run_child(void *at)
{
	const struct child *child = at;

	child->run(child);
	return 0;
}

/* As the kernel has them: flags, five more, a stack, its size, thread variables. */
static pid_t clone_by_three(void)
{
	uint64_t arguments[8] = { [4] = SIGCHLD };

	return (pid_t)syscall(SYS_clone3, arguments, sizeof(arguments));
}

/* Returns the child's number, in the parent alone; there is no parent any more behind daemon(). */
static pid_t fork_by(long way, const struct child *child)
{
	static char stack[STACK_BYTES] __attribute__((aligned(64)));
	static int terminal;
	pid_t pid = -1;

	switch (way) {
	case FORK_BY_FORK:
		pid = fork();
		break;
	case FORK_BY_DAEMON:
		pid = daemon(1, 1);
		break;
	case FORK_BY_FORKPTY:
		pid = forkpty(&terminal, NULL, NULL, NULL);
		break;
	case FORK_BY_CLONE:
		return (pid_t)MUST(clone(run_child, stack + STACK_BYTES, SIGCHLD, (void *)child));
	case FORK_BY_SYSCALL:
		pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
		break;
	case FORK_BY_CLONE3:
		pid = clone_by_three();
		break;
	case FORK_BY_TRAP:
		pid = (pid_t)sys_call(SYS_clone, SIGCHLD, 0, 0, 0, 0, 0);
		break;
	}
	MUST(pid);
	if (pid)
		return pid;
	/* libc knows nothing of such a child, and its exit() waits for who was loading a library meanwhile. */
	if (way == FORK_BY_TRAP)
		_exit(run_child((void *)child));
	exit(run_child((void *)child));
}

/* In the child: the number is another connection's, and is that in all that is done with it. */
static void closes_and_connects(const struct child *child)
{
	struct end *end = child->end;
	int before = end->fd;
	char reply[5];

	CALL(close(end->fd));
	end->fd = connect_to(addresses.ipv4, child->port);
	EXPECT(end->fd == before);
	give_pattern(end->fd, 1000, 5, 0);
	CALL(recv(end->fd, reply, sizeof(reply), MSG_WAITALL));
	EXPECT(!memcmp(reply, "reply", 5));
	get_going(end);
	tell(end, "done");
}

static void serve_both(struct end *end)
{
	int port, first, listening = listen_on(addresses.ipv4, &port);

	tell_number(end, port);
	end->fd = first = (int)MUST(accept(listening, NULL, NULL));
	get_going(end);
	end->fd = (int)MUST(accept(listening, NULL, NULL));
	take_pattern(end->fd, 1000, 5, 0);
	give(end->fd, "reply", 5);
	get_going(end);
	await(end, "done");
	take_to_end(first, 6, 0);
}

/* The child closes what it has inherited, and connects anew; the parent, if there is one, goes on with the first. */
void fork_reuses(struct end *end, long way)
{
	struct child child = { .end = end, .run = closes_and_connects };

	if (end->server) {
		serve_both(end);
		return;
	}
	child.port = (int)await_number(end);
	end->fd = connect_to(addresses.ipv4, child.port);
	get_going(end);
	reap(fork_by(way, &child));
	give_pattern(end->fd, 1000, 6, 0);
}

/* Small sends in close succession, and the end at once. */
static void sends_and_ends(const struct child *child)
{
	for (uint64_t i = 0; i < 10; i++)
		give_pattern(child->end->fd, 10, 6, 100 + i * 10);
}

/* The parent sends, and the child behind it, which ends without another call. */
void fork_hands_down(struct end *end, long way)
{
	const struct child child = { .end = end, .run = sends_and_ends };
	pid_t pid;

	meet_and_go(end);
	if (end->server) {
		take_to_end(end->fd, 6, 0);
		return;
	}
	for (uint64_t i = 0; i < 10; i++)
		give_pattern(end->fd, 10, 6, i * 10);
	pid = fork_by(way, &child);
	MUST(close(end->fd));
	reap(pid);
}

static void writes_to_standard(const struct child *child)
{
	MUST(write(STDOUT_FILENO, "to nobody", 9));
	tell(child->end, "written");
}

/* The connection is the standard output, in whose place the child gets something else. */
void fork_replaces_standard(struct end *end, long way)
{
	const struct child child = { .end = end, .run = writes_to_standard };
	pid_t pid;

	meet_and_go(end);
	if (end->server) {
		await(end, "written");
		take_to_end(end->fd, 6, 0);
		return;
	}
	MUST(dup2(end->fd, STDOUT_FILENO));
	MUST(close(end->fd));
	if (way == FORK_BY_DAEMON) {
		MUST(daemon(0, 0));
		exit(run_child((void *)&child));
	}
	pid = fork_by(way, &child);
	MUST(close(STDOUT_FILENO));
	reap(pid);
}

/* Handlers of the program, which libc runs in a fork. They stay with the process, and act while a case says so. */
static struct handlers {
	_Atomic bool run;
	pthread_mutex_t mutex;
	sem_t held, wanted, forked; /* the mutex is held, wanted; the child has gone */
	int fd, null;
	void (*in_child)(void);
} handlers = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static void lock_before(void)
{
	if (!atomic_load(&handlers.run))
		return;
	MUST(sem_post(&handlers.wanted));
	pthread_mutex_lock(&handlers.mutex);
}

static void unlock_after(void)
{
	if (atomic_load(&handlers.run))
		pthread_mutex_unlock(&handlers.mutex);
}

static void call_in_child(void)
{
	if (atomic_load(&handlers.run))
		handlers.in_child();
}

static void ends_at_once(const struct child *unused)
{
	_exit(0);
}

/* What is closed with the mutex is closed while a fork waits for that. */
static void *close_locked(void *unused)
{
	struct epoll_event event = { .events = EPOLLIN };
	int port, listening = listen_on(addresses.ipv4, &port);

	note_pair();
	for (int i = 0; i < FORKS; i++) {
		int set, there, here;

		pthread_mutex_lock(&handlers.mutex);
		set = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
		here = connect_to(addresses.ipv4, port);
		there = (int)MUST(accept(listening, NULL, NULL));
		MUST(epoll_ctl(set, EPOLL_CTL_ADD, here, &event));
		MUST(sem_post(&handlers.held));
		MUST(sem_wait(&handlers.wanted));
		MUST(close(set));
		MUST(close(here));
		give(there, "x", 1);
		MUST(close(there));
		pthread_mutex_unlock(&handlers.mutex);
		MUST(sem_wait(&handlers.forked));
	}
	MUST(close(listening));
	return NULL;
}

/* Handlers that take a mutex, whose holder works on connections meanwhile; the fork goes on when it has been given. */
void fork_handlers_wait(struct end *end, long way)
{
	pthread_t thread;

	meet_and_go(end);
	if (end->server) {
		take_to_end(end->fd, 6, 0);
		return;
	}
	MUST(sem_init(&handlers.held, 0, 0));
	MUST(sem_init(&handlers.wanted, 0, 0));
	MUST(sem_init(&handlers.forked, 0, 0));
	MUST(pthread_atfork(lock_before, unlock_after, unlock_after));
	MUST(pthread_create(&thread, NULL, close_locked, NULL));
	atomic_store(&handlers.run, true);
	for (uint64_t i = 0; i < FORKS; i++) {
		const struct child child = { .end = end, .run = ends_at_once };

		MUST(sem_wait(&handlers.held));
		reap(fork_by(way, &child));
		MUST(sem_post(&handlers.forked));
		give_pattern(end->fd, 10, 6, i * 10);
	}
	pthread_join(thread, NULL);
	atomic_store(&handlers.run, false);
}

/* A connection from its beginning to its end. */
static void *begin_and_end(void *unused)
{
	int port, listening = listen_on(addresses.ipv4, &port), here, there;

	here = connect_to(addresses.ipv4, port);
	there = (int)MUST(accept(listening, NULL, NULL));
	MUST(close(here));
	give(there, "x", 1);
	MUST(close(there));
	MUST(close(listening));
	return unused;
}

static void begin_and_end_elsewhere(void)
{
	pthread_t thread;

	note_pair();
	MUST(-pthread_create(&thread, NULL, begin_and_end, NULL));
	MUST(-pthread_join(thread, NULL));
}

static void in_parent(void)
{
	const struct child child = { .run = ends_at_once };

	if (!atomic_exchange(&handlers.run, false))
		return;
	begin_and_end_elsewhere();
	reap(fork_by(FORK_BY_FORK, &child));
	begin_and_end_elsewhere();
}

/* The parent's handler waits for a thread that works on connections, and forks. */
void fork_handler_waits_in_parent(struct end *end, long way)
{
	const struct child child = { .end = end, .run = ends_at_once };

	meet_and_go(end);
	if (end->server) {
		take_to_end(end->fd, 6, 0);
		return;
	}
	MUST(pthread_atfork(NULL, in_parent, NULL));
	for (uint64_t i = 0; i < FORKS; i++) {
		atomic_store(&handlers.run, true);
		reap(fork_by(way, &child));
		EXPECT(!atomic_load(&handlers.run));
		begin_and_end_elsewhere();
		give_pattern(end->fd, 10, 6, i * 10);
	}
}

static void closes_in_handler(void)
{
	CALL(close(handlers.fd));
}

static void replaces_in_handler(void)
{
	EXPECT(dup2(handlers.null, handlers.fd) == handlers.fd);
}

/* The number is a file's, or the null device's, and what is written to it is not the peer's. */
static void writes_to_file(const struct child *child)
{
	char data[16] = { 0 };
	int file = handlers.fd;

	if (handlers.in_child == closes_in_handler) {
		file = (int)MUST(open("/dev/shm", O_TMPFILE | O_RDWR, 0600));
		EXPECT(file == handlers.fd);
	}
	for (int i = 0; i < TURNS; i++)
		MUST(write(file, "SECRET", 6));
	CALL(lseek(file, 0, SEEK_SET));
	CALL(read(file, data, sizeof(data) - 1));
	note("'%s'", data);
	CALL(close(file));
}

static void fork_with_handler(struct end *end, long way, void (*in_child)(void))
{
	const struct child child = { .end = end, .run = writes_to_file };

	meet_and_go(end);
	if (end->server) {
		take_pattern(end->fd, 1000, 6, 0);
		give_pattern(end->fd, 1000, 7, 0);
		take_to_end(end->fd, 6, 1000);
		return;
	}
	handlers.fd = end->fd;
	handlers.null = (int)MUST(open("/dev/null", O_RDWR | O_CLOEXEC));
	handlers.in_child = in_child;
	MUST(pthread_atfork(NULL, NULL, call_in_child));
	atomic_store(&handlers.run, true);
	reap(fork_by(way, &child));
	atomic_store(&handlers.run, false);
	give_pattern(end->fd, 1000, 6, 0);
	take_pattern(end->fd, 1000, 7, 0);
	give_pattern(end->fd, 500, 6, 1000);
}

void fork_handler_closes(struct end *end, long way)
{
	fork_with_handler(end, way, closes_in_handler);
}

void fork_handler_replaces(struct end *end, long way)
{
	fork_with_handler(end, way, replaces_in_handler);
}
