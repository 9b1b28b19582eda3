/* SPDX-License-Identifier: MIT */
/*
 * One end of an exchange of bodies that each end checks byte by byte, in whatever surroundings a test puts it.
 *
 * guest server [HABIT...] | guest client HOST PORT [HABIT...]
 *
 * The client sends bodies of many sizes, the server checks them and sends its own back. Each body is filled anew in the
 * same buffer as soon as the last one is sent. Habits: undumpable (before the connection is made), filter (half way, with
 * bytes unread, a seccomp filter that kills at every call but recv, send and what ends a process), filter-rw (the same with
 * read and write alone), filter-whole (in the midst of a body whose rest it receives with MSG_WAITALL), strict (the mode in
 * which a process can do nothing but read, write and exit). An end that is done prints what it moved as JSON. It knows nothing
 * of zc.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "listening.h"

#define ROUNDS 48
#define BODY_MAX 1500000
#define FILTER_ROUND 29 /* of 65536 bytes, of which half are unread then */
#define WHOLE_ROUND 23	/* of so many that a part has yet to be sent then */

enum filter { FILTER_NONE, FILTER_SEND_RECV, FILTER_READ_WRITE, FILTER_STRICT };

struct end {
	int fd;
	unsigned int side;
	enum filter filter;
	bool reads_and_writes, receives_whole;
	unsigned char *body, *expected;
	uint64_t sent, received;
};

static size_t size_of(unsigned int round)
{
	static const size_t sizes[] = { 1, 100, 4096, 5000, 40000, 65536, 300001, BODY_MAX };

	return sizes[round % (sizeof(sizes) / sizeof(*sizes))];
}

static void fill(unsigned char *body, size_t bytes, unsigned int round, unsigned int side)
{
	uint64_t state = round * 2654435761u + side + 1;

	for (size_t i = 0; i < bytes; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		body[i] = (unsigned char)(state >> 56);
	}
}

#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void install(struct sock_filter *filter, size_t count)
{
	struct sock_fprog program = { (unsigned short)count, filter };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		err(1, "seccomp filter");
}

static void enter_sandbox(enum filter kind)
{
	bool plain = kind == FILTER_READ_WRITE;
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		ALLOW(plain ? SYS_read : SYS_recvfrom),
		ALLOW(plain ? SYS_write : SYS_sendto),
		ALLOW(SYS_write), /* standard output */
		ALLOW(SYS_exit_group),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};

	if (kind != FILTER_STRICT)
		install(filter, sizeof(filter) / sizeof(*filter));
	else if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
		err(1, "strict seccomp mode");
}

static void await_unread(int fd, size_t bytes)
{
	int unread = 0;

	while ((size_t)unread < bytes) {
		if (ioctl(fd, FIONREAD, &unread))
			err(1, "FIONREAD");
		sched_yield();
	}
}

static void send_body(struct end *end, unsigned int round)
{
	size_t bytes = size_of(round);

	fill(end->body, bytes, round, end->side);
	for (size_t done = 0; done < bytes;) {
		ssize_t n = end->reads_and_writes ? write(end->fd, end->body + done, bytes - done) :
						    send(end->fd, end->body + done, bytes - done, MSG_NOSIGNAL);

		if (n < 0)
			err(1, "send in round %u", round);
		done += (size_t)n;
	}
	end->sent += bytes;
	memset(end->body, 0xee, bytes);
}

static void receive_body(struct end *end, unsigned int round)
{
	size_t bytes = size_of(round);
	unsigned char *got = end->expected + BODY_MAX;
	int flags = 0;

	for (size_t done = 0; done < bytes;) {
		size_t wanted = done ? bytes - done : end->receives_whole ? 1 : (bytes + 1) / 2;
		ssize_t n = end->reads_and_writes ? read(end->fd, got + done, wanted) :
						    recv(end->fd, got + done, wanted, flags);

		if (n < 0)
			err(1, "receive in round %u", round);
		if (!n)
			errx(1, "end of file in round %u after %zu bytes", round, done);
		done += (size_t)n;
		if (end->filter && round == (end->receives_whole ? WHOLE_ROUND : FILTER_ROUND) && done < bytes) {
			await_unread(end->fd, end->receives_whole ? 1 : bytes - done);
			flags = end->receives_whole ? MSG_WAITALL : 0;
			enter_sandbox(end->filter);
			end->filter = FILTER_NONE;
		}
	}
	fill(end->expected, bytes, round, !end->side);
	if (memcmp(got, end->expected, bytes))
		errx(1, "wrong bytes in round %u", round);
	end->received += bytes;
}

static void exchange(struct end *end)
{
	end->body = malloc(BODY_MAX);
	end->expected = malloc(2 * BODY_MAX);
	if (!end->body || !end->expected)
		err(1, "memory");
	for (unsigned int round = 0; round < ROUNDS; round++) {
		if (end->side)
			send_body(end, round);
		receive_body(end, round);
		if (!end->side)
			send_body(end, round);
	}
}

static void tell(const struct end *end)
{
	char text[128];
	int length = snprintf(text, sizeof(text), "{\"sent\": %llu, \"received\": %llu, \"verified\": %d}\n",
			      (unsigned long long)end->sent, (unsigned long long)end->received, ROUNDS);

	if (write(STDOUT_FILENO, text, (size_t)length) != length)
		_exit(1);
}

static int reach(const char *host, const char *port)
{
	struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || inet_pton(AF_INET, host, &name.sin_addr) != 1 ||
	    connect(fd, (struct sockaddr *)&name, sizeof(name)))
		err(1, "connect to %s:%s", host, port);
	return fd;
}

static void take_on(struct end *end, const char *habit)
{
	if (!strcmp(habit, "undumpable")) {
		if (prctl(PR_SET_DUMPABLE, 0))
			err(1, "PR_SET_DUMPABLE");
	} else if (!strcmp(habit, "filter")) {
		end->filter = FILTER_SEND_RECV;
	} else if (!strcmp(habit, "filter-whole")) {
		end->filter = FILTER_SEND_RECV;
		end->receives_whole = true;
	} else if (!strcmp(habit, "filter-rw") || !strcmp(habit, "strict")) {
		end->filter = *habit == 's' ? FILTER_STRICT : FILTER_READ_WRITE;
		end->reads_and_writes = true;
	} else {
		errx(2, "no habit '%s'", habit);
	}
}

int main(int argc, char **argv)
{
	bool client = argc > 3 && !strcmp(argv[1], "client");
	struct end end = { .side = client };

	if (!client && (argc < 2 || strcmp(argv[1], "server")))
		errx(2, "usage: guest server [HABIT...] | guest client HOST PORT [HABIT...]");
	for (int i = client ? 4 : 2; i < argc; i++)
		take_on(&end, argv[i]);
	end.fd = client ? reach(argv[2], argv[3]) : accept_one(listen_and_tell(INADDR_ANY, 1));
	exchange(&end);
	tell(&end);
	if (argc > 2 && !strcmp(argv[argc - 1], "strict"))
		syscall(SYS_exit, 0); /* it may not end by exit_group */
	return 0;
}
