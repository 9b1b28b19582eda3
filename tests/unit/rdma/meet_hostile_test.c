/* SPDX-License-Identifier: MIT */
/*
 * Impostors and liars at the rendezvous, and a process that has run out of something. Each is refused in one call that does
 * not wait, no descriptor and no mapping stays behind, and where the offer stands, the real peer still meets.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "../refuse_testing.h"
#include "meet_testing.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define DESCRIPTORS_MAX 253 /* of one message, as the kernel has it */

static int offer, visitor, descriptors_before;

static int make_offer(void **state)
{
	if (connect_ends(state))
		return -1;
	descriptors_before = open_descriptors();
	visitor = -1;
	offer = meet_offer(&connecting);
	return offer < 0;
}

static int end_offer(void **state)
{
	int before;

	if (visitor >= 0)
		close(visitor);
	close(offer);
	before = descriptors_before;
	descriptors_before = open_descriptors();
	if (descriptors_before != before)
		print_error("%d descriptors left behind\n", descriptors_before - before);
	close_ends(state);
	return descriptors_before != before;
}

static int pick_up(struct channel *out)
{
	return meet_pick_up(&connecting, offer, &visitor, out);
}

static void expect_picked_up(int with)
{
	struct channel taken;

	assert_int_equal(pick_up(&taken), with);
}

/* After all that: the real peer comes, and meets. */
static void expect_still_meets(void)
{
	struct channel made, taken;

	assert_int_equal(channel_make(&made, RING), 0);
	assert_int_equal(meet_hand_over(&accepting, &made, offer, &visitor), 0);
	assert_int_equal(pick_up(&taken), 0);
	assert_memory_equal(made.header->nonce, taken.header->nonce, CHANNEL_NONCE_BYTES);
	channel_close(&made);
	channel_close(&taken);
}

/* Messages ---------------------------------------------------------------------------------------------------------- */

/* Sends a message with `count` descriptors on a socket. */
static void say(int to, const void *bytes, size_t length, const int *given, size_t count)
{
	static char control[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))];
	struct iovec iov = { (void *)bytes, length };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (count) {
		struct cmsghdr *head = (struct cmsghdr *)control;

		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(count * sizeof(int));
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(head), given, count * sizeof(int));
	}
	assert_int_equal(sendmsg(to, &message, MSG_DONTWAIT), length);
}

/* A visitor of the right user who brings this. The descriptors are closed. */
static void bring(const void *bytes, size_t length, const int *given, size_t count)
{
	int reached = meet_reach(&accepting);

	assert_true(reached >= 0);
	expect_picked_up(-EAGAIN); /* he is let in */
	say(reached, bytes, length, given, count);
	close(reached);
	for (size_t i = 0; i < count; i++)
		close(given[i]);
}

static int good_segment(uint8_t *nonce)
{
	struct channel made;
	int fd;

	assert_int_equal(channel_make(&made, RING), 0);
	fd = made.fd;
	made.fd = -1;
	memcpy(nonce, made.header->nonce, CHANNEL_NONCE_BYTES);
	channel_close(&made);
	return fd;
}

static void messages_of_the_wrong_length_are_refused(void **state)
{
	static const size_t lengths[] = { 0, 1, CHANNEL_NONCE_BYTES - 1, CHANNEL_NONCE_BYTES + 1, 4096, 100000 };
	static uint8_t bytes[100000];

	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		int fd = good_segment(bytes);

		bring(bytes, lengths[i], &fd, 1);
		expect_picked_up(-EPROTO);
		bring(bytes, lengths[i], NULL, 0);
		expect_picked_up(-EPROTO);
	}
	expect_picked_up(-EAGAIN);
	expect_still_meets();
}

static void a_nonce_without_a_segment_is_refused(void **state)
{
	uint8_t nonce[CHANNEL_NONCE_BYTES];

	close(good_segment(nonce));
	bring(nonce, sizeof(nonce), NULL, 0);
	expect_picked_up(-EPROTO);
	expect_still_meets();
}

static void another_nonce_is_refused(void **state)
{
	uint8_t nonce[CHANNEL_NONCE_BYTES];
	int fd = good_segment(nonce);

	nonce[CHANNEL_NONCE_BYTES - 1] ^= 1;
	bring(nonce, sizeof(nonce), &fd, 1);
	expect_picked_up(-EPROTO);
	expect_still_meets();
}

