/* SPDX-License-Identifier: MIT */
/* The plug-in's own files over a device by hand: what a peer may reach, room for moves, sinks, devices that are gone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "common/capability.h"
#include "common/sys.h"
#include "fabric_testing.h"

#define PAGE 4096u
#define MESSAGE 20000u
#define ROUNDS 20000

static struct ibv_device device, newer;
static struct channel channels[2];
static struct verbs_conn *ends[2]; /* the first one sends */
static _Alignas(4096) uint8_t source[8 * PAGE], sink[8 * PAGE];

/* As librdmacm does: the last id of a device that is gone closes it. */
static struct {
	struct ibv_context *context;
	int ids;
	bool is_gone;
} opened;

int rdma_destroy_id(struct rdma_cm_id *id)
{
	if (id->verbs == opened.context && !--opened.ids && opened.is_gone)
		ibv_close_device(opened.context);
	free(id);
	return 0;
}

int ibv_close_device(struct ibv_context *context)
{
	close(context->cmd_fd);
	close(context->async_fd);
	memset(context, 0xff, sizeof(*context));
	free(context);
	opened.context = NULL;
	return 0;
}

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(1, sizeof(*list));

	list[0] = opened.is_gone ? &newer : &device;
	*count = 1;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *of)
{
	return "fabric";
}

static int begin(void **state)
{
	opened.context = open_fabric(&device);
	opened.is_gone = false;
	for (int end = 0; end < 2; end++)
		ends[end] = open_end(opened.context, &channels[end]);
	opened.ids = 2;
	join(ends);
	atomic_store(&channels[0].out.shared->on_ring, 1);
	memset(sink, 0, sizeof(sink));
	for (size_t i = 0; i < sizeof(source); i++)
		source[i] = (uint8_t)(i * 7 + 1);
	return 0;
}

static int finish(void **state)
{
	opened.is_gone = true; /* nothing stays, as what has broken looks for devices that are gone */
	for (int end = 0; end < 2; end++) {
		if (ends[end]) {
			verbs_give_up(ends[end]);
			verbs_close(ends[end]);
		}
		channel_close(&channels[end]);
	}
	return 0;
}

/* What a peer may reach --------------------------------------------------------------------------------------------- */

static struct verbs_region *expose_part(uint32_t *key)
{
	struct verbs_region *region;
	struct verbs_remote told;

	assert_int_equal(verbs_expose(ends[0], source + 1000, MESSAGE, &told, &region), 0);
	assert_int_equal(told.address, (uintptr_t)source + 1000);
	*key = told.key;
	return region;
}

static int read_exposed(size_t from, uint32_t key)
{
	const struct verbs_remote remote = { (uintptr_t)source + from, key };
	const struct iovec iov = { sink, 8 };
	struct verbs_got got;

	assert_int_equal(verbs_get(ends[1], &remote, 8, &iov, 1, 0, 0, 1), 8);
	verbs_poll(ends[1]);
	assert_int_equal(verbs_got(ends[1], &got), 1);
	return got.error;
}

static void announced_bytes_can_be_read(void **state)
{
	uint32_t key;
	struct verbs_region *region = expose_part(&key);

	assert_int_equal(read_exposed(1000, key), 0);
	assert_int_equal(read_exposed(1000 + MESSAGE - 8, key), 0);
	assert_memory_equal(sink, source + 1000 + MESSAGE - 8, 8);
	verbs_hide(ends[0], region);
}

/* As the accepting end's grant is, when it has just met. */
static void trip_is_measured_behind_what_is_under_way(void **state)
{
	uint32_t key;
	struct verbs_region *region = expose_part(&key);
	const struct verbs_remote remote = { (uintptr_t)source + 1000, key };
	const struct iovec iov = { sink, 8 };

	assert_int_equal(verbs_get(ends[1], &remote, 8, &iov, 1, 0, 0, 1), 8);
	assert_int_not_equal(verbs_trip(ends[1]), 0);
	verbs_hide(ends[0], region);
}

static void bytes_before_them_can_not(void **state)
{
	uint32_t key;
	struct verbs_region *region = expose_part(&key);

	assert_int_equal(read_exposed(999, key), -EACCES);
	verbs_hide(ends[0], region);
}

static void bytes_behind_them_can_not(void **state)
{
	uint32_t key;
	struct verbs_region *region = expose_part(&key);

	assert_int_equal(read_exposed(1000 + MESSAGE - 7, key), -EACCES);
	verbs_hide(ends[0], region);
}

/* Notices ----------------------------------------------------------------------------------------------------------- */

