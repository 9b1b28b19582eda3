/* SPDX-License-Identifier: MIT */
/* Several threads on one connection, and threads that are cancelled in a call. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"

#define THREADS 3
#define RECORD 16

struct worker {
	int fd, number;
	long records;
	pthread_t thread;
};

static void *send_records(void *argument)
{
	struct worker *sender = argument;
	char record[64];

	for (long i = 0; i < sender->records; i++) {
		snprintf(record, sizeof(record), "T%d %012ld\n", sender->number, i);
		EXPECT(send(sender->fd, record, RECORD, 0) == RECORD);
		if (i % 64 == sender->number)
			poll(NULL, 0, 0);
	}
	return NULL;
}

/* Records of each thread in order, none torn. They are too small for the kernel to take in part. */
void thread_senders(struct end *end, long records)
{
	struct worker sent[THREADS];
	long next[THREADS] = { 0 };
	char record[RECORD + 1] = { 0 };

	meet(end);
	if (!end->server) {
		for (int i = 0; i < THREADS; i++) {
			sent[i] = (struct worker){ .fd = end->fd, .number = i, .records = records };
			MUST(pthread_create(&sent[i].thread, NULL, send_records, &sent[i]));
		}
		for (int i = 0; i < THREADS; i++)
			MUST(pthread_join(sent[i].thread, NULL));
		return;
	}
	while (recv(end->fd, record, RECORD, MSG_WAITALL) == RECORD) {
		int number = record[1] - '0';

		if (record[0] != 'T' || number < 0 || number >= THREADS || atol(record + 3) != next[number]) {
			note_wrong("record '%.15s'", record);
			return;
		}
		next[number]++;
	}
	for (int i = 0; i < THREADS; i++)
		note("thread %d: %ld", i, next[i]);
}

/* One thread sends while another receives, in both ends. */
static void *send_stream(void *argument)
{
	struct worker *sender = argument;

	for (long done = 0; done < 3000000; done += sender->records)
		give_pattern(sender->fd, (size_t)sender->records, 4, (uint64_t)done);
	return NULL;
}

void thread_duplex(struct end *end, long piece)
{
	struct worker sender = { .records = piece };

	meet(end);
	sender.fd = end->fd;
	MUST(pthread_create(&sender.thread, NULL, send_stream, &sender));
	take_pattern(end->fd, (size_t)((3000000 + piece - 1) / piece * piece), 4, 0);
	MUST(pthread_join(sender.thread, NULL));
	meet_at(end, "done");
}

/* Cancellation ------------------------------------------------------------------------------------------------------------ */

struct cancelled {
	struct end *end;
	long how;
	_Atomic int thread;
	_Atomic bool cleaned;
};

static void clean(void *argument)
{
	((struct cancelled *)argument)->cleaned = true;
}

static void wait_for_ever(struct cancelled *cancelled)
{
	struct epoll_event event = { .events = EPOLLIN };
	struct pollfd look = { .fd = cancelled->end->fd, .events = POLLIN };
	struct iovec iov = { (char[16]){ 0 }, 16 };
	char *large;
	int set;

	switch (cancelled->how) {
	case CANCEL_RECV:
		recv(look.fd, iov.iov_base, 16, 0);
		break;
	case CANCEL_READV:
		readv(look.fd, &iov, 1);
		break;
	case CANCEL_POLL:
		poll(&look, 1, -1);
		break;
	case CANCEL_EPOLL:
		set = (int)MUST(epoll_create1(0));
		MUST(epoll_ctl(set, EPOLL_CTL_ADD, look.fd, &event));
		epoll_wait(set, &event, 1, -1);
		break;
	default:
		large = calloc(1, 100000);
		while (send(look.fd, large, 100000, 0) > 0)
			;
	}
}

static void *be_cancelled(void *argument)
{
	struct cancelled *cancelled = argument;

	pthread_cleanup_push(clean, cancelled);
	cancelled->thread = (int)syscall(SYS_gettid);
	wait_for_ever(cancelled);
	pthread_cleanup_pop(0);
	return NULL;
}

void thread_cancelled(struct end *end, long how)
{
	struct cancelled cancelled = { .end = end, .how = how };
	pthread_t thread;
	void *result;

	if (how == CANCEL_SEND)
		meet_small(end);
	else
		meet(end);
	if (end->server) {
		await(end, "cancelled");
		if (how == CANCEL_SEND)
			return;
		take_quietly(end->fd, 60000, 1, 0);
		give_pattern(end->fd, 100, 1, 0);
		take_to_end(end->fd, 1, 60000);
		return;
	}
	MUST(pthread_create(&thread, NULL, be_cancelled, &cancelled));
	while (!cancelled.thread) /* in the call or before it: the same, both are cancellation points */
		sched_yield();
	MUST(pthread_cancel(thread));
	MUST(pthread_join(thread, &result));
	note("cancelled: %d, cleaned up: %d", result == PTHREAD_CANCELED, cancelled.cleaned);
	tell(end, "cancelled");
	if (how == CANCEL_SEND)
		return;
	/* Nothing is left locked. */
	for (int i = 0; i < 1000; i++)
		give_pattern(end->fd, 10, 1, (uint64_t)i * 10);
	give_pattern(end->fd, 50000, 1, 10000);
	take_quietly(end->fd, 100, 1, 0);
}

/* A cancellation that is pending when a send begins is acted upon there. */
static void *send_when_cancelled(void *argument)
{
	struct cancelled *cancelled = argument;
	char *data = calloc(1, (size_t)cancelled->how);

	pthread_cleanup_push(clean, cancelled);
	pthread_cancel(pthread_self());
	for (int i = 0; i < 10; i++)
		send(cancelled->end->fd, data, (size_t)cancelled->how, 0);
	pthread_cleanup_pop(0);
	return NULL;
}

void thread_cancelled_before(struct end *end, long bytes)
{
	struct cancelled cancelled = { .end = end, .how = bytes };
	pthread_t thread;
	void *result;

	meet(end);
	if (end->server) {
		take_to_end(end->fd, 1, 0);
		return;
	}
	/* After bursts the library takes the next send for the beginning of another. */
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < 10; i++)
			give_pattern(end->fd, 10, 1, (uint64_t)(round * 10 + i) * 10);
		poll(NULL, 0, 0);
	}
	MUST(pthread_create(&thread, NULL, send_when_cancelled, &cancelled));
	MUST(pthread_join(thread, &result));
	note("cancelled: %d, cleaned up: %d", result == PTHREAD_CANCELED, cancelled.cleaned);
}
