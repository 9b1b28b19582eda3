/* SPDX-License-Identifier: MIT */
/* The sender and the receiver of kill.h: programs that know nothing of the library. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kill.h"

#define BUFFERS 4		   /* that the sender takes in turn, and rewrites */
#define HELD_MAX 4096		   /* the largest send that "sg" holds back, by default */
#define AFTER_DEATH_MAX (48 << 20) /* bytes that a sender may send before it is told: more than all buffers hold */

struct life {
	struct board *board;
	const struct plan *plan;
	struct outcome *out;
	uint64_t random; /* for pauses and sizes */
	unsigned char *memory;
	enum end end;
	int fd, epoll;
	uint64_t at; /* in the stream */
	uint64_t at_death;
	bool knows_death;
};

/* Time ----------------------------------------------------------------------------------------------------------------- */

/* The kernel kills on the dot, in the middle of whatever is under way. */
static void set_death(uint32_t ns)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL };
	struct itimerspec time = { .it_value = { .tv_nsec = ns } };
	timer_t timer;

	if (timer_create(CLOCK_MONOTONIC, &event, &timer) < 0 || timer_settime(timer, 0, &time, NULL) < 0)
		_exit(3);
}

static void begin_step(struct life *life)
{
	uint32_t step = atomic_fetch_add(&life->out->step, 1) + 1;

	if (life->plan->victim == life->end && life->plan->death + 1 == step)
		set_death(life->plan->death_ns);
}

static void pause_at_random(struct life *life, bool wanted)
{
	uint64_t random = random_next(&life->random);
	struct timespec time = { .tv_nsec = (long)(random >> 8) % 200000 };

	if (wanted && !(random & 3))
		nanosleep(&time, NULL);
}

/* Notes with what the stream has ended. Returns false. */
static bool end_with(struct life *life, const char *doing, int error)
{
	snprintf(life->out->doing, sizeof(life->out->doing), "%s", doing);
	life->out->error = error;
	life->out->ended = true;
	return false;
}

/* The connection ------------------------------------------------------------------------------------------------------- */

static void tell(int messages, enum end end)
{
	struct message message = { .what = LISTENS, .end = end, .pid = getpid() };

	if (write(messages, &message, sizeof(message)) != sizeof(message))
		_exit(3);
}

static int listen_anywhere(struct board *board)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = board->address };
	socklen_t bytes = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, bytes) < 0 || listen(fd, 4) < 0 ||
	    getsockname(fd, (struct sockaddr *)&address, &bytes) < 0)
		_exit(3);
	board->port = ntohs(address.sin_port);
	return fd;
}

static bool meet(struct life *life, int messages)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_port = htons((uint16_t)life->board->port),
				       .sin_addr = life->board->address };
	int listener;

	if (life->plan->connects == life->end) {
		begin_step(life);
		life->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (connect(life->fd, (struct sockaddr *)&address, sizeof(address)) < 0)
			return end_with(life, "connect", errno);
	} else {
		listener = listen_anywhere(life->board);
		tell(messages, life->end);
		begin_step(life);
		life->fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (life->fd < 0)
			return end_with(life, "accept", errno);
		life->board->accepted = true;
		close(listener);
	}
	return true;
}

static void wait_for(struct life *life, short events)
{
	struct pollfd look = { .fd = life->fd, .events = events };
	struct epoll_event event = { .events = EPOLLIN };

	if (events == POLLIN && life->plan->receive == RECEIVE_EPOLL) {
		if (life->epoll < 0) {
			life->epoll = epoll_create1(EPOLL_CLOEXEC);
			epoll_ctl(life->epoll, EPOLL_CTL_ADD, life->fd, &event);
		}
		epoll_wait(life->epoll, &event, 1, -1);
	} else {
		poll(&look, 1, -1);
	}
}

/* The sender ----------------------------------------------------------------------------------------------------------- */

