/* SPDX-License-Identifier: MIT */
/* The statistics' segment: counting before and after it is published, slots, fork, and readers that trust nothing. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/settings.h"
#include "common/stats.h"
#include "common/sys.h"

#define THREADS 4
#define ROUNDS 20000

static uint64_t get(_Atomic uint64_t *counter)
{
	return atomic_load(counter);
}

/* Each test in a process of its own: a segment is published once. */
static void in_a_process(void (*test)(void))
{
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (!child) {
		assert_int_equal(stats_start(), 0);
		test();
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

/* In the child an assertion of cmocka would go astray. */
#define CHECK(what)                                                                                                    \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                                     \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)

static void count_before_and_after(void)
{
	const struct stats_segment *seen;
	uint32_t slot = stats_slot_open(ROLE_CLIENT, PATH_SG, 7);

	CHECK(slot == 1 && stats_descriptor() == -1);
	stats_sent(slot, PATH_SG, 100, 1);
	stats_publish();
	CHECK(stats_descriptor() >= SYS_FD_HIGH);
	CHECK(fcntl(stats_descriptor(), F_GETFD) == FD_CLOEXEC);
	stats_sent(slot, PATH_SG, 50, 2);
	stats_conn(slot, STAT_CONN_RECV_BYTES, 9);
	stats_reason(slot, REASON_SMALL);
	stats_publish(); /* once is enough */
	CHECK(!stats_map(stats_descriptor(), &seen));
	CHECK(seen->pid == getpid() && seen->slots_used == 2);
	CHECK(seen->slot[slot].role == ROLE_CLIENT && seen->slot[slot].policy == PATH_SG && seen->slot[slot].fd == 7);
	CHECK(seen->slot[slot].path[PATH_SG][STAT_PATH_BYTES] == 150);
	CHECK(seen->slot[slot].path[PATH_SG][STAT_PATH_CALLS] == 2);
	CHECK(seen->slot[slot].path[PATH_SG][STAT_PATH_SYSCALLS] == 3);
	CHECK(seen->slot[slot].conn[STAT_CONN_RECV_BYTES] == 9 && seen->slot[slot].reason[REASON_SMALL] == 1);
	CHECK(seen->process[STAT_PROCESS_CONNECTIONS] == 1);
	stats_sent(slot, PATH_SG, 1, 1); /* a map is live */
	CHECK(seen->slot[slot].path[PATH_SG][STAT_PATH_BYTES] == 151);
	stats_unmap(seen);
}

static void counting_goes_on_over_publishing(void **state)
{
	in_a_process(count_before_and_after);
}

static void hide_the_segment(void)
{
	int fd;

	CHECK(stats_hide() == -1);
	stats_publish();
	fd = stats_descriptor();
	CHECK(fd >= 0 && stats_hide() == fd && stats_descriptor() == -1 && !close(fd));
	stats_sent(0, PATH_SG, 7, 1);
	CHECK(get(&stats->slot[0].path[PATH_SG][STAT_PATH_BYTES]) == 7);
	stats_publish();
	CHECK(stats_descriptor() == -1 && stats_hide() == -1);
}

static void counting_goes_on_unseen(void **state)
{
	in_a_process(hide_the_segment);
}

static void close_a_slot(void)
{
	struct stats_slot *sum = &stats->slot[0];
	uint32_t first = stats_slot_open(ROLE_SERVER, PATH_AUTO, 5),
		 second = stats_slot_open(ROLE_SERVER, PATH_AUTO, 6);

	stats_sent(first, PATH_COPY, 10, 1);
	stats_latency(first, PATH_COPY, 1000);
	stats_latency(first, PATH_AZSDP, 1);
	stats_latency(first, PATH_SG, UINT64_MAX);
	stats_reason(first, REASON_FLAGS);
	stats_sent(second, PATH_COPY, 20, 1);
	stats_slot_close(first);
	CHECK(get(&sum->path[PATH_COPY][STAT_PATH_BYTES]) == 10 && get(&sum->reason[REASON_FLAGS]) == 1);
	CHECK(get(&sum->latency[PATH_COPY][9]) == 1 && get(&sum->latency[PATH_AZSDP][0]) == 1 &&
	      get(&sum->latency[PATH_SG][STATS_LATENCY_BUCKETS - 1]) == 1);
	for (int path = 0; path < PATH_COUNT; path++) {
		for (int i = 0; i < STATS_LATENCY_BUCKETS; i++)
			CHECK(!get(&stats->slot[first].latency[path][i]));
	}
	stats_slot_close(second);
	CHECK(get(&sum->path[PATH_COPY][STAT_PATH_BYTES]) == 30);
	stats_slot_close(0);
	CHECK(get(&sum->path[PATH_COPY][STAT_PATH_BYTES]) == 30);
	first = stats_slot_open(ROLE_CLIENT, PATH_COPY, 8);
	CHECK(first && !get(&stats->slot[first].path[PATH_COPY][STAT_PATH_BYTES]));
}

static void closed_slot_goes_into_the_sum(void **state)
{
	in_a_process(close_a_slot);
}

static void use_all_slots(void)
{
	for (uint32_t i = 1; i < STATS_SLOTS; i++)
		CHECK(stats_slot_open(ROLE_CLIENT, PATH_COPY, (int)i));
	CHECK(stats_slot_open(ROLE_CLIENT, PATH_COPY, 1) == 0);
	stats_sent(0, PATH_COPY, 5, 1); /* counted in the sum */
	stats_slot_close(77);
	CHECK(stats_slot_open(ROLE_CLIENT, PATH_COPY, 1) == 77);
	CHECK(get(&stats->process[STAT_PROCESS_CONNECTIONS]) == STATS_SLOTS + 1);
}

static void connections_beyond_the_slots_count_in_the_sum(void **state)
{
	in_a_process(use_all_slots);
}

static void latency_edges(void)
{
	_Atomic uint64_t *buckets = stats->slot[0].latency[PATH_COPY];

	stats_latency(0, PATH_COPY, 0);
	stats_latency(0, PATH_COPY, 1);
	stats_latency(0, PATH_COPY, 1023);
	stats_latency(0, PATH_COPY, 1024);
	stats_latency(0, PATH_COPY, UINT64_MAX);
	CHECK(get(&buckets[0]) == 2 && get(&buckets[9]) == 1 && get(&buckets[10]) == 1);
	CHECK(get(&buckets[STATS_LATENCY_BUCKETS - 1]) == 1);
}

static void latencies_fall_into_powers_of_two(void **state)
{
	in_a_process(latency_edges);
}

static void fork_twice(void)
{
	uint32_t slot = stats_slot_open(ROLE_SERVER, PATH_COPY, 3);
	int before, status, closed[2];
	pid_t child;
	char c;

	stats_sent(slot, PATH_COPY, 10, 1);
	stats_publish();
	before = stats_descriptor();
	CHECK(!pipe2(closed, O_CLOEXEC));
	child = fork();
	if (!child) {
		/* A server may have closed its end before its child does anything at all. */
		CHECK(read(closed[0], &c, 1) == 1);
		stats_after_fork();
		CHECK(stats_inherited && stats->slot[slot].state == STATS_FREE);
		stats_slot_keep(slot, ROLE_SERVER, PATH_COPY, 3);
		CHECK(stats_descriptor() == -1 && fcntl(before, F_GETFD) == -1);
		CHECK(stats->slot[slot].state == STATS_OPEN && stats->slot[slot].fd == 3);
		CHECK(!get(&stats->slot[slot].path[PATH_COPY][STAT_PATH_BYTES]));
		stats_sent(slot, PATH_COPY, 1000, 1);
		stats_publish();
		CHECK(stats->pid == getpid() && !stats_inherited && stats->slots_used == slot + 1);
		CHECK(get(&stats->slot[slot].path[PATH_COPY][STAT_PATH_BYTES]) == 1000);
		_exit(0);
	}
	stats_slot_close(slot);
	CHECK(write(closed[1], "", 1) == 1);
	CHECK(waitpid(child, &status, 0) == child && !status);
	CHECK(get(&stats->slot[0].path[PATH_COPY][STAT_PATH_BYTES]) == 10 && stats->pid == getpid());
}

static void child_counts_its_own(void **state)
{
	in_a_process(fork_twice);
}

static void *count(void *arg)
{
	for (int i = 0; i < ROUNDS; i++) {
		uint32_t slot = stats_slot_open(ROLE_CLIENT, PATH_COPY, i);

		stats_sent(slot, PATH_COPY, 3, 1);
		stats_slot_close(slot);
	}
	return NULL;
}

static void count_by_threads(void)
{
	pthread_t threads[THREADS];

	stats_publish();
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, count, NULL);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	CHECK(get(&stats->slot[0].path[PATH_COPY][STAT_PATH_BYTES]) == 3ull * THREADS * ROUNDS);
	CHECK(get(&stats->process[STAT_PROCESS_CONNECTIONS]) == 1ull * THREADS * ROUNDS);
	for (uint32_t i = 1; i < STATS_SLOTS; i++)
		CHECK(stats->slot[i].state == STATS_FREE);
}

static void nothing_is_lost_between_threads(void **state)
{
	in_a_process(count_by_threads);
}

static char directory[] = "/tmp/zc-stats-test-XXXXXX";

static void leave_file(void)
{
	settings.stats_dir = directory;
	stats_sent(stats_slot_open(ROLE_CLIENT, PATH_COPY, 4), PATH_COPY, 42, 1);
	stats_publish();
	CHECK(stats_descriptor() >= 0);
}

/* Returns the open file that a process left. */
static int left_file(char *name, size_t bytes)
{
	pid_t child = fork();
	int status;

	if (!child) {
		if (stats_start())
			_exit(1);
		leave_file();
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	snprintf(name, bytes, "%s/zc-%d.stats", directory, (int)child);
	return open(name, O_RDWR | O_CLOEXEC);
}

static void file_outlives_its_process(void **state)
{
	const struct stats_segment *seen;
	char name[128];
	int fd = left_file(name, sizeof(name));

	assert_int_equal(stats_map(fd, &seen), 0);
	assert_int_equal(seen->slot[1].path[PATH_COPY][STAT_PATH_BYTES], 42);
	stats_unmap(seen);
	assert_int_equal(stats_read(fd, &seen), 0);
	assert_int_equal(seen->slot[1].path[PATH_COPY][STAT_PATH_BYTES], 42);
	stats_unmap(seen);
	close(fd);
	unlink(name);
}

/* Whoever lists the directory while a process starts to count must never find a file that is cut short. */
static void file_is_complete_when_it_gets_its_name(void **state)
{
	char name[128], events[4096] __attribute__((aligned(8)));
	const struct inotify_event *event;
	int watch = inotify_init1(IN_CLOEXEC), moved = 0;
	ssize_t got;

	assert_true(inotify_add_watch(watch, directory, IN_CREATE | IN_MODIFY | IN_MOVED_TO) >= 0);
	close(left_file(name, sizeof(name)));
	got = read(watch, events, sizeof(events));
	assert_true(got > 0);
	for (char *at = events; at < events + got; at += sizeof(*event) + event->len) {
		event = (const struct inotify_event *)at;
		if (strcmp(event->name, strrchr(name, '/') + 1) != 0)
			continue;
		assert_int_equal(event->mask, IN_MOVED_TO);
		moved++;
	}
	assert_int_equal(moved, 1);
	close(watch);
	unlink(name);
}

static void *publish_when_idle(void *arg)
{
	const struct sched_param none = { 0 };

	CHECK(!sched_setscheduler(0, SCHED_IDLE, &none));
	stats_publish();
	return NULL;
}

/* The publisher has copied what was counted; then a thread goes first that counts more. */
static void count_while_the_publisher_waits(void)
{
	const struct sched_param first = { .sched_priority = 1 };
	char event[sizeof(struct inotify_event) + 256];
	int watch = inotify_init1(IN_CLOEXEC);
	pthread_t publisher;
	cpu_set_t one;
	uint32_t slot;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	CHECK(!sched_setaffinity(0, sizeof(one), &one));
	settings.stats_dir = directory;
	CHECK(inotify_add_watch(watch, directory, IN_MOVED_TO) >= 0);
	CHECK(!pthread_create(&publisher, NULL, publish_when_idle, NULL));
	/* Where this is permitted, it does not run before this thread sleeps. */
	(void)sched_setscheduler(0, SCHED_FIFO, &first);
	CHECK(read(watch, event, sizeof(event)) > 0);
	stats_publish();
	slot = stats_slot_open(ROLE_CLIENT, PATH_COPY, 4);
	stats_sent(slot, PATH_COPY, 42, 1);
	CHECK(!pthread_join(publisher, NULL));
	CHECK(stats_descriptor() >= 0 && stats->slots_used == slot + 1);
	CHECK(get(&stats->slot[slot].path[PATH_COPY][STAT_PATH_BYTES]) == 42);
	snprintf(event, sizeof(event), "%s/zc-%d.stats", directory, getpid());
	unlink(event);
}

static void nothing_is_counted_while_counters_move(void **state)
{
	in_a_process(count_while_the_publisher_waits);
}

static void put(int fd, size_t offset, uint64_t value, size_t bytes)
{
	assert_int_equal(pwrite(fd, &value, bytes, (off_t)offset), bytes);
}

static void refuse_by(int (*read_it)(int fd, const struct stats_segment **out))
{
	const struct stats_segment *seen = NULL;
	char name[128];
	int fd = left_file(name, sizeof(name));

	put(fd, offsetof(struct stats_segment, magic), 0, 8);
	assert_int_equal(read_it(fd, &seen), -EPROTO);
	put(fd, offsetof(struct stats_segment, magic), STATS_MAGIC, 8);
	put(fd, offsetof(struct stats_segment, layout), stats_layout() + 1, 8);
	assert_int_equal(read_it(fd, &seen), -EPROTONOSUPPORT);
	put(fd, offsetof(struct stats_segment, layout), stats_layout(), 8);
	put(fd, offsetof(struct stats_segment, slots_used), STATS_SLOTS + 1, 4);
	assert_int_equal(read_it(fd, &seen), -EPROTO);
	put(fd, offsetof(struct stats_segment, slots_used), 2, 4);
	close(fd);
	unlink(name);
	assert_null(seen);
}

static void torn_and_foreign_segments_are_refused(void **state)
{
	refuse_by(stats_map);
	refuse_by(stats_read);
}

static void sizes_are_exact(void **state)
{
	const size_t whole = sizeof(struct stats_segment);
	const struct stats_segment *seen = NULL;
	char name[128];
	int fd = left_file(name, sizeof(name));
	const size_t sizes[] = {
		whole + 1, whole - 1, offsetof(struct stats_segment, slot), offsetof(struct stats_segment, slot) - 1,
		1,	   0
	};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		assert_int_equal(ftruncate(fd, (off_t)sizes[i]), 0);
		assert_int_equal(stats_map(fd, &seen), -EPROTO);
		assert_int_equal(stats_read(fd, &seen), -EPROTO);
	}
	close(fd);
	unlink(name);
}

/* The one who writes may cut the file while it is being looked at. */
static void copy_survives_the_files_end(void **state)
{
	const struct stats_segment *seen;
	char name[128];
	int fd = left_file(name, sizeof(name));

	assert_int_equal(stats_read(fd, &seen), 0);
	assert_int_equal(ftruncate(fd, 0), 0);
	assert_int_equal(seen->slot[1].path[PATH_COPY][STAT_PATH_BYTES], 42);
	stats_unmap(seen);
	close(fd);
	unlink(name);
}

static void what_is_no_file_is_refused(void **state)
{
	const struct stats_segment *seen;
	int pipes[2], dir = open("/tmp", O_RDONLY | O_DIRECTORY);

	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(stats_read(pipes[0], &seen), -EPROTO);
	assert_int_equal(stats_read(dir, &seen), -EPROTO);
	assert_int_equal(stats_map(dir, &seen), -EPROTO);
	assert_int_equal(stats_read(-1, &seen), -EBADF);
	close(pipes[0]);
	close(pipes[1]);
	close(dir);
}

static void count_without_a_file(void)
{
	settings.stats_dir = "/nowhere";
	stats_publish();
	CHECK(stats_descriptor() == -1);
	stats_sent(stats_slot_open(ROLE_CLIENT, PATH_COPY, 4), PATH_COPY, 1, 1);
	CHECK(get(&stats->slot[1].path[PATH_COPY][STAT_PATH_BYTES]) == 1);
}

static void counting_stays_private_where_no_segment_can_be_had(void **state)
{
	in_a_process(count_without_a_file);
}

static int make_directory(void **state)
{
	return !mkdtemp(directory);
}

/* With the files of those tests that have failed. */
static int remove_directory(void **state)
{
	char name[512];
	DIR *dir = opendir(directory);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		snprintf(name, sizeof(name), "%s/%s", directory, entry->d_name);
		unlink(name);
	}
	if (dir)
		closedir(dir);
	return rmdir(directory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(counting_goes_on_over_publishing),
		cmocka_unit_test(counting_goes_on_unseen),
		cmocka_unit_test(closed_slot_goes_into_the_sum),
		cmocka_unit_test(connections_beyond_the_slots_count_in_the_sum),
		cmocka_unit_test(latencies_fall_into_powers_of_two),
		cmocka_unit_test(child_counts_its_own),
		cmocka_unit_test(nothing_is_lost_between_threads),
		cmocka_unit_test(file_outlives_its_process),
		cmocka_unit_test(file_is_complete_when_it_gets_its_name),
		cmocka_unit_test(nothing_is_counted_while_counters_move),
		cmocka_unit_test(torn_and_foreign_segments_are_refused),
		cmocka_unit_test(sizes_are_exact),
		cmocka_unit_test(copy_survives_the_files_end),
		cmocka_unit_test(what_is_no_file_is_refused),
		cmocka_unit_test(counting_stays_private_where_no_segment_can_be_had),
	};

	return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