static void more_than_one_descriptor_is_refused_and_none_is_kept(void **state)
{
	static const size_t counts[] = { 2, 3, 4, 50, DESCRIPTORS_MAX };

	for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
		int given[DESCRIPTORS_MAX];
		uint8_t nonce[CHANNEL_NONCE_BYTES];

		given[0] = good_segment(nonce);
		for (size_t j = 1; j < counts[i]; j++)
			given[j] = dup(given[0]);
		bring(nonce, sizeof(nonce), given, counts[i]);
		expect_picked_up(-EPROTO);
	}
	expect_still_meets();
}

static int opened(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

/* The same file once more, with other rights. */
static int opened_again(int fd, int flags)
{
	char path[64];
	int again;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = opened(path, flags);
	close(fd);
	return again;
}

/* The same contents with one seal more. */
static int sealed_further(int fd, int seal)
{
	int copy = memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct channel_header header;

	assert_true(copy >= 0);
	assert_int_equal(pread(fd, &header, sizeof(header), 0), sizeof(header));
	assert_int_equal(ftruncate(copy, CHANNEL_HEADER_BYTES + 2 * RING + 2 * SOURCE_AREA_BYTES), 0);
	assert_int_equal(pwrite(copy, &header, sizeof(header), 0), sizeof(header));
	assert_int_equal(fcntl(copy, F_ADD_SEALS, SEALS | seal), 0);
	close(fd);
	return copy;
}

static void descriptors_that_are_no_segment_are_refused(void **state)
{
	uint8_t nonce[CHANNEL_NONCE_BYTES] = { 0 };
	int others[8];

	assert_int_equal(pipe(others), 0);
	others[2] = opened("/dev/null", O_RDWR);
	others[3] = opened("/", O_RDONLY | O_DIRECTORY);
	others[4] = eventfd(0, 0);
	others[5] = epoll_create1(0);
	others[6] = socket(AF_INET, SOCK_STREAM, 0);
	others[7] = opened("/proc/self/status", O_RDONLY);
	for (int i = 0; i < 8; i++) {
		bring(nonce, sizeof(nonce), &others[i], 1);
		expect_picked_up(-EPROTO);
	}
	expect_still_meets();
}

static void segments_with_too_few_rights_are_refused(void **state)
{
	uint8_t nonce[CHANNEL_NONCE_BYTES];
	struct channel taken;
	int fd = opened_again(good_segment(nonce), O_RDONLY);

	bring(nonce, sizeof(nonce), &fd, 1);
	assert_true(pick_up(&taken) < 0);
	fd = opened_again(good_segment(nonce), O_PATH);
	bring(nonce, sizeof(nonce), &fd, 1);
	expect_picked_up(-EPROTO);
	fd = sealed_further(good_segment(nonce), F_SEAL_FUTURE_WRITE);
	bring(nonce, sizeof(nonce), &fd, 1);
	assert_true(pick_up(&taken) < 0);
	expect_still_meets();
}

/* Visitors ---------------------------------------------------------------------------------------------------------- */

static void a_silent_visitor_is_not_waited_for(void **state)
{
	int reached = meet_reach(&accepting);

	assert_true(reached >= 0);
	for (int i = 0; i < 100; i++)
		expect_picked_up(-EAGAIN);
	close(reached); /* in the middle */
	expect_picked_up(-EPROTO);
	expect_picked_up(-EAGAIN);
	expect_still_meets();
}

static int come_in_numbers(void)
{
	int reached = 0, count = 0;

	while ((reached = meet_reach(&accepting)) >= 0)
		count++; /* they stay until the process ends */
	return reached == -EAGAIN && count ? count : 99;
}

static void a_crowd_of_others_is_sent_away(void **state)
{
	int others;

	if (getuid()) {
		skip();
		return;
	}
	others = as_nobody(come_in_numbers);
	assert_in_range(others, 1, 20);
	/* Whoever comes while it is crowded does not wait. */
	assert_int_equal(meet_reach(&accepting), -EAGAIN);
	for (int i = 0; i < others; i++)
		expect_picked_up(-EPERM);
	expect_still_meets();
}

/* The name is taken by somebody who does not listen; what it looks like is copied from a real offer. */
static void a_name_in_other_hands_is_left_alone(void **state)
{
	struct sockaddr_un name;
	socklen_t bytes = sizeof(name);
	int fd;

	assert_int_equal(getsockname(offer, (struct sockaddr *)&name, &bytes), 0);
	close(offer);
	fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&name, bytes), 0);
	assert_int_equal(meet_offer(&connecting), -EADDRINUSE);
	assert_int_equal(meet_reach(&accepting), -ECONNREFUSED);
	close(fd);
	offer = meet_offer(&connecting);
	assert_true(offer >= 0);
	expect_still_meets();
}