static ssize_t send_some(struct life *life, unsigned char *at, size_t bytes)
{
	size_t third = bytes / 3;
	struct iovec parts[] = { { at, third }, { at + third, third }, { at + 2 * third, bytes - 2 * third } };

	switch (life->plan->send) {
	case SEND_POLL:
		return send(life->fd, at, bytes, MSG_DONTWAIT);
	case SEND_VECTOR:
		return writev(life->fd, parts, 3);
	default:
		return send(life->fd, at, bytes, 0);
	}
}

static bool send_all(struct life *life, unsigned char *memory, size_t bytes)
{
	for (size_t done = 0; done < bytes;) {
		ssize_t sent;

		atomic_store(&life->board->attempted, life->at + bytes - done);
		sent = send_some(life, memory + done, bytes - done);
		if (sent < 0 && errno == EAGAIN) {
			wait_for(life, POLLOUT);
			continue;
		}
		if (sent < 0)
			return end_with(life, "send", errno);
		done += (size_t)sent;
		life->at += (uint64_t)sent;
		atomic_store(&life->board->completed, life->at);
		if (sent > HELD_MAX)
			atomic_store(&life->board->certain, life->at);
	}
	return true;
}

static bool send_message(struct life *life, unsigned int number, size_t bytes)
{
	unsigned char *memory = life->memory + number % BUFFERS * MESSAGE_BYTES_MAX;

	for (size_t done = 0; done < bytes;) {
		size_t part = bytes - done;
		const unsigned char *from = stream_at(life->plan->seed, life->at + done, &part);

		memcpy(memory + done, from, part);
		done += part;
	}
	return send_all(life, memory, bytes);
}

/* Returns bytes up to the end. */
static size_t receive_answer(struct life *life, void *answer, size_t bytes, int *error)
{
	size_t done = 0;
	ssize_t got;

	*error = 0;
	while (done < bytes && (got = recv(life->fd, (char *)answer + done, bytes - done, 0)))
		if (got > 0)
			done += (size_t)got;
		else if (errno != EINTR)
			break;
	if (done < bytes && got < 0)
		*error = errno;
	return done;
}

/* The peer is dead, and yet all goes well: that must have an end. */
static bool goes_on(struct life *life, unsigned int number)
{
	if (number < life->plan->rounds + life->plan->messages)
		return true;
	if (life->plan->victim != RECEIVER || !life->board->dead)
		return false;
	if (!life->knows_death) {
		life->knows_death = true;
		life->at_death = life->at;
	}
	if (life->at - life->at_death > AFTER_DEATH_MAX)
		life->board->never_told = true;
	return !life->board->never_told;
}

static bool do_round(struct life *life, unsigned int number)
{
	unsigned char answer;
	int error;

	if (!send_message(life, number, life->plan->bytes[number]))
		return false;
	if (receive_answer(life, &answer, 1, &error) != 1)
		return end_with(life, "answer", error ? error : ECONNRESET);
	return answer == (unsigned char)number || end_with(life, "wrong answer", EBADMSG);
}

static bool send_stream(struct life *life)
{
	for (unsigned int i = 0; goes_on(life, i); i++) {
		begin_step(life);
		pause_at_random(life, !life->plan->hasty);
		if (i < life->plan->rounds ?
			    !do_round(life, i) :
			    !send_message(life, i,
					  i < life->plan->rounds + life->plan->messages ? life->plan->bytes[i] : 65536))
			return false;
	}
	return true;
}

static void lead_sender(struct life *life)
{
	uint64_t answer = 0;
	size_t got;
	int error;

	if (!send_stream(life))
		return;
	begin_step(life);
	if (life->plan->half_close || life->plan->confirms)
		shutdown(life->fd, SHUT_WR);
	if (life->plan->confirms) {
		got = receive_answer(life, &answer, CONFIRM_BYTES, &error);
		if (got == CONFIRM_BYTES)
			life->board->confirmed = answer + 1;
		else
			end_with(life, "confirmation", error ? error : ECONNRESET);
	}
	close(life->fd);
	if (!life->out->ended)
		end_with(life, "close", 0);
}

