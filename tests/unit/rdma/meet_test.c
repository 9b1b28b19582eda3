/* SPDX-License-Identifier: MIT */
/* The rendezvous, over real connections: it meets, it refuses impostors and nonsense, and it leaves nothing behind. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "meet_testing.h"

static int visitor = -1;

static void meets_and_talks(void)
{
	struct channel made, taken;
	char got[6];
	size_t count;
	int offer = meet_offer(&connecting);

	assert_true(offer >= 0);
	assert_int_equal(meet_pick_up(&connecting, offer, &visitor, &taken), -EAGAIN);
	assert_int_equal(channel_make(&made, RING), 0);
	assert_int_equal(meet_hand_over(&accepting, &made, offer, &visitor), 0);
	assert_int_equal(meet_pick_up(&connecting, offer, &visitor, &taken), 0);
	close(offer);
	atomic_store(&made.in.shared->reader, 1);
	atomic_store(&taken.in.shared->reader, 1);
	assert_true(lane_take_over(&taken.out));
	assert_int_equal(lane_put(&taken.out, &(struct iovec){ (void *)"hello", 6 }, 1, 0), 6);
	assert_int_equal(lane_get(&made.in, &(struct iovec){ got, 6 }, 1, false, &count), LANE_DATA);
	assert_string_equal(got, "hello");
	assert_true(lane_take_over(&made.out));
	assert_int_equal(lane_put(&made.out, &(struct iovec){ (void *)"there", 6 }, 1, 0), 6);
	assert_int_equal(lane_get(&taken.in, &(struct iovec){ got, 6 }, 1, false, &count), LANE_DATA);
	assert_string_equal(got, "there");
	channel_close(&taken);
	channel_close(&made);
}

static void both_ends_meet(void **state)
{
	meets_and_talks();
}

static void ipv6_and_mapped_ends_meet(void **state)
{
	close_ends(state);
	assert_int_equal(connect_by(AF_INET6, AF_INET6), 0);
	meets_and_talks();
	close_ends(state);
	assert_int_equal(connect_by(AF_INET6, AF_INET), 0);
	meets_and_talks();
}

static void a_peer_without_zc_is_found_out_at_once(void **state)
{
	struct channel made;

	assert_int_equal(channel_make(&made, RING), 0);
	assert_int_equal(meet_hand_over(&accepting, &made, -1, NULL), -ECONNREFUSED);
	channel_close(&made);
}

static void an_offer_vanishes_with_its_descriptor(void **state)
{
	struct channel made;
	int offer = meet_offer(&connecting);

	assert_int_equal(meet_offer(&connecting), -EADDRINUSE);
	close(offer);
	assert_int_equal(channel_make(&made, RING), 0);
	assert_int_equal(meet_hand_over(&accepting, &made, -1, NULL), -ECONNREFUSED);
	channel_close(&made);
}

static int ready[2], leave[2];

static int squat(void)
{
	char byte = 0;
	int offer = meet_offer(&connecting);

	return offer < 0 || write(ready[1], &byte, 1) != 1 || read(leave[0], &byte, 1) < 0;
}

static void another_user_who_hands_over_is_refused(void **state)
{
	struct channel taken;
	int offer;

	if (getuid()) {
		skip();
		return;
	}
	offer = meet_offer(&connecting);
	/* He proves that the offering end is genuine, and is himself none of the connection's. */
	assert_int_equal(as_nobody(hand_over_as_impostor), 0);
	assert_int_equal(meet_pick_up(&connecting, offer, &visitor, &taken), -EPERM);
	assert_int_equal(meet_pick_up(&connecting, offer, &visitor, &taken), -EAGAIN);
	close(offer);
}

static void another_user_who_squats_the_name_gets_nothing(void **state)
{
	struct channel made;
	char byte;
	pid_t child;

	if (getuid()) {
		skip();
		return;
	}
	assert_int_equal(pipe(ready) | pipe(leave), 0);
	child = fork();
	if (!child) {
		close(leave[1]);
		_exit(become_nobody() ? squat() : 99);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	assert_int_equal(meet_offer(&connecting), -EADDRINUSE);
	assert_int_equal(channel_make(&made, RING), 0);
	assert_int_equal(meet_hand_over(&accepting, &made, -1, NULL), -EPERM);
	channel_close(&made);
	close(leave[1]);
	waitpid(child, NULL, 0);
	close(leave[0]);
	close(ready[0]);
	close(ready[1]);
}

static void the_owner_of_the_other_end_is_told(void **state)
{
	struct meet_names wrong = connecting;
	uid_t owner = 12345;

	assert_int_equal(meet_owner(&connecting, &owner), 0);
	assert_int_equal(owner, getuid());
	((struct sockaddr_in *)&wrong.local)->sin_port ^= htons(1);
	assert_int_equal(meet_owner(&wrong, &owner), -ENOENT);
}

/* Segments that are not what they should be. */
static int segment(size_t bytes, int seals, const struct channel_header *header)
{
	int fd = memfd_create("bad", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	if (header)
		assert_int_equal(pwrite(fd, header, sizeof(*header), 0), sizeof(*header));
	if (seals)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static void expect_refused(int fd, int with)
{
	struct channel channel;

	assert_int_equal(channel_take(&channel, fd), with);
	close(fd);
}

static void bad_segments_are_refused(void **state)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	const size_t whole = CHANNEL_HEADER_BYTES + 2 * RING + 2 * SOURCE_AREA_BYTES;
	struct channel_header good = { .magic = CHANNEL_MAGIC, .version = CHANNEL_VERSION, .ring_bytes = RING };
	struct channel_header bad = good;
	struct channel channel;
	int fd = segment(whole, seals, &good);

	assert_int_equal(channel_take(&channel, fd), 0);
	channel_close(&channel);
	close(fd);
	expect_refused(segment(whole, 0, &good), -EPROTO);
	expect_refused(segment(whole, F_SEAL_GROW | F_SEAL_SEAL, &good), -EPROTO);
	expect_refused(segment(whole, seals | F_SEAL_WRITE, &good), -EPROTO);
	expect_refused(segment(whole - 4096, seals, &good), -EPROTO);
	expect_refused(segment(100, seals, NULL), -EPROTO);
	bad.ring_bytes = RING + 1;
	expect_refused(segment(whole, seals, &bad), -EPROTO);
	bad.ring_bytes = 0;
	expect_refused(segment(CHANNEL_HEADER_BYTES, seals, &bad), -EPROTO);
	bad = good;
	bad.version++;
	expect_refused(segment(whole, seals, &bad), -EPROTONOSUPPORT);
	bad = good;
	bad.magic++;
	expect_refused(segment(whole, seals, &bad), -EPROTO);
	expect_refused(open("/dev/zero", O_RDWR | O_CLOEXEC), -EPROTO);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, connect_ends, close_ends)
	const struct CMUnitTest tests[] = {
		TEST(both_ends_meet),
		TEST(ipv6_and_mapped_ends_meet),
		TEST(a_peer_without_zc_is_found_out_at_once),
		TEST(an_offer_vanishes_with_its_descriptor),
		TEST(another_user_who_hands_over_is_refused),
		TEST(another_user_who_squats_the_name_gets_nothing),
		TEST(the_owner_of_the_other_end_is_told),
		TEST(bad_segments_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
