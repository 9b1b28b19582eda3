/* SPDX-License-Identifier: MIT */
/*
 * What is no TCP connection must be left alone, whatever connections do beside it: Unix sockets, UDP, pipes, files and the
 * kernel's own descriptors. Each case does its work between sends on the connection.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

static void busy(struct end *end, unsigned int round)
{
	for (unsigned int i = 0; i < 10; i++)
		give_pattern(end->fd, i == 9 ? 40000 : 10, round, i == 9 ? 90 : i * 10);
	take_quietly(end->fd, 40090, round, 0);
}

static void unix_sockets(struct end *end, int type)
{
	char data[64] = { 0 }, control[CMSG_SPACE(sizeof(struct ucred))];
	struct iovec iov = { data, 3 };
	struct msghdr message = { .msg_iov = &iov,
				  .msg_iovlen = 1,
				  .msg_control = control,
				  .msg_controllen = sizeof(control) };
	int pair[2];

	MUST(socketpair(AF_UNIX, type, 0, pair));
	CALL(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &(int){ 1 }, sizeof(int)));
	CALL(send(pair[0], "hello", 5, 0));
	CALL(write(pair[0], "world", 5));
	CALL(recv(pair[1], data, sizeof(data), MSG_PEEK));
	CALL(recvmsg(pair[1], &message, 0));
	note("'%.3s', flags %#x, control %zu", data, (unsigned int)message.msg_flags, message.msg_controllen);
	CALL(recv(pair[1], data, sizeof(data), MSG_TRUNC | MSG_DONTWAIT));
	CALL(recv(pair[1], data, sizeof(data), MSG_DONTWAIT));
	CALL(recv(pair[1], data, sizeof(data), MSG_DONTWAIT));
	note_poll(pair[1], POLLIN | POLLOUT);
	CALL(send(pair[0], "x", 1, MSG_OOB | MSG_DONTWAIT) > 0);
	CALL(shutdown(pair[0], SHUT_WR));
	CALL(send(pair[0], "x", 1, MSG_NOSIGNAL));
	CALL(close(pair[1]));
	CALL(send(pair[0], "x", 1, MSG_NOSIGNAL));
	CALL(recv(pair[0], data, 1, MSG_DONTWAIT));
	note_poll(pair[0], POLLIN | POLLOUT);
	CALL(close(pair[0]));
}

void bystander_unix(struct end *end, long type)
{
	meet(end);
	busy(end, 1);
	unix_sockets(end, (int)type);
	busy(end, 2);
	unix_sockets(end, (int)type);
	meet_at(end, "done");
}

static void datagrams(struct end *end, const char *address)
{
	struct sockaddr_storage name, from;
	socklen_t bytes = address_of(address, 0, &name), from_bytes = sizeof(from);
	int here = (int)MUST(socket(name.ss_family, SOCK_DGRAM, 0));
	int there = (int)MUST(socket(name.ss_family, SOCK_DGRAM, 0));
	char data[2000] = "datagram";
	struct iovec iov[2] = { { data, 4 }, { data + 4, 4 } };
	struct mmsghdr messages[2] = { { .msg_hdr = { .msg_iov = iov, .msg_iovlen = 2 } },
				       { .msg_hdr = { .msg_iov = iov, .msg_iovlen = 1 } } };

	MUST(bind(here, (struct sockaddr *)&name, bytes));
	MUST(getsockname(here, (struct sockaddr *)&name, &bytes));
	CALL(send(there, "x", 1, 0));
	CALL(sendto(there, data, 8, 0, (struct sockaddr *)&name, bytes));
	CALL(connect(there, (struct sockaddr *)&name, bytes));
	CALL(write(there, data, 5));
	CALL(sendmmsg(there, messages, 2, 0));
	CALL(send(there, "", 0, 0));
	CALL(send(there, data, sizeof(data), MSG_MORE));
	CALL(send(there, data, 1, 0));
	CALL(recvfrom(here, data, 3, MSG_TRUNC, (struct sockaddr *)&from, &from_bytes));
	note("from %u bytes, family %u", from_bytes, from.ss_family);
	for (int i = 0; i < 5; i++)
		CALL(recv(here, data, sizeof(data), i == 4 ? MSG_DONTWAIT | MSG_TRUNC : 0));
	CALL(recv(here, data, sizeof(data), MSG_DONTWAIT));
	CALL(close(here));
	CALL(send(there, "x", 1, 0));
	poll(&(struct pollfd){ .fd = there, .events = POLLIN }, 1, -1);
	note_poll(there, POLLIN);
	CALL(send(there, "x", 1, 0));
	CALL(shutdown(there, SHUT_RDWR));
	CALL(close(there));
}

/* Within one host, wherever the ends are: between two, the kernel tells of closed ports only so often. */
void bystander_udp(struct end *end, long six)
{
	meet(end);
	busy(end, 1);
	datagrams(end, six ? "::1" : "127.0.0.1");
	busy(end, 2);
	datagrams(end, six ? "::1" : "127.0.0.1");
	meet_at(end, "done");
}