/* A thread may make sockets in several of them, with the same addresses: one of another is a stranger's. */
static void connections_of_two_network_namespaces_do_not_meet(void **state)
{
	accepting.space = connecting.space + 1;
	assert_int_equal(meet_reach(&accepting), -ECONNREFUSED);
	accepting.space = connecting.space;
	expect_still_meets();
}

/* Users that a user namespace does not know all look alike: none of them proves anything. */
static int meet_where_all_look_alike(void)
{
	struct channel taken;
	int rc;

	if (unshare(CLONE_NEWUSER))
		return 98;
	if (raise(SIGSTOP)) /* the impostor comes */
		return 97;
	rc = pick_up(&taken);
	return rc == -EPERM ? 0 : rc == 0 ? 1 : -rc;
}

static void users_unknown_to_the_namespace_prove_nothing(void **state)
{
	pid_t child;
	int status;

	if (getuid()) {
		skip();
		return;
	}
	child = fork();
	if (!child)
		_exit(meet_where_all_look_alike());
	assert_int_equal(waitpid(child, &status, WUNTRACED), child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 98) {
		print_message("no user namespaces here\n");
		skip();
		return;
	}
	assert_true(WIFSTOPPED(status));
	assert_int_equal(as_nobody(hand_over_as_impostor), 0);
	kill(child, SIGCONT);
	assert_int_equal(exit_status(child), 0);
}

/* A socket whose last close waits as long as its peer likes: bytes that nobody receives, and SO_LINGER. */
static int make_lingering(void)
{
	struct linger linger = { .l_onoff = 1, .l_linger = 60 };
	int value = 4096, listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t bytes = sizeof(at);
	static char data[1 << 20];

	setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &value, sizeof(value));
	if (bind(listener, (struct sockaddr *)&at, sizeof(at)) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&at, &bytes) || connect(fd, (struct sockaddr *)&at, bytes))
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	return send(fd, data, sizeof(data), MSG_DONTWAIT) > 0 ? fd :
								-1; /* the listener stays open: it is never accepted */
}

static int bring_lingering(void)
{
	int reached = meet_reach(&accepting), fd = make_lingering();
	struct channel channel = { .header = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
				   .fd = fd };

	return reached < 0 || fd < 0 ? 1 : meet_give(reached, &channel) == -EAGAIN ? 0 : 2;
}

static bool kernel_refuses_descriptors(void)
{
	int on = 1;

	return !setsockopt(offer, SOL_SOCKET, 83 /* SO_PASSRIGHTS */, &on, sizeof(on)) && !(on = 0) &&
	       !setsockopt(offer, SOL_SOCKET, 83, &on, sizeof(on));
}

static void a_stranger_can_not_leave_a_socket_that_lingers(void **state)
{
	if (getuid() || !kernel_refuses_descriptors()) {
		skip();
		return;
	}
	assert_int_equal(as_nobody(bring_lingering), 0);
	expect_picked_up(-EPERM);
	expect_still_meets();
}

/* Running out ------------------------------------------------------------------------------------------------------- */

static bool limit(int resource, rlim_t to)
{
	struct rlimit now;

	if (getrlimit((__rlimit_resource_t)resource, &now))
		return false;
	now.rlim_cur = to < now.rlim_max ? to : now.rlim_max;
	return !setrlimit((__rlimit_resource_t)resource, &now);
}

static int without_descriptors(void)
{
	int reached = meet_reach(&accepting), before;
	struct channel channel;
	uid_t owner;

	before = open_descriptors();
	if (reached < 0 || !limit(RLIMIT_NOFILE, 0))
		return 1;
	if (channel_make(&channel, RING) != -EMFILE || meet_offer(&accepting) != -EMFILE ||
	    meet_reach(&accepting) != -EMFILE || meet_owner(&connecting, &owner) != -EMFILE)
		return 2;
	if (pick_up(&channel) != -EMFILE)
		return 3;
	return !limit(RLIMIT_NOFILE, 1024) || open_descriptors() != before ? 4 : 0;
}