/* The receiver --------------------------------------------------------------------------------------------------------- */

static ssize_t receive_some(struct life *life, void *memory, size_t bytes)
{
	int flags = life->plan->receive == RECEIVE_WAITALL ? MSG_WAITALL : 0;
	ssize_t got;

	if (life->plan->receive != RECEIVE_POLL && life->plan->receive != RECEIVE_EPOLL)
		return recv(life->fd, memory, bytes, flags);
	for (;;) {
		got = recv(life->fd, memory, bytes, MSG_DONTWAIT);
		if (got >= 0 || errno != EAGAIN)
			return got;
		wait_for(life, POLLIN);
	}
}

static bool is_right(struct life *life, const unsigned char *memory, size_t bytes)
{
	for (size_t done = 0; done < bytes;) {
		size_t part = bytes - done;
		const unsigned char *right = stream_at(life->plan->seed, life->at, &part);

		if (memcmp(memory + done, right, part)) {
			life->board->different = true;
			return end_with(life, "wrong bytes", EBADMSG);
		}
		done += part;
		life->at += part;
		atomic_store(&life->board->arrived, life->at);
	}
	return true;
}

/* Receives up to `bytes`. Returns whether the stream goes on. */
static bool receive_part(struct life *life, size_t bytes, size_t *out)
{
	ssize_t got = receive_some(life, life->memory, bytes);

	if (got <= 0)
		return end_with(life, "receive", got < 0 ? errno : 0);
	*out = (size_t)got;
	return is_right(life, life->memory, (size_t)got);
}

static bool answer_round(struct life *life, unsigned int number)
{
	unsigned char answer = (unsigned char)number;
	size_t got;

	for (size_t left = life->plan->bytes[number]; left; left -= got) {
		if (!receive_part(life, left, &got))
			return false;
	}
	/* Who is told by a send that the peer is gone has been told. */
	return send(life->fd, &answer, 1, 0) == 1 || end_with(life, "answer", errno);
}

static void lead_receiver(struct life *life)
{
	uint64_t next = 0;
	unsigned int i;
	size_t got;

	for (i = 0; i < life->plan->rounds; i++) {
		begin_step(life);
		if (!answer_round(life, i))
			return;
	}
	for (next = life->at;;) {
		if (life->at >= next && i < life->plan->rounds + life->plan->messages) {
			begin_step(life);
			next += life->plan->bytes[i++];
		}
		pause_at_random(life, life->plan->lazy);
		if (!receive_part(life, 1 + random_next(&life->random) % MESSAGE_BYTES_MAX, &got))
			break;
	}
	while (life->out->step < 2 + life->plan->rounds + life->plan->messages)
		begin_step(life);
	if (!life->out->error && life->plan->confirms)
		(void)!send(life->fd, &life->at, CONFIRM_BYTES, 0);
	close(life->fd);
}

/* Both ----------------------------------------------------------------------------------------------------------------- */

int live(enum end end, struct board *board, int messages)
{
	struct life life = { .board = board,
			     .plan = &board->plan,
			     .out = &board->end[end],
			     .end = end,
			     .fd = -1,
			     .epoll = -1 };

	life.out->pid = getpid();
	life.random = board->plan.seed * 3 + end;
	life.memory =
		mmap(NULL, BUFFERS * MESSAGE_BYTES_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (life.memory == MAP_FAILED)
		return 3;
	if (!meet(&life, messages))
		return 0;
	if (end == SENDER)
		lead_sender(&life);
	else
		lead_receiver(&life);
	return 0;
}

int serve(enum end end, struct board *board, int control, int messages)
{
	char byte;

	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(control, &byte, 1) == 1) {
		struct message message = { .what = ENDED, .end = end };

		message.pid = fork();
		if (!message.pid) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			close(control);
			exit(live(end, board, messages));
		}
		if (waitpid(message.pid, &message.status, 0) != message.pid ||
		    write(messages, &message, sizeof(message)) != sizeof(message))
			return 3;
	}
	return 0;
}
