/* SPDX-License-Identifier: MIT */
/*
 * io_uring: the server asks by one for readiness, or for a registration in an epoll set, and takes its bytes by libc, as libuv does; or it
 * takes them by it, too. The ring is made by syscall() or past libc, and before there are connections or in the middle of one. Where
 * there is no io_uring, all modes say so.
 */
#define _GNU_SOURCE
#include <linux/io_uring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cases.h"
#include "common/sys.h"
#include "end.h"

#define TURNS 400
#define BYTES 64

struct uring {
	int fd;
	bool bare;
	struct io_uring_params params;
	char *submitted, *completed;
	struct io_uring_sqe *entries;
};

static long call(const struct uring *uring, long number, long a, long b, long c, long d)
{
	return uring->bare ? sys_call(number, a, b, c, d, 0, 0) : syscall(number, a, b, c, d, 0, 0);
}

static void *map(const struct uring *uring, size_t bytes, off_t what)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, uring->fd, what);

	if (at == MAP_FAILED)
		die("mmap of an io_uring: %s", errno_name(errno));
	return at;
}

/* Returns whether there is one. */
static bool uring_open(struct uring *uring, bool bare)
{
	struct io_uring_params *params = &uring->params;

	*uring = (struct uring){ .bare = bare };
	uring->fd = (int)call(uring, SYS_io_uring_setup, 8, (long)params, 0, 0);
	if (uring->fd < 0)
		return false;
	uring->submitted = map(uring, params->sq_off.array + params->sq_entries * 4, IORING_OFF_SQ_RING);
	uring->completed =
		map(uring, params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
	uring->entries = map(uring, params->sq_entries * sizeof(*uring->entries), IORING_OFF_SQES);
	return true;
}

/* Submits one, and waits for its result. */
static int uring_do(struct uring *uring, const struct io_uring_sqe *what)
{
	uint32_t *tail = (uint32_t *)(uring->submitted + uring->params.sq_off.tail);
	uint32_t *head = (uint32_t *)(uring->completed + uring->params.cq_off.head);
	struct io_uring_cqe *results = (struct io_uring_cqe *)(uring->completed + uring->params.cq_off.cqes);
	uint32_t at = *tail & (uring->params.sq_entries - 1);
	int result;

	uring->entries[at] = *what;
	((uint32_t *)(uring->submitted + uring->params.sq_off.array))[at] = at;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	MUST(call(uring, SYS_io_uring_enter, uring->fd, 1, 1, IORING_ENTER_GETEVENTS));
	result = results[*head & (uring->params.cq_entries - 1)].res;
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	return result;
}

static void serve_turns(struct end *end, int from, int to)
{
	for (int i = from; i < to; i++) {
		take_quietly(end->fd, BYTES, 6, (uint64_t)i * BYTES);
		give_pattern(end->fd, BYTES, 7, (uint64_t)i * BYTES);
	}
}

/* The next request is there when its first byte can be taken; one that is not is asked for again. */
static bool has_request(int fd, char *data)
{
	ssize_t got = recv(fd, data, BYTES, MSG_DONTWAIT);

	EXPECT(got > 0 || (got < 0 && errno == EAGAIN));
	if (got > 0 && got < BYTES)
		EXPECT(recv(fd, data + got, (size_t)(BYTES - got), MSG_WAITALL) == BYTES - got);
	return got > 0;
}

static void wait_by_poll(struct uring *uring, int set, int fd, char *data)
{
	struct io_uring_sqe asks = { .opcode = IORING_OP_POLL_ADD, .fd = fd, .poll_events = POLLIN };

	do
		EXPECT(uring_do(uring, &asks) & POLLIN);
	while (!has_request(fd, data));
}

static void wait_by_set(struct uring *uring, int set, int fd, char *data)
{
	struct epoll_event event;

	do
		EXPECT(epoll_wait(set, &event, 1, -1) == 1);
	while (!has_request(fd, data));
}

static void take_all(struct uring *uring, int set, int fd, char *data)
{
	struct io_uring_sqe takes = { .opcode = IORING_OP_RECV,
				      .fd = fd,
				      .addr = (uintptr_t)data,
				      .len = BYTES,
				      .msg_flags = MSG_WAITALL };

	EXPECT(uring_do(uring, &takes) == BYTES);
}

static int register_in_set(struct uring *uring, int fd)
{
	struct epoll_event event = { .events = EPOLLIN };
	int set = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
	struct io_uring_sqe adds = { .opcode = IORING_OP_EPOLL_CTL,
				     .fd = set,
				     .off = (uint64_t)fd,
				     .len = EPOLL_CTL_ADD,
				     .addr = (uintptr_t)&event };

	note("EPOLL_CTL: %d", uring_do(uring, &adds));
	return set;
}

/* Between the turns nothing is on its way to the server when it makes the ring. */
void uring(struct end *end, long how)
{
	static void (*const ways[])(struct uring * uring, int set, int fd, char *data) = { wait_by_poll, wait_by_set,
											   take_all };
	bool early = how & URING_EARLY, has = false;
	const int middle = TURNS / 2;
	struct uring uring;
	char data[BYTES];
	int set = -1;

	if (end->server && early)
		has = uring_open(&uring, how & URING_BARE);
	meet(end);
	if (!end->server) {
		for (uint64_t i = 0; i < TURNS; i++) {
			if (i == (uint64_t)middle)
				await(end, "ready");
			give_pattern(end->fd, BYTES, 6, i * BYTES);
			take_quietly(end->fd, BYTES, 7, i * BYTES);
		}
		return;
	}
	serve_turns(end, 0, middle);
	if (how & URING_LAST_NUMBER)
		end->fd = keep_last_number(end->fd);
	if (!early)
		has = uring_open(&uring, how & URING_BARE);
	if (has && URING_WAY(how) == URING_SET)
		set = register_in_set(&uring, end->fd);
	tell(end, "ready");
	if (!has) {
		note("there is no io_uring");
		serve_turns(end, middle, TURNS);
		return;
	}
	for (uint64_t i = (uint64_t)middle; i < TURNS; i++) {
		ways[URING_WAY(how)](&uring, set, end->fd, data);
		pattern_check(data, BYTES, 6, i * BYTES);
		give_pattern(end->fd, BYTES, 7, i * BYTES);
	}
}
