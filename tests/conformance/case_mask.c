/* SPDX-License-Identifier: MIT */
/*
 * Masks that have SIGSEGV in them: the kernel ends a process that faults so, whatever its handlers are. A program may have it blocked and write to
 * what it has sent, and is told of its mask what it has asked for.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

#define BYTES ((size_t)65536) /* is taken at once, with nobody who receives */

static char *buffer;

static void write_again(void)
{
	pattern_fill(buffer, BYTES, 3, BYTES);
}

static void on_signal(int number)
{
	write_again();
}

static void *write_masked(void *argument)
{
	sigset_t all;

	sigfillset(&all);
	MUST(pthread_sigmask(SIG_BLOCK, &all, NULL));
	write_again();
	return NULL;
}

static void write_in_handler(const sigset_t *during)
{
	struct sigaction action = { .sa_handler = on_signal };

	action.sa_mask = *during;
	MUST(sigaction(SIGUSR1, &action, NULL));
	MUST(raise(SIGUSR1));
}

/* A pending signal that a wait lets in, and nothing else: its handler has the mask of the wait. */
static void write_in_wait(long how)
{
	struct sigaction action = { .sa_handler = on_signal };
	struct pollfd none = { .fd = -1 };
	struct epoll_event event;
	int set = (int)MUST(epoll_create1(0));
	sigset_t wait;

	sigfillset(&wait);
	MUST(sigprocmask(SIG_BLOCK, &wait, NULL));
	MUST(sigaction(SIGUSR1, &action, NULL));
	MUST(raise(SIGUSR1));
	sigdelset(&wait, SIGUSR1);
	if (how == MASK_PPOLL)
		CALL(ppoll(&none, 1, NULL, &wait));
	else if (how == MASK_PSELECT)
		CALL(pselect(0, NULL, NULL, NULL, NULL, &wait));
	else if (how == MASK_EPOLL_PWAIT)
		CALL(epoll_pwait(set, &event, 1, -1, &wait));
	else if (how == MASK_EPOLL_PWAIT2)
		CALL(epoll_pwait2(set, &event, 1, NULL, &wait));
	else
		CALL(sigsuspend(&wait));
	close(set);
}

/* Asks the kernel whether SIGSEGV is blocked in a program that nothing is preloaded to. `pid` is where libc puts its number. */
static void spawn_and_ask(pid_t *pid, const posix_spawnattr_t *attributes)
{
	char *const argv[] = { (char *)"grep", (char *)"-q", (char *)"SigBlk:.*[4-7c-f]..$",
			       (char *)"/proc/self/status", NULL };
	char *const nothing[] = { NULL };

	EXPECT(!posix_spawn(pid, "/bin/grep", NULL, attributes, argv, nothing));
	reap(*pid);
}

static void write_while(long how)
{
	pthread_t thread;
	sigset_t all;

	sigfillset(&all);
	if (how == MASK_SIGPROCMASK)
		MUST(sigprocmask(SIG_SETMASK, &all, NULL));
	else if (how == MASK_HANDLER)
		write_in_handler(&all);
	else if (how >= MASK_PPOLL)
		write_in_wait(how);
	if (how == MASK_SPAWN)
		spawn_and_ask((pid_t *)buffer, NULL);
	if (how == MASK_PLAIN || how == MASK_SIGPROCMASK || how == MASK_SPAWN)
		write_again();
	if (how == MASK_THREAD || how == MASK_INHERITED) {
		if (how == MASK_INHERITED)
			MUST(pthread_sigmask(SIG_BLOCK, &all, NULL));
		MUST(pthread_create(&thread, NULL, write_masked, NULL));
		MUST(pthread_join(thread, NULL));
	}
}

/* Some large ones that are received, as a path may need before it sends without copies. */
static void get_large_going(struct end *end)
{
	get_going(end);
	for (int i = 0; i < 4; i++) {
		if (end->server)
			take_pattern(end->fd, 4 * BYTES, 1, 0);
		else
			give_pattern(end->fd, 4 * BYTES, 1, 0);
		meet_at(end, "large");
	}
}

/* The same buffer twice, written to in between while nobody has received. */
void mask_writes(struct end *end, long how)
{
	meet(end);
	get_large_going(end);
	if (end->server) {
		await(end, "sent");
		take_pattern(end->fd, 2 * BYTES, 3, 0);
		tell(end, "done");
		return;
	}
	buffer = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pattern_fill(buffer, BYTES, 3, 0);
	give(end->fd, buffer, BYTES);
	write_while(how);
	tell(end, "sent");
	give(end->fd, buffer, BYTES);
	await(end, "done");
	MUST(munmap(buffer, BYTES));
}

