/* SPDX-License-Identifier: MIT */
/*
 * Bursts of small sends, each followed by one call in which a program waits, looks at the peer, or tells somebody that it has
 * sent: when that call returns the kernel must have every byte. The kernel is asked behind the library's back (TCP_INFO by a
 * system call of our own), so that asking moves nothing. The calls are chosen to return at once; that they could have waited
 * is enough. The burst_end cases end the process after the burst instead: no byte may be lost.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

#define ROUNDS 6 /* the first ones teach `sg` that bursts come */
#define SENDS 8
#define PIECE 10
#define BURST (SENDS * PIECE)

/* What the calls after a burst need, made before it. */
struct props {
	int fd;
	int pipe[2]; /* with bytes in it */
	int pair[2];
	int file;
	int listening;
	int set; /* epoll, holds fd */
	sem_t semaphore;
	FILE *stream; /* reads the pipe */
};

static void after_recv(struct props *props)
{
	char c;

	recv(props->fd, &c, 1, MSG_DONTWAIT);
}

static void after_recvfrom(struct props *props)
{
	char c;

	recvfrom(props->fd, &c, 1, MSG_DONTWAIT, NULL, NULL);
}

static void after_recvmsg(struct props *props)
{
	struct msghdr message = { 0 };

	recvmsg(props->fd, &message, MSG_DONTWAIT);
}

static void after_recvmmsg(struct props *props)
{
	struct mmsghdr message = { 0 };

	recvmmsg(props->fd, &message, 1, MSG_DONTWAIT, NULL);
}

static void after_poll(struct props *props)
{
	struct pollfd look = { .fd = props->fd, .events = POLLIN };

	poll(&look, 1, 0);
}

static void after_poll_other(struct props *props)
{
	struct pollfd look = { .fd = props->pipe[0], .events = POLLIN };

	poll(&look, 1, -1);
}

static void after_poll_nothing(struct props *props)
{
	poll(NULL, 0, 0);
}

static void after_ppoll(struct props *props)
{
	struct pollfd look = { .fd = props->fd, .events = POLLIN };
	struct timespec none = { 0 };

	ppoll(&look, 1, &none, NULL);
}

static void after_select(struct props *props)
{
	struct timeval none = { 0 };
	fd_set in;

	FD_ZERO(&in);
	FD_SET(props->fd, &in);
	select(props->fd + 1, &in, NULL, NULL, &none);
}

static void after_pselect(struct props *props)
{
	struct timespec none = { 0 };

	pselect(0, NULL, NULL, NULL, &none, NULL);
}

static void after_epoll_wait(struct props *props)
{
	struct epoll_event event;

	epoll_wait(props->set, &event, 1, 0);
}

static void after_epoll_pwait(struct props *props)
{
	struct epoll_event event;

	epoll_pwait(props->set, &event, 1, 0, NULL);
}

static void after_epoll_pwait2(struct props *props)
{
	struct timespec none = { 0 };
	struct epoll_event event;

	epoll_pwait2(props->set, &event, 1, &none, NULL);
}

static void after_nanosleep(struct props *props)
{
	nanosleep(&(struct timespec){ 0 }, NULL);
}

static void after_clock_nanosleep(struct props *props)
{
	clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){ 0 }, NULL);
}

static void after_usleep(struct props *props)
{
	usleep(0);
}

static void after_sleep(struct props *props)
{
	sleep(0);
}

static void after_sem_wait(struct props *props)
{
	sem_wait(&props->semaphore);
}

static void after_sem_timedwait(struct props *props)
{
	sem_timedwait(&props->semaphore, &(struct timespec){ 0 });
}

static void after_sem_post(struct props *props)
{
	sem_post(&props->semaphore);
}

static void after_pipe_read(struct props *props)
{
	char c;

	EXPECT(read(props->pipe[0], &c, 1) == 1);
}

static void after_pipe_readv(struct props *props)
{
	char c;

	EXPECT(readv(props->pipe[0], &(struct iovec){ &c, 1 }, 1) == 1);
}

static void after_pipe_write(struct props *props)
{
	EXPECT(write(props->pipe[1], "x", 1) == 1);
}

static void after_fread(struct props *props)
{
	char c;

	EXPECT(fread(&c, 1, 1, props->stream) == 1);
}