static void pipes(void)
{
	struct iovec iov[2] = { { (void *)"ab", 2 }, { (void *)"cde", 3 } };
	char data[16] = { 0 };
	int first[2], second[2];

	signal(SIGPIPE, SIG_IGN);
	MUST(pipe(first));
	MUST(pipe2(second, O_NONBLOCK));
	CALL(writev(first[1], iov, 2));
	CALL(tee(first[0], second[1], 3, 0));
	CALL(splice(first[0], NULL, second[1], NULL, 5, 0));
	CALL(read(second[0], data, sizeof(data)));
	note("'%s'", data);
	CALL(read(second[0], data, sizeof(data)));
	CALL(vmsplice(second[1], iov, 2, 0));
	CALL(readv(second[0], iov, 0));
	note_poll(second[0], POLLIN);
	note_poll(second[1], POLLOUT);
	CALL(send(first[1], "x", 1, 0));
	CALL(recv(first[0], data, 1, 0));
	CALL(read(first[1], data, 1));
	CALL(write(first[0], data, 1));
	CALL(pread(first[0], data, 1, 0));
	CALL(close(first[0]));
	CALL(write(first[1], "x", 1));
	note_poll(first[1], POLLOUT);
	CALL(close(second[1]));
	CALL(read(second[0], data, sizeof(data)));
	CALL(read(second[0], data, sizeof(data)));
	CALL(close(first[1]));
	CALL(close(second[0]));
}

static void files(void)
{
	int file = (int)MUST(open("/dev/shm", O_TMPFILE | O_RDWR, 0600)), copy = (int)MUST(memfd_create("copy", 0));
	struct iovec iov[2] = { { (void *)"ab", 2 }, { (void *)"cde", 3 } };
	char data[16] = { 0 };
	off_t offset = 1;

	CALL(write(file, "0123456789", 10));
	CALL(pwritev2(file, iov, 2, 2, 0));
	CALL(pwritev2(file, iov, 2, -1, 0));
	CALL(pread(file, data, 15, 0));
	note("'%s'", data);
	CALL(preadv2(file, iov, 0, 0, 0));
	CALL(sendfile(copy, file, &offset, 5));
	note("offset %ld", (long)offset);
	CALL(copy_file_range(file, &(off64_t){ 0 }, copy, NULL, 5, 0));
	CALL(lseek(copy, 0, SEEK_END));
	CALL(recv(file, data, 1, 0));
	CALL(getsockopt(file, SOL_SOCKET, SO_ERROR, data, &(socklen_t){ 4 }));
	CALL(shutdown(file, SHUT_RD));
	CALL(close(copy));
	CALL(close(copy));
	CALL(read(copy, data, 1));
	CALL(close(file));
	file = (int)CALL(open("/", O_RDONLY | O_DIRECTORY));
	CALL(read(file, data, 1));
	CALL(write(file, data, 1));
	CALL(close(file));
}

void bystander_files(struct end *end, long unused)
{
	meet(end);
	for (unsigned int round = 0; round < 2; round++) {
		busy(end, round);
		pipes();
		files();
	}
	meet_at(end, "done");
}

void bystander_kernel(struct end *end, long unused)
{
	struct itimerspec soon = { .it_value.tv_nsec = 1000 };
	struct signalfd_siginfo info;
	int counter, timer, signals;
	sigset_t set;
	uint64_t value = 3;

	meet(end);
	busy(end, 1);
	counter = (int)CALL(eventfd(0, EFD_NONBLOCK));
	CALL(write(counter, &value, 8));
	CALL(write(counter, &value, 4));
	CALL(read(counter, &value, 8));
	note("%llu", (unsigned long long)value);
	CALL(read(counter, &value, 8));
	CALL(eventfd_write(counter, 1));
	timer = (int)CALL(timerfd_create(CLOCK_MONOTONIC, 0));
	CALL(timerfd_settime(timer, 0, &soon, NULL));
	CALL(read(timer, &value, 8));
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	MUST(sigprocmask(SIG_BLOCK, &set, NULL));
	signals = (int)CALL(signalfd(-1, &set, 0));
	CALL(kill(getpid(), SIGUSR2));
	CALL(read(signals, &info, sizeof(info)));
	note("signal %u", info.ssi_signo);
	busy(end, 2);
	meet_at(end, "done");
}
