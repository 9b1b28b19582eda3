/* SPDX-License-Identifier: MIT */
/* One call that sends or receives: which, how much, from and to what memory is drawn. */
#define _GNU_SOURCE
#include "fire.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* Memory of a send, or of a receive: how it comes and goes is what tells whether a lent page was lent for too long. */
enum memory_kind { MEMORY_HEAP, MEMORY_HEAP_REWRITTEN, MEMORY_MAPPED, MEMORY_KEPT, MEMORY_KINDS };

struct memory {
	enum memory_kind kind;
	uint8_t *data;
	size_t bytes;
};

static _Thread_local uint8_t *kept;

static struct memory memory_get(size_t bytes, uint64_t *random)
{
	struct memory memory = { (enum memory_kind)fire_below(random, MEMORY_KINDS), NULL, bytes };

	switch (memory.kind) {
	case MEMORY_MAPPED:
		memory.data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (memory.data == MAP_FAILED)
			abort();
		break;
	case MEMORY_KEPT:
		if (!kept)
			kept = malloc(FIRE_BLOCK_MAX);
		memory.data = kept;
		break;
	default:
		memory.data = malloc(bytes);
	}
	if (!memory.data)
		abort();
	return memory;
}

static void memory_put(struct memory *memory)
{
	switch (memory->kind) {
	case MEMORY_MAPPED:
		munmap(memory->data, memory->bytes);
		break;
	case MEMORY_KEPT:
		break;
	case MEMORY_HEAP_REWRITTEN:
		memset(memory->data, 0xa5, memory->bytes);
		/* fall through */
	default:
		free(memory->data);
	}
}

static int split(struct iovec *iov, uint8_t *data, size_t bytes, uint64_t *random)
{
	int count = 0;

	while (bytes && count < 3) {
		size_t part = fire_size(random, bytes);

		iov[count++] = (struct iovec){ data, part };
		data += part;
		bytes -= part;
	}
	if (bytes)
		iov[count++] = (struct iovec){ data, bytes };
	return count;
}

/* A file of its own each time: the kernel may send its pages later, so they are not written again. */
static ssize_t out_sendfile(int fd, const uint8_t *data, size_t bytes)
{
	int file = memfd_create("fire", MFD_CLOEXEC);
	off_t offset = 0;
	ssize_t sent = -1;
	int error;

	if (file < 0 || write(file, data, bytes) != (ssize_t)bytes)
		abort();
	sent = sendfile(fd, file, &offset, bytes);
	error = errno;
	close(file);
	errno = error;
	return sent;
}

/* The pages are the kernel's until it says otherwise: they are unmapped, never written. */
static ssize_t out_zerocopy(int fd, const uint8_t *data, size_t bytes)
{
	void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ssize_t sent;
	int error;

	if (pages == MAP_FAILED)
		abort();
	memcpy(pages, data, bytes);
	sent = send(fd, pages, bytes, MSG_ZEROCOPY | MSG_DONTWAIT);
	error = errno;
	munmap(pages, bytes);
	if (sent < 0 && error == ENOBUFS) {
		move_notices(fd);
		error = EAGAIN;
	}
	errno = error;
	return sent;
}

void move_notices(int fd)
{
	char control[256];
	struct msghdr message = { .msg_control = control, .msg_controllen = sizeof(control) };

	while (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0)
		message.msg_controllen = sizeof(control);
}

static ssize_t send_by(struct state *state, int fd, uint8_t *data, size_t bytes, bool wait, uint64_t *random)
{
	struct iovec iov[4];
	struct msghdr message = { .msg_iov = iov };
	int flags = wait ? 0 : MSG_DONTWAIT;
	ssize_t sent;

	switch (fire_below(random, 16)) {
	case 0:
	case 1:
		message.msg_iovlen = (size_t)split(iov, data, bytes, random);
		return sendmsg(fd, &message, flags);
	case 2:
		return writev(fd, iov, split(iov, data, bytes, random));
	case 3:
	case 4:
		return write(fd, data, bytes);
	case 5:
		return out_sendfile(fd, data, bytes);
	case 6:
		if (!state->zerocopy)
			break;
		sent = out_zerocopy(fd, data, bytes);
		if (sent >= 0 || errno != EAGAIN || !wait)
			return sent;
		break;
	case 7: /* the kernel alone serves it */
		return pwritev2(fd, iov, split(iov, data, bytes, random), -1, 0);
	}
	return send(fd, data, bytes, flags);
}