static void after_pair_send(struct props *props)
{
	EXPECT(send(props->pair[0], "x", 1, 0) == 1);
}

static void after_pair_sendmsg(struct props *props)
{
	struct iovec iov = { (void *)"x", 1 };

	EXPECT(sendmsg(props->pair[0], &(struct msghdr){ .msg_iov = &iov, .msg_iovlen = 1 }, 0) == 1);
}

static void after_waitpid(struct props *props)
{
	waitpid(-1, NULL, WNOHANG);
}

static void after_wait(struct props *props)
{
	wait(NULL);
}

static void after_wait4(struct props *props)
{
	wait4(-1, NULL, WNOHANG, NULL);
}

static void after_waitid(struct props *props)
{
	waitid(P_ALL, 0, NULL, WEXITED | WNOHANG);
}

static void after_kill(struct props *props)
{
	kill(getpid(), SIGURG);
}

static void after_raise(struct props *props)
{
	raise(SIGURG);
}

static void after_pthread_kill(struct props *props)
{
	pthread_kill(pthread_self(), SIGURG);
}

static void after_sigtimedwait(struct props *props)
{
	sigset_t set;

	sigemptyset(&set);
	sigtimedwait(&set, NULL, &(struct timespec){ 0 });
}

static void after_getsockopt(struct props *props)
{
	struct tcp_info info;
	socklen_t bytes = sizeof(info);

	getsockopt(props->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes);
}

static void after_setsockopt(struct props *props)
{
	setsockopt(props->fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int));
}

static void after_siocoutq(struct props *props)
{
	int left;

	ioctl(props->fd, SIOCOUTQ, &left);
}

static void after_fionread(struct props *props)
{
	int there;

	ioctl(props->fd, FIONREAD, &there);
}

static void after_fcntl(struct props *props)
{
	fcntl(props->fd, F_GETFL);
}

static void after_flock(struct props *props)
{
	flock(props->file, LOCK_EX);
}

static void after_lock(struct props *props)
{
	struct flock lock = { .l_type = F_WRLCK };

	fcntl(props->file, F_SETLKW, &lock);
}

static void after_accept(struct props *props)
{
	accept(props->listening, NULL, NULL);
}

static void after_connect(struct props *props)
{
	struct sockaddr address = { .sa_family = AF_UNIX };

	connect(props->pair[0], &address, sizeof(address));
}

static void after_close(struct props *props)
{
	close(dup(props->fd));
}

static void after_dup(struct props *props)
{
	syscall(SYS_close, dup(props->fd));
}

static void after_epoll_ctl(struct props *props)
{
	struct epoll_event event = { .events = EPOLLIN };

	epoll_ctl(props->set, EPOLL_CTL_MOD, props->fd, &event);
}

static void *nothing(void *unused)
{
	return unused;
}

static pthread_t made;

static void after_pthread_join(struct props *props)
{
	pthread_join(made, NULL);
}

static void after_syscall(struct props *props)
{
	syscall(SYS_getpid);
}

static void after_fork(struct props *props)
{
	pid_t child = fork();

	if (!child)
		_exit(0);
}

static void after_spawn(struct props *props)
{
	char *const argv[] = { (char *)"true", NULL };
	pid_t child;

	EXPECT(!posix_spawnp(&child, "true", NULL, NULL, argv, (char *const[]){ NULL }));
}

static void after_system(struct props *props)
{
	EXPECT(!system(":"));
}

static void after_splice(struct props *props)
{
	EXPECT(splice(props->pipe[0], NULL, props->pair[0], NULL, 1, 0) == 1);
}

static void after_sendfile(struct props *props)
{
	EXPECT(sendfile(props->pair[0], props->file, &(off_t){ 0 }, 1) == 1);
}

static void after_dprintf(struct props *props)
{
	EXPECT(dprintf(props->pair[0], "x") == 1);
}

/* clang-format off: it takes this for a function */
#define AFTER(name)                                                                                                    \
	{                                                                                                              \
#name, after_##name                                                                                    \
	}
/* clang-format on */
static const struct {
	const char *name;
	void (*call)(struct props *props);
} calls[] = {
#define BURST_CALL(name) [BURST_##name] = AFTER(name),
#include "bursts.def"
};