static void put(size_t bytes)
{
	const struct iovec iov = { source, bytes };

	assert_int_equal(lane_put(&channels[0].out, &iov, 1, 0), bytes);
}

/* The peer's program takes nothing, and so acknowledges nothing; its agent sleeps until something wakes it. */
static void a_move_goes_out_where_no_more_data_do(void **state)
{
	ssize_t stay = 0;

	for (int i = 0; i < 300 && !stay; i++) {
		put(64);
		stay = verbs_push(ends[0], 0);
	}
	assert_true(stay > 0);
	assert_int_equal(verbs_push(ends[0], 0), stay);
	assert_int_equal(verbs_push(ends[0], VERBS_SOLICITED), 0);
}

/* Sinks ------------------------------------------------------------------------------------------------------------- */

static struct verbs_region *offered, *exposed;
static uint32_t offer_number;

static uint64_t ring_end(void)
{
	return atomic_load(&channels[1].in.shared->tail);
}

static void offer_sink(void)
{
	assert_int_equal(verbs_offer(ends[1], sink + 16, MESSAGE, ring_end(), &offer_number, &offered), 0);
}

/* As a send does. Returns as verbs_fill(). */
static int fill(size_t bytes, uint32_t *number)
{
	struct verbs_remote told;
	int rc;

	assert_int_equal(verbs_expose(ends[0], source, bytes, &told, &exposed), 0);
	rc = verbs_fill(ends[0], source, bytes, exposed, number);
	verbs_hide(ends[0], exposed);
	verbs_invalidate(source, bytes);
	return rc;
}

static void end_offer(void)
{
	verbs_hide(ends[1], offered);
	verbs_invalidate(sink + 16, MESSAGE);
}

static int retract(void)
{
	int rc;

	while ((rc = verbs_retract(ends[1], offer_number)) == -EAGAIN)
		verbs_poll(ends[1]);
	return rc;
}

static void what_is_offered_is_filled(void **state)
{
	uint32_t number = 0;

	assert_int_equal(verbs_sink(ends[0]), 0);
	offer_sink();
	assert_int_equal(verbs_sink(ends[0]), MESSAGE);
	assert_int_equal(fill(MESSAGE, &number), 0);
	assert_int_equal(number, offer_number);
	assert_memory_equal(sink + 16, source, MESSAGE);
	assert_int_equal(sink[15] | sink[16 + MESSAGE], 0);
	/* Once. */
	assert_int_equal(verbs_sink(ends[0]), 0);
	assert_int_equal(fill(MESSAGE, &number), -EAGAIN);
	end_offer();
}

static void it_is_for_what_comes_first(void **state)
{
	uint32_t number;

	offer_sink();
	put(100);
	assert_int_equal(verbs_sink(ends[0]), 0);
	assert_int_equal(fill(1000, &number), -EAGAIN);
	end_offer();
}

static void it_is_not_for_a_lane_on_tcp(void **state)
{
	offer_sink();
	atomic_store(&channels[0].out.shared->on_ring, 0);
	assert_int_equal(verbs_sink(ends[0]), 0);
	end_offer();
}

static void what_was_taken_back_is_not_filled(void **state)
{
	uint32_t number;

	offer_sink();
	assert_int_equal(retract(), 0);
	assert_int_equal(verbs_sink(ends[0]), 0);
	assert_int_equal(fill(1000, &number), -EAGAIN);
	end_offer();
	offer_sink(); /* another one is */
	assert_int_equal(fill(1000, &number), 0);
	assert_int_equal(number, offer_number);
	end_offer();
}

static void what_is_being_filled_is_not_taken_back(void **state)
{
	uint32_t number;

	offer_sink();
	assert_int_equal(fill(1000, &number), 0);
	assert_int_equal(retract(), 1);
	end_offer();
}

/* Its answer would be taken for that of the next one. */
static void nothing_is_offered_before_the_answer(void **state)
{
	struct verbs_region *next;
	uint32_t number;

	offer_sink();
	assert_int_equal(verbs_retract(ends[1], offer_number), -EAGAIN);
	assert_int_equal(verbs_offer(ends[1], sink + 16, MESSAGE, ring_end(), &number, &next), -EAGAIN);
	assert_int_equal(retract(), 0);
	end_offer();
	offer_sink();
	end_offer();
}

/* What came meanwhile goes to the program by the ring: what is announced behind it would be written over it. */
static void an_end_that_has_moved_is_not_offered(void **state)
{
	struct verbs_region *next;
	uint32_t number;

	assert_int_equal(verbs_offer(ends[1], sink + 16, MESSAGE, ring_end() + 16, &number, &next), -EAGAIN);
	assert_int_equal(verbs_sink(ends[0]), 0);
	offer_sink();
	end_offer();
}

