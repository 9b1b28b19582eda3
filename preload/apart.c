/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/apart.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "common/room.h"
#include "common/sys.h"
#include "common/thread.h"
#include "preload/real.h"
#include "preload/table.h"

#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE (1u << 1)
#endif

#define STACK_BYTES (256 * 1024)
#define OWN_MAX 128   /* descriptors that go along */
#define KNOWN_MAX 192 /* with those that are kept meanwhile */
#define LOW 64	      /* numbers below are those of what comes and goes there */

/* What the thread asks of its caller. */
enum ask { NOTHING, HAS_BEGUN, CAN_NOT, KEEP, PUT, IS_GONE, HAS_ENDED };

static int ends[2] = { -1, -1 }; /* a descriptor's way: to the caller, from the thread */
static struct {
	void (*body)(void *arg);
	void *arg;
	ino_t way; /* of ends[1] */
	int known[KNOWN_MAX];
	int count;
	int number;	       /* asked about, or the answer */
	_Atomic uint32_t asks; /* an enum ask; NOTHING: it has been answered */
} job;

/* Of a thread apart: its end of the way, in its own table. */
static __thread int way __attribute__((tls_model("initial-exec"))) = -1;

void apart_prepare(void)
{
	int made[2];

	if (ends[0] >= 0 || !room_for_own() ||
	    sys_call(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, (long)made, 0, 0) < 0)
		return;
	for (int i = 0; i < 2; i++) {
		ends[i] = sys_fd_raise(made[i]);
		table_own_keep(ends[i]);
	}
}

void apart_after_fork(void)
{
	for (int i = 0; i < 2; i++) {
		table_own_close(ends[i]);
		ends[i] = -1;
	}
}

/* One descriptor, and a byte with it. */
struct parcel {
	char byte;
	struct iovec data;
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr message;
};

static void parcel_init(struct parcel *parcel)
{
	memset(parcel, 0, sizeof(*parcel));
	parcel->data = (struct iovec){ &parcel->byte, 1 };
	parcel->message.msg_iov = &parcel->data;
	parcel->message.msg_iovlen = 1;
	parcel->message.msg_control = &parcel->control;
	parcel->message.msg_controllen = sizeof(parcel->control);
}

static bool hand_over(int fd)
{
	struct parcel parcel;

	parcel_init(&parcel);
	parcel.control.head.cmsg_level = SOL_SOCKET;
	parcel.control.head.cmsg_type = SCM_RIGHTS;
	parcel.control.head.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&parcel.control.head), &fd, sizeof(fd));
	return sys_call(SYS_sendmsg, way, (long)&parcel.message, MSG_NOSIGNAL, 0, 0, 0) == 1;
}

/* Returns a number that the program may want: for two system calls. */
static int take_over(void)
{
	struct parcel parcel;
	int fd;

	parcel_init(&parcel);
	if (sys_call(SYS_recvmsg, ends[0], (long)&parcel.message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT, 0, 0, 0) != 1 ||
	    parcel.control.head.cmsg_len != CMSG_LEN(sizeof(int)) || parcel.control.head.cmsg_type != SCM_RIGHTS)
		return -1;
	memcpy(&fd, CMSG_DATA(&parcel.control.head), sizeof(fd));
	return fd;
}

static void turn(uint32_t asks)
{
	atomic_store(&job.asks, asks);
	sys_call(SYS_futex, (long)&job.asks, FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0);
}

/* The thread's. Returns the answer. */
static int ask(enum ask what, int number)
{
	job.number = number;
	turn(what);
	while (atomic_load(&job.asks) == (uint32_t)what)
		sys_call(SYS_futex, (long)&job.asks, FUTEX_WAIT_PRIVATE, what, 0, 0, 0);
	return job.number;
}

static bool is_known(int fd)
{
	for (int i = 0; i < job.count; i++) {
		if (job.known[i] == fd)
			return true;
	}
	return false;
}

/* What a library says to its user: with a log, it is there. */
static void hear_libraries(void)
{
	int log = log_descriptor();

	for (int output = STDOUT_FILENO; output <= STDERR_FILENO && is_known(log); output++)
		sys_call(SYS_dup3, log, output, 0, 0, 0, 0);
}

/*
 * What was opened in a table that nobody else has begins with 3: what a library says to its user would else go to a device. The program's
 * own table is asked by its process, so not if the thread that began it has one of its own, or has ended.
 */