static void prepare(struct props *props, int fd)
{
	struct epoll_event event = { .events = EPOLLIN };
	char some[64] = { 0 };
	int port;

	props->fd = fd;
	MUST(pipe(props->pipe));
	MUST(write(props->pipe[1], some, sizeof(some)));
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, props->pair));
	props->file = (int)MUST(open("/dev/shm", O_TMPFILE | O_RDWR, 0600));
	MUST(write(props->file, some, sizeof(some)));
	props->listening = listen_on(addresses.ipv4, &port);
	set_nonblocking(props->listening, true);
	props->set = (int)MUST(epoll_create1(0));
	MUST(epoll_ctl(props->set, EPOLL_CTL_ADD, fd, &event));
	sem_init(&props->semaphore, 0, 64);
	props->stream = fdopen(dup(props->pipe[0]), "r");
	setvbuf(props->stream, NULL, _IONBF, 0);
	signal(SIGURG, SIG_IGN);
	MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)));
}

/* The kinds of small sends change within a burst. */
static void send_burst(int fd, uint64_t position)
{
	char data[BURST];
	struct iovec iov[2] = { { data + 2 * PIECE, 4 }, { data + 2 * PIECE + 4, PIECE - 4 } };

	pattern_fill(data, BURST, 3, position);
	EXPECT(send(fd, data, PIECE, 0) == PIECE);
	EXPECT(write(fd, data + PIECE, PIECE) == PIECE);
	EXPECT(writev(fd, iov, 2) == PIECE);
	for (int i = 3; i < SENDS; i++)
		EXPECT(send(fd, data + i * PIECE, PIECE, 0) == PIECE);
}

void burst(struct end *end, long which)
{
	struct props props;

	meet(end);
	if (end->server) {
		take_to_end(end->fd, 3, 0);
		return;
	}
	prepare(&props, end->fd);
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t before = kernel_taken(end->fd);

		if (which == BURST_pthread_join)
			pthread_create(&made, NULL, nothing, NULL);
		if (which == BURST_wait && !fork())
			_exit(0);
		send_burst(end->fd, (uint64_t)round * BURST);
		calls[which].call(&props);
		note("round %d, after %s the kernel has %llu more", round, calls[which].name,
		     (unsigned long long)(kernel_taken(end->fd) - before));
	}
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
}

/* Ends of a process ---------------------------------------------------------------------------------------------------- */

static void end_by_exec(void)
{
	execlp("true", "true", NULL);
}

static void *leave_thread(void *unused)
{
	exit(0);
}

static void end_by_thread(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, leave_thread, NULL);
	pthread_join(thread, NULL);
}

static void end_now(enum burst_end how)
{
	if (how == BURST_END_EXIT)
		exit(0);
	if (how == BURST_END__EXIT)
		_exit(0);
	if (how == BURST_END_QUICK_EXIT)
		quick_exit(0);
	if (how == BURST_END_ABORT)
		abort();
	if (how == BURST_END_KILL)
		kill(getpid(), SIGKILL);
	if (how == BURST_END_RAISE)
		raise(SIGTERM);
	if (how == BURST_END_PTHREAD_KILL)
		pthread_kill(pthread_self(), SIGTERM);
	if (how == BURST_END_EXEC)
		end_by_exec();
	if (how == BURST_END_THREAD)
		end_by_thread();
	if (how == BURST_END_EXIT_GROUP)
		syscall(SYS_exit_group, 0);
}

/* A child makes a connection of its own, so that nobody shares it, and ends after bursts. */
void burst_end(struct end *end, long how)
{
	int port;
	pid_t child;

	if (end->server) {
		accept_one(end);
		take_to_end(end->fd, 3, 0);
		return;
	}
	port = (int)await_number(end);
	child = (pid_t)MUST(fork());
	if (!child) {
		end->fd = connect_to(addresses.ipv4, port);
		MUST(setsockopt(end->fd, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)));
		for (int round = 0; round < ROUNDS; round++) {
			if (round)
				poll(NULL, 0, 0);
			send_burst(end->fd, (uint64_t)round * BURST);
		}
		end_now((enum burst_end)how);
	}
	reap(child);
}