static void a_line_that_is_torn_is_no_offer(void **state)
{
	offer_sink();
	channels[0].out.shared->sink.address += 4096;
	assert_int_equal(verbs_sink(ends[0]), 0);
	end_offer();
}

static void more_than_was_offered_is_refused(void **state)
{
	uint32_t number;

	offer_sink();
	assert_int_equal(fill(MESSAGE + 1, &number), -EAGAIN);
	assert_int_equal(fill(MESSAGE, &number), 0);
	end_offer();
}

static void an_end_that_has_broken_offers_nothing(void **state)
{
	verbs_give_up(ends[1]);
	assert_int_equal(verbs_offer(ends[1], sink, MESSAGE, ring_end(), &offer_number, &offered), -ENOTCONN);
	assert_int_equal(verbs_retract(ends[1], 1), -ENOTCONN);
}

/* The producer has looked, and is about to claim: the page of that word is not to be written. */
static int answer_between;

static void take_back(int signal)
{
	mprotect(channels[0].header, CHANNEL_HEADER_BYTES, PROT_READ | PROT_WRITE);
	answer_between = retract();
}

static void a_claim_behind_the_taking_back_is_given_up(void **state)
{
	struct sigaction action = { .sa_handler = take_back }, before;
	uint32_t number;

	answer_between = -1;
	offer_sink();
	sigaction(SIGSEGV, &action, &before);
	assert_int_equal(mprotect(channels[0].header, CHANNEL_HEADER_BYTES, PROT_READ), 0);
	assert_int_equal(fill(1000, &number), -EAGAIN);
	sigaction(SIGSEGV, &before, NULL);
	assert_int_equal(answer_between, 0);
	end_offer();
}

/* A program that sends, while the other's receives end by themselves: nothing is written to memory that they have given back. */
static _Atomic bool done;
static _Atomic uint32_t filled; /* the number of the last one */
static _Atomic uint32_t looks;	/* at what is offered, that have ended */

static void *send_all_the_time(void *unused)
{
	struct verbs_remote told;
	struct verbs_region *region;
	uint32_t number;

	assert_int_equal(verbs_expose(ends[0], source, 256, &told, &region), 0);
	while (!atomic_load(&done)) {
		if (verbs_sink(ends[0]) && !verbs_fill(ends[0], source, 256, region, &number))
			atomic_store(&filled, number);
		atomic_fetch_add(&looks, 1);
		verbs_poll(ends[0]);
	}
	verbs_hide(ends[0], region);
	return NULL;
}

static void a_receive_that_ends_has_its_memory_to_itself(void **state)
{
	uint32_t taken_back = 0, came = 0;
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, send_all_the_time, NULL), 0);
	for (int i = 0; i < ROUNDS; i++) {
		offer_sink();
		for (int spin = i % 64; spin; spin--)
			verbs_poll(ends[1]);
		if (retract()) {
			uint32_t from = atomic_load(&looks);

			/* Until it is filled, or a look that was under way has let go of it: then each has seen the other. */
			while (atomic_load(&filled) != offer_number && atomic_load(&looks) - from < 2)
				sched_yield();
			if (atomic_load(&filled) == offer_number) {
				assert_memory_equal(sink + 16, source, 256);
				came++;
			}
		} else {
			taken_back++;
		}
		end_offer(); /* a write behind this would find no region, and break the queue pair */
		memset(sink, 0, 512);
	}
	atomic_store(&done, true);
	pthread_join(thread, NULL);
	assert_int_equal(verbs_state(ends[0], NULL), VERBS_UP);
	assert_int_equal(verbs_state(ends[1], NULL), VERBS_UP);
	assert_true(taken_back && came);
}

/* Devices that are gone --------------------------------------------------------------------------------------------- */

static int kept[8], dropped[8], put_at[4], kept_count, dropped_count, put_count;

static int keep(int fd)
{
	kept[kept_count++ % 8] = fd;
	return fd;
}

static void drop(int fd)
{
	dropped[dropped_count++ % 8] = fd;
}

static void put_there(int fd, int number)
{
	put_at[put_count++ % 4] = number;
	dup3(fd, number, O_CLOEXEC);
}

static bool was_dropped(int fd)
{
	for (int i = 0; i < dropped_count && i < 8; i++) {
		if (dropped[i] == fd)
			return true;
	}
	return false;
}