static bool have_own_table(void)
{
	long null, self;
	struct stat found;

	if (sys_call(SYS_close_range, 0, ~0u, CLOSE_RANGE_UNSHARE, 0, 0, 0) < 0)
		return false;
	null = sys_call(SYS_memfd_create, (long)"zc", 0, 0, 0, 0, 0);
	if (null != 0 || sys_call(SYS_dup, null, 0, 0, 0, 0, 0) != 1 || sys_call(SYS_dup, null, 0, 0, 0, 0, 0) != 2)
		return false;
	self = sys_call(SYS_pidfd_open, sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0), 0, 0, 0, 0, 0);
	way = self < 0 ? -1 : (int)sys_call(SYS_pidfd_getfd, self, ends[1], 0, 0, 0, 0);
	if (way < 0 || fstat(way, &found) < 0 || found.st_ino != job.way)
		return false;
	for (int i = 0; i < job.count; i++) {
		long got = sys_call(SYS_pidfd_getfd, self, job.known[i], 0, 0, 0, 0);

		if (got < 0)
			return false;
		sys_call(SYS_dup3, got, job.known[i], O_CLOEXEC, 0, 0, 0);
		sys_call(SYS_close, got, 0, 0, 0, 0, 0);
	}
	sys_call(SYS_close, self, 0, 0, 0, 0, 0);
	hear_libraries();
	return true;
}

static void *run_apart(void *unused)
{
	if (!have_own_table()) {
		turn(CAN_NOT);
		return unused;
	}
	ask(HAS_BEGUN, 0);
	job.body(job.arg);
	for (int i = 0; i < job.count; i++) {
		if (sys_call(SYS_fcntl, job.known[i], F_GETFD, 0, 0, 0, 0) == -EBADF)
			ask(IS_GONE, job.known[i]);
	}
	/* What has been closed here is to be closed: not when the thread has ended, later. */
	sys_call(SYS_close_range, 0, ~0u, 0, 0, 0, 0);
	turn(HAS_ENDED);
	return unused;
}

static int keep_there(void)
{
	int fd = take_over();
	long kept = sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, SYS_FD_HIGH, 0, 0, 0);

	if (fd < 0)
		return -1;
	if (kept < 0)
		kept = sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, LOW, 0, 0, 0);
	sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	if (kept >= 0)
		table_own_keep((int)kept);
	return kept < 0 ? -1 : (int)kept;
}

static void put_there(int number)
{
	int fd = take_over();

	if (fd < 0)
		return;
	sys_call(SYS_dup3, fd, number, O_CLOEXEC, 0, 0, 0);
	sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
}

/* The caller's part. Returns whether the body was run. */
static bool serve(void)
{
	for (;;) {
		uint32_t asks = atomic_load(&job.asks);

		switch (asks) {
		case NOTHING:
			sys_call(SYS_futex, (long)&job.asks, FUTEX_WAIT_PRIVATE, NOTHING, 0, 0, 0);
			continue;
		case CAN_NOT:
		case HAS_ENDED:
			return asks == HAS_ENDED;
		case KEEP:
			job.number = keep_there();
			break;
		case PUT:
			put_there(job.number);
			break;
		case IS_GONE:
			table_own_close(job.number);
			break;
		default:
			break;
		}
		turn(NOTHING);
	}
}

/* What is to be in the other table, too. Returns false if that is too much, or where other numbers come and go. */
static bool know_own(void)
{
	job.count = 0;
	for (int fd = table_own_next(0); fd >= 0; fd = table_own_next(fd + 1)) {
		if (fd < LOW || job.count == OWN_MAX)
			return false;
		job.known[job.count++] = fd;
	}
	return true;
}

void apart_run(void (*body)(void *arg), void *arg)
{
	struct stat found;
	pthread_t thread;
	bool ran;

	job.body = body;
	job.arg = arg;
	atomic_store(&job.asks, NOTHING);
	if (ends[1] < 0 || !know_own() || fstat(ends[1], &found) < 0) {
		body(arg);
		return;
	}
	job.way = found.st_ino;
	if (thread_start_joined(run_apart, NULL, STACK_BYTES, &thread) < 0) {
		body(arg);
		return;
	}
	ran = serve();
	/* All of it, and libc's locks for its stack with it: a fork past libc waits for who is here, and its child would find them taken for ever. */
	real_resolve();
	real.pthread_join(thread, NULL);
	if (!ran)
		body(arg);
}

int apart_keep(int fd)
{
	int kept;

	if (fd < 0 || (way >= 0 ? is_known(fd) : table_is_own(fd)))
		return fd;
	if (way < 0) {
		fd = sys_fd_raise(fd);
		table_own_keep(fd);
		return fd;
	}
	kept = hand_over(fd) ? ask(KEEP, 0) : -1;
	if (kept >= 0 && job.count < KNOWN_MAX)
		job.known[job.count++] = kept;
	if (kept >= 0)
		sys_call(SYS_dup3, fd, kept, O_CLOEXEC, 0, 0, 0);
	sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	return kept;
}

void apart_drop(int fd)
{
	if (way < 0)
		table_own_drop(fd); /* else once the body has ended, both at a time */
}

void apart_put(int fd, int number)
{
	sys_call(SYS_dup3, fd, number, O_CLOEXEC, 0, 0, 0);
	if (way >= 0 && hand_over(fd))
		ask(PUT, number);
}