/* The visitor is in, and there is no room for what he brings. */
static int without_descriptors_for_the_segment(void)
{
	struct channel made;
	int reached = meet_reach(&accepting), before;

	if (reached < 0 || pick_up(&made) != -EAGAIN || channel_make(&made, RING) || meet_give(reached, &made))
		return 1;
	close(reached);
	channel_close(&made);
	before = open_descriptors();
	if (!limit(RLIMIT_NOFILE, 0) || pick_up(&made) != -EPROTO)
		return 2;
	/* One less: the visitor is gone. */
	return !limit(RLIMIT_NOFILE, 1024) || open_descriptors() != before - 1 ? 3 : 0;
}

static int without_memory(void)
{
	struct channel made, taken;
	int before;

	if (channel_make(&made, LANE_RING_MAX) || meet_hand_over(&accepting, &made, offer, &visitor))
		return 1;
	channel_close(&made);
	before = open_descriptors();
	if (!limit(RLIMIT_AS, 0))
		return 2;
	if (channel_make(&taken, LANE_RING_MAX) != -ENOMEM)
		return 3;
	if (pick_up(&taken) != -ENOMEM)
		return 4;
	/* One less: the visitor is gone. */
	return !limit(RLIMIT_AS, RLIM_INFINITY) || open_descriptors() != before - 1 ? 5 : 0;
}

/* The limit of file sizes comes with a signal that would end a program that has never made a file. */
static int without_file_sizes(void)
{
	struct channel made;
	int before = open_descriptors();

	if (!limit(RLIMIT_FSIZE, 4096))
		return 1;
	return channel_make(&made, RING) == -EFBIG && open_descriptors() == before ? 0 : 2;
}

static int without_memfd(void)
{
	struct channel made;
	int before = open_descriptors();

	if (!refuse_call(SYS_memfd_create, ENOSYS))
		return 1;
	return channel_make(&made, RING) == -ENOSYS && open_descriptors() == before ? 0 : 2;
}

/* In a child, whose limits are its own. The child shares the offer, and each leaves it in order. */
static void expect_in_child(int (*act)(void))
{
	pid_t child = fork();

	if (!child)
		_exit(act());
	assert_int_equal(exit_status(child), 0);
}

static void no_descriptors_left_is_told(void **state)
{
	expect_in_child(without_descriptors);
}

static void no_descriptor_for_the_segment_is_told(void **state)
{
	expect_in_child(without_descriptors_for_the_segment);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool sanitized = true;
#else
static const bool sanitized = false;
#endif

static void no_memory_left_is_told(void **state)
{
	if (sanitized)
		skip(); /* the sanitizer itself would have none */
	else
		expect_in_child(without_memory);
}

static void a_limit_of_file_sizes_ends_nobody(void **state)
{
	expect_in_child(without_file_sizes);
}

static void a_refused_memfd_is_told(void **state)
{
	expect_in_child(without_memfd);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_offer, end_offer)
	const struct CMUnitTest tests[] = {
		TEST(messages_of_the_wrong_length_are_refused),
		TEST(a_nonce_without_a_segment_is_refused),
		TEST(another_nonce_is_refused),
		TEST(more_than_one_descriptor_is_refused_and_none_is_kept),
		TEST(descriptors_that_are_no_segment_are_refused),
		TEST(segments_with_too_few_rights_are_refused),
		TEST(a_silent_visitor_is_not_waited_for),
		TEST(a_crowd_of_others_is_sent_away),
		TEST(a_stranger_can_not_leave_a_socket_that_lingers),
		TEST(a_name_in_other_hands_is_left_alone),
		TEST(connections_of_two_network_namespaces_do_not_meet),
		TEST(users_unknown_to_the_namespace_prove_nothing),
		TEST(no_descriptors_left_is_told),
		TEST(no_descriptor_for_the_segment_is_told),
		TEST(no_memory_left_is_told),
		TEST(a_limit_of_file_sizes_ends_nobody),
		TEST(a_refused_memfd_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
