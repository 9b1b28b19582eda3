/* SPDX-License-Identifier: MIT */
/* Somebody else goes on with a session: a child, an executed program, a process that the descriptor is passed to. */
#define _GNU_SOURCE
#include "fire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
char handover_directory[64];
char handover_program[256];
_Atomic int sessions_live;
_Atomic int meetings_live;

#define MEETINGS_WAIT_MS 20

void meetings_wait(uint64_t *random)
{
	for (int ms = 0; fire_below(random, 64) && ms < MEETINGS_WAIT_MS && atomic_load(&meetings_live); ms++)
		poll(NULL, 0, 1);
}

static const char *const services[] = { "server", "client", "helper" };

/* Who forks has copies of the connections of all threads; who goes on with one has no business with the others. */
void handover_close_others(int keep, int also)
{
	int first = keep < also || also < 0 ? keep : also, second = first == keep ? also : keep;

	if (first > 3)
		close_range(3, (unsigned int)first - 1, 0);
	if (second > first + 1)
		close_range((unsigned int)first + 1, (unsigned int)second - 1, 0);
	close_range((unsigned int)(second > first ? second : first) + 1, ~0u, 0);
}

/* FIRE_TRACE=1 tells who has a session when. */
static void trace(const struct state *state, const char *what)
{
	if (getenv("FIRE_TRACE"))
		fprintf(stderr, "fire: session %u, %s, step %u, sent %llu, received %llu, process %d: %s\n",
			state->number, state->side == SIDE_CLIENT ? "client" : "server", state->step,
			(unsigned long long)state->sent, (unsigned long long)state->received, (int)getpid(), what);
}

static int ended(const struct state *state, pid_t pid, const char *what)
{
	int status;

	if (pid < 0)
		return session_wrong(state, "%s: %s", what, strerror(errno));
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return session_wrong(state, "waitpid: %s", strerror(errno));
	if (WIFSIGNALED(status))
		return session_wrong(state, "%s: process %d died of signal %d", what, (int)pid, WTERMSIG(status));
	return WEXITSTATUS(status) ? -1 : 0;
}

static int by_fork(struct state *state, int fd, uint64_t *random)
{
	bool leaves = fire_below(random, 2);
	pid_t pid = fork();
	int rc;

	if (!pid) {
		atomic_store(&meetings_live, 0);
		handover_close_others(fd, -1);
		trace(state, "forked");
		rc = session_run(state, fd) ? 1 : 0;
		leaves ? exit(rc) : _exit(rc);
	}
	close(fd);
	return ended(state, pid, "fork");
}

static int by_fork_and_back(struct state *state, int fd)
{
	struct state then = *state;
	int pipes[2], rc;
	pid_t pid;

	if (pipe2(pipes, O_CLOEXEC) < 0)
		abort();
	pid = fork();
	if (!pid) {
		handover_close_others(fd, pipes[1]);
		rc = session_step(state, fd) || write(pipes[1], state, sizeof(*state)) != sizeof(*state);
		_exit(rc ? 1 : 0);
	}
	close(pipes[1]);
	rc = ended(state, pid, "fork and back");
	if (!rc && read(pipes[0], &then, sizeof(then)) != sizeof(then))
		rc = session_wrong(state, "a child left without a word");
	close(pipes[0]);
	if (rc) {
		close(fd);
		return rc;
	}
	*state = then;
	return HANDOVER_BACK;
}

struct words {
	char state[2 * sizeof(struct state) + 1], fd[16], verb[8];
	char *argv[6];
};

static void words_make(struct words *words, const struct state *state, int fd)
{
	const uint8_t *bytes = (const uint8_t *)state;

	for (size_t i = 0; i < sizeof(*state); i++)
		snprintf(words->state + 2 * i, 3, "%02x", bytes[i]);
	snprintf(words->fd, sizeof(words->fd), "%d", fd);
	words->argv[0] = handover_program;
	snprintf(words->verb, sizeof(words->verb), "resume");
	words->argv[1] = words->verb;
	words->argv[2] = words->state;
	words->argv[3] = words->fd;
	words->argv[4] = handover_directory;
	words->argv[5] = NULL;
}

int handover_resume(const char *text, const char *fd, const char *directory)
{
	struct state state;
	uint8_t *bytes = (uint8_t *)&state;
	unsigned int byte;

	for (size_t i = 0; i < sizeof(state); i++) {
		if (sscanf(text + 2 * i, "%2x", &byte) != 1)
			return 2;
		bytes[i] = (uint8_t)byte;
	}
	snprintf(handover_directory, sizeof(handover_directory), "%s", directory);
	handover_close_others(atoi(fd), -1);
	trace(&state, "resumed");
	return session_run(&state, atoi(fd)) ? 1 : 0;
}