static bool is_blocked(void)
{
	sigset_t now;

	MUST(sigprocmask(SIG_BLOCK, NULL, &now));
	return sigismember(&now, SIGSEGV);
}

static void *note_inherited(void *argument)
{
	note("a thread's: %d", is_blocked());
	return NULL;
}

static void note_in_handler(int number)
{
	note("a handler's: %d", is_blocked());
}

static void change(int how, const char *name, const sigset_t *set)
{
	sigset_t old;

	sigemptyset(&old);
	note("%s: %d", name, pthread_sigmask(how, set, &old));
	note("before %d, now %d", sigismember(&old, SIGSEGV), is_blocked());
}

/* What a program is told, by whatever call. */
void mask_is_told(struct end *end, long signal)
{
	struct sigaction action = { .sa_handler = note_in_handler }, old;
	sigjmp_buf back;
	pthread_t thread;
	sigset_t one, others;

	sigemptyset(&one);
	sigaddset(&one, SIGSEGV);
	sigfillset(&others);
	sigdelset(&others, SIGSEGV);
	meet(end);
	change(SIG_BLOCK, "block others", &others);
	change(SIG_BLOCK, "block", &one);
	MUST(pthread_create(&thread, NULL, note_inherited, NULL));
	MUST(pthread_join(thread, NULL));
	change(SIG_UNBLOCK, "unblock others", &others);
	change(SIG_UNBLOCK, "unblock", &one);
	change(SIG_SETMASK, "set", &one);
	change(SIG_SETMASK, "set others", &others);
	change(99, "nonsense", &one);
	sigemptyset(&others);
	change(SIG_SETMASK, "set none", &others);
	if (!sigsetjmp(back, 1)) {
		change(SIG_BLOCK, "block", &one);
		siglongjmp(back, 1);
	}
	note("behind a jump: %d", is_blocked());
	action.sa_mask = one;
	MUST(sigaction((int)signal, &action, NULL));
	MUST(sigaction((int)signal, NULL, &old));
	note("an action's: %d", sigismember(&old.sa_mask, SIGSEGV));
	MUST(raise((int)signal));
	note("behind a handler: %d", is_blocked());
}

static sigjmp_buf out;
static char *volatile bad;
static volatile sig_atomic_t faults;

static void on_fault(int number)
{
	note("fault %d", (int)++faults);
	if (faults < 3)
		siglongjmp(out, 1);
	*bad = 1;
}

/* A fault of the program's own, where it has SIGSEGV blocked: by a mask, or as it is in its handler, which it had left by jumps before. */
void mask_fault_kills(struct end *end, long blocks)
{
	struct sigaction action = { .sa_handler = on_fault };
	sigset_t one;
	pid_t child;

	meet(end);
	get_large_going(end);
	if (end->server) {
		take_to_end(end->fd, 2, 0);
		return;
	}
	give_pattern(end->fd, 300000, 2, 0);
	child = (pid_t)MUST(fork());
	if (!child) {
		bad = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		MUST(sigaction(SIGSEGV, &action, NULL));
		sigsetjmp(out, 1);
		sigemptyset(&one);
		sigaddset(&one, SIGSEGV);
		if (blocks && faults == 2)
			MUST(sigprocmask(SIG_BLOCK, &one, NULL));
		*bad = 1;
		_exit(0);
	}
	reap(child);
	give_pattern(end->fd, 300000, 2, 300000);
}

/* A program that was started so, by one that could not start another before. */
void mask_is_inherited(struct end *end, long unused)
{
	char *const nothing[] = { NULL };
	sigset_t all;

	if (!stage()) {
		sigfillset(&all);
		MUST(sigprocmask(SIG_SETMASK, &all, NULL));
		CALL(execv("/", nothing));
		exec_stage(end, 1);
	}
	note("blocked: %d", is_blocked());
	mask_writes(end, MASK_PLAIN);
}

/* By posix_spawn, with a mask of its own and without. */
void mask_is_given_to_spawned(struct end *end, long unused)
{
	posix_spawnattr_t attributes;
	sigset_t all, none;
	pid_t child;

	meet(end);
	posix_spawnattr_init(&attributes);
	spawn_and_ask(&child, NULL);
	sigfillset(&all);
	sigemptyset(&none);
	MUST(sigprocmask(SIG_SETMASK, &all, NULL));
	spawn_and_ask(&child, NULL);
	spawn_and_ask(&child, &attributes);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
	spawn_and_ask(&child, &attributes);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
	posix_spawnattr_setsigmask(&attributes, &none);
	spawn_and_ask(&child, &attributes);
	posix_spawnattr_destroy(&attributes);
}