ssize_t move_out(struct state *state, const struct plan *plan, int fd, size_t most, bool wait, uint64_t *random)
{
	size_t limit = most < plan->most[state->step] ? most : plan->most[state->step];
	size_t bytes = fire_below(random, 2) ? limit : fire_size(random, limit);
	struct memory memory = memory_get(bytes, random);
	ssize_t sent;

	stream_fill(plan->key[state->side], state->sent, memory.data, bytes);
	sent = send_by(state, fd, memory.data, bytes, wait, random);
	if (sent < 0)
		sent = -errno;
	else
		state->sent += (uint64_t)sent;
	memory_put(&memory);
	return sent;
}

static ssize_t in_splice(int fd, uint8_t *data, size_t bytes, bool wait)
{
	int pipes[2], error;
	ssize_t got, part;

	if (pipe2(pipes, O_CLOEXEC) < 0)
		abort();
	got = splice(fd, NULL, pipes[1], NULL, bytes, wait ? 0 : SPLICE_F_NONBLOCK);
	error = errno;
	for (ssize_t done = 0; done < got; done += part) {
		part = read(pipes[0], data + done, (size_t)(got - done));
		if (part <= 0)
			abort();
	}
	close(pipes[0]);
	close(pipes[1]);
	errno = error;
	return got;
}

static ssize_t receive_by(int fd, uint8_t *data, size_t bytes, bool wait, bool *peeked, uint64_t *random)
{
	struct iovec iov[4];
	struct msghdr message = { .msg_iov = iov };
	int flags = wait ? 0 : MSG_DONTWAIT;

	switch (fire_below(random, 12)) {
	case 0:
		return readv(fd, iov, split(iov, data, bytes, random));
	case 1:
	case 2:
		return read(fd, data, bytes);
	case 3:
		*peeked = true;
		return recv(fd, data, bytes, flags | MSG_PEEK);
	case 4:
		return recv(fd, data, bytes, flags | MSG_WAITALL);
	case 5:
	case 6:
		message.msg_iovlen = (size_t)split(iov, data, bytes, random);
		return recvmsg(fd, &message, flags | (fire_below(random, 4) ? 0 : MSG_WAITALL));
	case 7:
		return in_splice(fd, data, bytes, wait);
	}
	return recv(fd, data, bytes, flags);
}

ssize_t move_in(struct state *state, const struct plan *plan, int fd, size_t most, bool wait, uint64_t *random)
{
	size_t limit = most < FIRE_BLOCK_MAX ? most : FIRE_BLOCK_MAX;
	size_t bytes = fire_below(random, 2) ? limit : fire_size(random, limit);
	struct memory memory = memory_get(bytes, random);
	bool peeked = false;
	ssize_t got = receive_by(fd, memory.data, bytes, wait, &peeked, random), differs;

	if (got < 0) {
		got = -errno;
	} else if (got) {
		differs = stream_compare(plan->key[!state->side], state->received, memory.data, (size_t)got);
		if (differs >= 0 && getenv("FIRE_TRACE")) {
			for (uint64_t p = state->received + (uint64_t)differs + 1, n = 0; n < 3000000; n++) {
				size_t l = (size_t)(got - differs) < 12 ? (size_t)(got - differs) : 12;
				if (stream_compare(plan->key[!state->side], p + n, memory.data + differs, l) < 0 &&
				    l > 4) {
					fprintf(stderr, "fire: these are %llu bytes ahead\n",
						(unsigned long long)n + 1);
					break;
				}
				if (stream_compare(plan->key[!state->side], p - 2 - n, memory.data + differs, l) < 0 &&
				    l > 4) {
					fprintf(stderr, "fire: these are %llu bytes behind\n",
						(unsigned long long)n + 1);
					break;
				}
			}
		}
		if (differs >= 0)
			got = session_wrong(state, "byte %zd of %zd%s is %#x", differs, got, peeked ? " peeked" : "",
					    memory.data[differs]) *
			      EBADMSG;
		else if (!peeked)
			state->received += (uint64_t)got;
	}
	memory_put(&memory);
	return got;
}