static int by_exec(struct state *state, int fd, uint64_t *random)
{
	bool duplicated = fire_below(random, 2), early = fire_below(random, 2);
	struct words words;
	pid_t pid;
	int rc, copy;

	pid = fork();
	if (!pid) {
		copy = duplicated ? dup(fd) : fd;
		handover_close_others(copy, -1);
		fcntl(copy, F_SETFD, 0);
		words_make(&words, state, copy);
		execv(handover_program, words.argv);
		_exit(127);
	}
	if (early)
		close(fd);
	rc = ended(state, pid, "exec");
	if (!early)
		close(fd);
	return rc;
}

static int by_spawn(struct state *state, int fd)
{
	posix_spawn_file_actions_t actions;
	struct words words;
	pid_t pid = -1;
	int to = 400 + (int)(state->number % 100), rc;

	words_make(&words, state, to);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fd, to);
	rc = posix_spawn(&pid, handover_program, &actions, NULL, words.argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(fd);
	errno = rc;
	return ended(state, rc ? -1 : pid, "posix_spawn");
}

static struct sockaddr_un service(const char *name)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", handover_directory, name);
	return address;
}

static ssize_t pass(int to, struct state *state, int fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {
		.header = { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) }
	};
	struct iovec iov = { state, sizeof(*state) };
	struct msghdr message = { .msg_iov = &iov,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control.room) };

	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	return sendmsg(to, &message, 0);
}

static int by_passing(struct state *state, int fd, uint64_t *random)
{
	struct sockaddr_un address = service(services[fire_below(random, 3)]);
	int to = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), rc = 0;

	if (to < 0 || connect(to, (struct sockaddr *)&address, sizeof(address)) < 0 || pass(to, state, fd) < 0)
		rc = session_wrong(state, "%s: %s", address.sun_path, strerror(errno));
	close(fd);
	if (!rc && recv(to, &rc, sizeof(rc), 0) != sizeof(rc))
		rc = session_wrong(state, "%s left without a word", address.sun_path);
	close(to);
	return rc;
}

int handover(struct state *state, int fd, enum event event, uint64_t *random)
{
	static const char *const names[] = { "none", "fork", "fork and back", "exec", "posix_spawn", "SCM_RIGHTS" };

	trace(state, names[event]);
	if (event != EVENT_PASS)
		meetings_wait(random);
	state->handed++;
	state->drawn += 16;
	switch (event) {
	case EVENT_FORK:
		return by_fork(state, fd, random);
	case EVENT_FORK_BACK:
		state->handed--;
		return by_fork_and_back(state, fd);
	case EVENT_EXEC:
		return by_exec(state, fd, random);
	case EVENT_SPAWN:
		return by_spawn(state, fd);
	default:
		return by_passing(state, fd, random);
	}
}

/* The other end of by_passing */

static int take(int from, struct state *state)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = { state, sizeof(*state) };
	struct msghdr message = { .msg_iov = &iov,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control.room) };
	int fd = -1;

	if (recvmsg(from, &message, MSG_CMSG_CLOEXEC) == sizeof(*state) && CMSG_FIRSTHDR(&message))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

static void *adopt(void *argument)
{
	int from = (int)(intptr_t)argument, fd, rc;
	struct state state;

	fd = take(from, &state);
	trace(&state, "adopted");
	rc = fd < 0 ? -1 : session_run(&state, fd);
	if (send(from, &rc, sizeof(rc), MSG_NOSIGNAL) < 0)
		perror("fire: answer to who has passed a descriptor");
	close(from);
	atomic_fetch_sub(&sessions_live, 1);
	return NULL;
}

static void *serve(void *argument)
{
	int listening = (int)(intptr_t)argument, from;
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	for (;;) {
		from = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
		if (from < 0)
			continue;
		atomic_fetch_add(&sessions_live, 1);
		if (pthread_create(&thread, &attributes, adopt, (void *)(intptr_t)from))
			abort();
	}
	return NULL;
}

int handover_serve(const char *name)
{
	struct sockaddr_un address = service(name);
	int listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	pthread_t thread;

	if (listening < 0 || bind(listening, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    listen(listening, 64) < 0)
		return -errno;
	return -pthread_create(&thread, NULL, serve, (void *)(intptr_t)listening);
}