static void a_device_that_is_gone_is_let_go_by_its_last_connection(void **state)
{
	static const struct verbs_owner owner = { .keep = keep, .drop = drop, .put = put_there };
	int command = opened.context->cmd_fd, events = opened.context->async_fd;

	verbs_owner = owner;
	opened.is_gone = true;
	for (int end = 0; end < 2; end++) {
		verbs_give_up(ends[end]);
		dropped_count = 0;
		verbs_close(ends[end]);
		ends[end] = NULL;
		assert_int_equal(put_count, 2 * end); /* while somebody has it, it stays */
	}
	assert_int_equal(put_at[0], command);
	assert_int_equal(put_at[1], events);
	/* librdmacm has closed them: the numbers are the program's again. */
	assert_true(was_dropped(command) && was_dropped(events));
	verbs_owner = (struct verbs_owner){ 0 };
}

/* Notices are RDMA WRITEs with immediate data, which iWARP does not have. */
static void an_iwarp_device_is_refused(void **state)
{
	enum verbs_trouble trouble;
	struct verbs_device told;
	size_t memlock;
	int rc;

	device.transport_type = IBV_TRANSPORT_IWARP;
	rc = queue_open(ends[0]);
	assert_int_equal(verbs_devices(&told, 1, &trouble, &memlock), 1);
	device.transport_type = IBV_TRANSPORT_IB;
	assert_int_equal(rc, -EPROTONOSUPPORT);
	assert_int_equal(trouble, VERBS_IWARP);
	assert_non_null(strstr(verbs_tell(trouble), "iWARP"));
}

static size_t memlock_told(void)
{
	enum verbs_trouble trouble;
	struct verbs_device told;
	size_t memlock = 0;

	verbs_devices(&told, 1, &trouble, &memlock);
	return memlock;
}

/* With a limit of 64 KB: what it is with the right to lock as much as one likes, and without. */
static int meets_the_limit(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit) < 0)
		return 1;
	limit.rlim_cur = 65536;
	if (setrlimit(RLIMIT_MEMLOCK, &limit) < 0)
		return 2;
	if (memlock_told() != (capability_everywhere(CAP_IPC_LOCK) ? SIZE_MAX : 65536))
		return 3;
	if (sys_call(SYS_capget, (long)&header, (long)data, 0, 0, 0, 0) < 0)
		return 4;
	data[0].effective &= ~(1u << CAP_IPC_LOCK);
	if (sys_call(SYS_capset, (long)&header, (long)data, 0, 0, 0, 0) < 0)
		return 5;
	return memlock_told() == 65536 ? 0 : 6;
}

static void who_may_lock_memory_has_no_limit(void **state)
{
	int status;
	pid_t child = fork();

	(void)state;
	assert_true(child >= 0);
	if (!child)
		_exit(meets_the_limit());
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(who_may_lock_memory_has_no_limit, begin, finish),
		cmocka_unit_test_setup_teardown(announced_bytes_can_be_read, begin, finish),
		cmocka_unit_test_setup_teardown(trip_is_measured_behind_what_is_under_way, begin, finish),
		cmocka_unit_test_setup_teardown(bytes_before_them_can_not, begin, finish),
		cmocka_unit_test_setup_teardown(bytes_behind_them_can_not, begin, finish),
		cmocka_unit_test_setup_teardown(a_move_goes_out_where_no_more_data_do, begin, finish),
		cmocka_unit_test_setup_teardown(an_iwarp_device_is_refused, begin, finish),
		cmocka_unit_test_setup_teardown(what_is_offered_is_filled, begin, finish),
		cmocka_unit_test_setup_teardown(it_is_for_what_comes_first, begin, finish),
		cmocka_unit_test_setup_teardown(it_is_not_for_a_lane_on_tcp, begin, finish),
		cmocka_unit_test_setup_teardown(what_was_taken_back_is_not_filled, begin, finish),
		cmocka_unit_test_setup_teardown(what_is_being_filled_is_not_taken_back, begin, finish),
		cmocka_unit_test_setup_teardown(a_claim_behind_the_taking_back_is_given_up, begin, finish),
		cmocka_unit_test_setup_teardown(nothing_is_offered_before_the_answer, begin, finish),
		cmocka_unit_test_setup_teardown(an_end_that_has_moved_is_not_offered, begin, finish),
		cmocka_unit_test_setup_teardown(a_line_that_is_torn_is_no_offer, begin, finish),
		cmocka_unit_test_setup_teardown(more_than_was_offered_is_refused, begin, finish),
		cmocka_unit_test_setup_teardown(an_end_that_has_broken_offers_nothing, begin, finish),
		cmocka_unit_test_setup_teardown(a_receive_that_ends_has_its_memory_to_itself, begin, finish),
		cmocka_unit_test_setup_teardown(a_device_that_is_gone_is_let_go_by_its_last_connection, begin, finish),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
