/* SPDX-License-Identifier: MIT */
/* Zerocopy notices: ranges, order, wrap of the numbers, notices that are not ours, and the pauses learnt from them. */
#define _GNU_SOURCE
#include <time.h>

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "preload/choose.h"
#include "preload/notice.h"
#include "preload/zerocopy.h"

static struct zerocopy_send ring[ZEROCOPY_RING];
static struct conn conn;

static int fresh(void **state)
{
	memset(&conn, 0, sizeof(conn));
	memset(ring, 0, sizeof(ring));
	conn.zerocopy.ring = ring;
	conn.policy = PATH_ZEROCOPY;
	conn.peer_key = 77;
	return stats ? 0 : stats_start();
}

/* As if `count` sends of 100 bytes were with the kernel, the first numbered `first`. */
static void outstanding(uint32_t first, uint32_t count)
{
	conn.zerocopy.oldest = first;
	conn.zerocopy.next = first + count;
	conn.zerocopy.bytes = 100ul * count;
	atomic_store(&conn.zerocopy.used, true);
	atomic_fetch_add(&conn_zerocopy_used, 1);
	for (uint32_t i = 0; i < count; i++)
		ring[(first + i) % ZEROCOPY_RING] = (struct zerocopy_send){ .bytes = 100 };
}

static void complete(uint32_t first, uint32_t last, bool copied)
{
	notice_complete(&conn, &(struct notice){ first, last, copied });
}

static void ranges_complete_in_any_order(void **state)
{
	outstanding(0, 10);
	complete(5, 9, false);
	assert_int_equal(conn.zerocopy.oldest, 0);
	assert_int_equal(conn.zerocopy.bytes, 500);
	complete(0, 4, false);
	assert_int_equal(conn.zerocopy.oldest, 10);
	assert_int_equal(conn.zerocopy.bytes, 0);
	assert_false(zerocopy_used(&conn));
}

static void ranges_include_both_ends(void **state)
{
	outstanding(0, 3);
	complete(1, 1, false);
	assert_true(ring[1].done);
	assert_false(ring[0].done);
	assert_false(ring[2].done);
	complete(0, 2, false);
	assert_false(zerocopy_used(&conn));
}

static void numbers_wrap(void **state)
{
	outstanding(UINT32_MAX - 1, 4);
	complete(UINT32_MAX - 1, 1, false);
	assert_int_equal(conn.zerocopy.oldest, 2);
	assert_int_equal(conn.zerocopy.bytes, 0);
}

static void foreign_numbers_are_ignored(void **state)
{
	outstanding(10, 2);
	complete(12, 20, false);
	complete(3, 9, false);
	assert_int_equal(conn.zerocopy.bytes, 200);
	complete(3, 10, false);
	assert_int_equal(conn.zerocopy.bytes, 100);
	complete(11, 11, false);
	assert_int_equal(conn.zerocopy.bytes, 0);
}

static void told_twice_counts_once(void **state)
{
	outstanding(0, 2);
	complete(0, 0, false);
	complete(0, 1, false);
	assert_int_equal(conn.zerocopy.bytes, 0);
}

static void copied_pauses_the_path_ever_longer(void **state)
{
	uint32_t pauses = 0, before = 0;

	for (uint32_t i = 0; i < 14; i++) {
		outstanding(i, 1);
		complete(i, i, true);
		if (!conn.zerocopy.pause)
			continue;
		assert_true(conn.zerocopy.pause > before);
		assert_int_equal(conn.zerocopy.why, REASON_KERNEL_COPIED);
		before = conn.zerocopy.pause;
		conn.zerocopy.pause = 0;
		pauses++;
	}
	assert_true(pauses > 2);
}

static void auto_remembers_the_destination(void **state)
{
	conn.policy = PATH_AUTO;
	conn.peer_key = 79; /* of this test alone: there is no forgetting */
	assert_false(choose_is_copied(79));
	outstanding(0, 1);
	complete(0, 0, true);
	assert_true(choose_is_copied(79));
	assert_false(choose_is_copied(78));
}

static void not_copied_ends_the_hysteresis(void **state)
{
	outstanding(0, 20);
	complete(0, 6, true);
	complete(7, 7, false);
	assert_int_equal(conn.zerocopy.copied, 0);
	assert_int_equal(conn.zerocopy.pause, 0);
}

/* A message as the kernel puts it into the error queue. */
struct queued {
	struct msghdr message;
	char control[CMSG_SPACE(sizeof(struct sock_extended_err))] __attribute__((aligned(8)));
};

static struct sock_extended_err *queue(struct queued *queued, int level, int type, uint8_t origin)
{
	struct sock_extended_err error = { .ee_origin = origin,
					   .ee_info = 3,
					   .ee_data = 5,
					   .ee_code = SO_EE_CODE_ZEROCOPY_COPIED };
	struct cmsghdr *at;

	memset(queued, 0, sizeof(*queued));
	queued->message.msg_control = queued->control;
	queued->message.msg_controllen = sizeof(queued->control);
	at = CMSG_FIRSTHDR(&queued->message);
	at->cmsg_level = level;
	at->cmsg_type = type;
	at->cmsg_len = CMSG_LEN(sizeof(error));
	memcpy(CMSG_DATA(at), &error, sizeof(error));
	return (struct sock_extended_err *)CMSG_DATA(at);
}

static void notices_of_both_families_are_read(void **state)
{
	struct queued queued;
	struct notice notice;

	queue(&queued, SOL_IP, IP_RECVERR, SO_EE_ORIGIN_ZEROCOPY);
	assert_true(notice_parse(&queued.message, &notice));
	assert_int_equal(notice.first, 3);
	assert_int_equal(notice.last, 5);
	assert_true(notice.copied);
	queue(&queued, SOL_IPV6, IPV6_RECVERR, SO_EE_ORIGIN_ZEROCOPY);
	assert_true(notice_parse(&queued.message, &notice));
	queue(&queued, SOL_IP, IP_RECVERR, SO_EE_ORIGIN_ICMP);
	assert_false(notice_parse(&queued.message, &notice));
}

static void the_program_gets_its_own_notices_from_zero(void **state)
{
	struct queued queued;
	struct sock_extended_err *error = queue(&queued, SOL_IP, IP_RECVERR, SO_EE_ORIGIN_ZEROCOPY);

	outstanding(0, 3); /* ours: 0, 1, 2 */
	assert_true(notice_for_program(&conn, &queued.message));
	assert_int_equal(error->ee_info, 0);
	assert_int_equal(error->ee_data, 2);
	error->ee_info = 0;
	error->ee_data = 2;
	assert_false(notice_for_program(&conn, &queued.message));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(ranges_complete_in_any_order, fresh),
		cmocka_unit_test_setup(ranges_include_both_ends, fresh),
		cmocka_unit_test_setup(numbers_wrap, fresh),
		cmocka_unit_test_setup(foreign_numbers_are_ignored, fresh),
		cmocka_unit_test_setup(told_twice_counts_once, fresh),
		cmocka_unit_test_setup(copied_pauses_the_path_ever_longer, fresh),
		cmocka_unit_test_setup(auto_remembers_the_destination, fresh),
		cmocka_unit_test_setup(not_copied_ends_the_hysteresis, fresh),
		cmocka_unit_test_setup(notices_of_both_families_are_read, fresh),
		cmocka_unit_test_setup(the_program_gets_its_own_notices_from_zero, fresh),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
