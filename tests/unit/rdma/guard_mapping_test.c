/* SPDX-License-Identifier: MIT */
/*
 * The guard against changes of the mapping and writes by the kernel, all by raw system calls that nobody announces; and which
 * memory it refuses.
 */
#include "guard_testing.h"

/* Mappings that change ------------------------------------------------------------------------------------------------- */

static void unmapping_leaves_what_was_sent(void **state)
{
	struct sent sent;
	unsigned char *other;

	send_buffer(&sent);
	assert_int_equal(munmap(sent.buffer, BYTES), 0);
	/* Other memory in the same place has nothing to do with the old. */
	other = mmap(sent.buffer, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	assert_ptr_equal(other, sent.buffer);
	fill(other, BYTES, 2);
	assert_int_equal(atomic_load(&sent.owner.faults), 0);
	guard_settle(other, BYTES);
	assert_int_equal(differing(other, BYTES, 2), 0);
	check_held(&sent);
	assert_int_equal(differing(other, BYTES, 2), 0);
	munmap(other, BYTES);
}

static void a_foreign_mapping_in_its_place_keeps_its_protection(void **state)
{
	struct sent sent;

	send_buffer(&sent);
	assert_ptr_equal(mmap(sent.buffer, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
			 sent.buffer);
	check_held(&sent);
	assert_int_equal(syscall(SYS_getrandom, sent.buffer, 1, 0), -1);
	assert_int_equal(errno, EFAULT);
	munmap(sent.buffer, BYTES);
}

static void a_file_in_part_of_its_place_sets_the_rest_free(void **state)
{
	struct sent sent;
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

	send_buffer(&sent);
	assert_ptr_equal(mmap(sent.buffer + 8 * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0),
			 sent.buffer + 8 * PAGE);
	check_held(&sent);
	fill(sent.buffer, 8 * PAGE, 2);
	fill(sent.buffer + 9 * PAGE, BYTES - 9 * PAGE, 2);
	assert_int_equal(atomic_load(&sent.owner.faults), 0);
	close(file);
	munmap(sent.buffer, BYTES);
}

static void dropping_leaves_what_was_sent(void **state)
{
	struct sent sent;

	send_buffer(&sent);
	assert_int_equal(madvise(sent.buffer, BYTES, MADV_DONTNEED), 0);
	for (size_t i = 0; i < BYTES; i++)
		assert_int_equal(sent.buffer[i], 0);
	overwrite_and_check(&sent);
}

/* A program that writes through a buffer in order meets pages in it that are not there any more, in the middle of a run. */
static void dropping_a_part_leaves_what_was_sent(void **state)
{
	struct sent sent;

	send_buffer(&sent);
	assert_int_equal(madvise(sent.buffer + 20 * PAGE, 20 * PAGE, MADV_DONTNEED), 0);
	overwrite_and_check(&sent);
}

static void dropping_a_part_does_not_hinder_settling(void **state)
{
	struct sent sent;

	send_buffer(&sent);
	assert_int_equal(madvise(sent.buffer + 20 * PAGE, 20 * PAGE, MADV_DONTNEED), 0);
	guard_settle(sent.buffer, BYTES);
	for (size_t i = 0; i < BYTES; i++)
		assert_int_equal(sent.buffer[i], i / PAGE >= 20 && i / PAGE < 40 ? 0 : pattern(i, 1));
	check_held(&sent);
	munmap(sent.buffer, BYTES);
}

/* free() gives the end of the heap back so, and malloc() takes it anew. */
static void replacing_a_part_leaves_what_was_sent(void **state)
{
	struct sent sent;
	unsigned char *part;

	send_buffer(&sent);
	part = sent.buffer + 20 * PAGE;
	assert_int_equal(munmap(part, BYTES - 20 * PAGE), 0);
	assert_ptr_equal(
		mmap(part, BYTES - 20 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
		part);
	overwrite_and_check(&sent);
}

static void offering_leaves_what_was_sent(void **state)
{
	struct sent sent;

	send_buffer(&sent);
	assert_int_equal(madvise(sent.buffer, BYTES, MADV_FREE), 0);
	overwrite_and_check(&sent);
}

/* realloc() moves large blocks so, from inside libc. */
static void moving_leaves_what_was_sent(void **state)
{
	struct sent sent;
	unsigned char *moved, *place;

	send_buffer(&sent);
	place = map_buffer(2 * BYTES);
	if (guard_needs_settling()) {
		((volatile unsigned char *)sent.buffer)[9 * PAGE] =
			pattern(9 * PAGE, 1); /* a page of its own in the middle */
		guard_settle(sent.buffer, BYTES);
		assert_int_equal(guard_join(sent.buffer, BYTES), 0);
	}
	moved = mremap(sent.buffer, BYTES, 2 * BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, place);
	assert_ptr_equal(moved, place);
	assert_int_equal(differing(moved, BYTES, 1), 0);
	fill(moved, 2 * BYTES, 2);
	assert_int_equal(differing(moved, 2 * BYTES, 2), 0);
	check_held(&sent);
	munmap(moved, 2 * BYTES);
}

static void moving_a_part_leaves_what_was_sent(void **state)
{
	struct sent sent;
	unsigned char *place;

	send_buffer(&sent);
	place = map_buffer(4 * PAGE);
	if (guard_needs_settling())
		guard_settle(sent.buffer + 6 * PAGE, 4 * PAGE);
	assert_ptr_equal(mremap(sent.buffer + 6 * PAGE, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place),
			 place);
	memset(place, 9, 4 * PAGE);
	fill(sent.buffer, 6 * PAGE, 2);
	fill(sent.buffer + 10 * PAGE, BYTES - 10 * PAGE, 2);
	check_held(&sent);
	munmap(place, 4 * PAGE);
	munmap(sent.buffer, BYTES);
}

static void locked_memory_is_guarded_too(void **state)
{
	struct sent sent;
	unsigned char *buffer = map_buffer(BYTES);

	assert_int_equal(mlock(buffer, BYTES), 0);
	send_from(&sent, buffer);
	overwrite_and_check(&sent);
}

static void huge_pages_are_guarded_too(void **state)
{
	size_t huge = 2 << 20;
	unsigned char *room = map_buffer(2 * huge);
	unsigned char *buffer = (unsigned char *)(((uintptr_t)room + huge - 1) & ~(huge - 1));
	struct sent sent;

	assert_int_equal(madvise(buffer, huge, MADV_HUGEPAGE), 0);
	memset(buffer, 0, huge);
	send_from(&sent, buffer + 16 * PAGE);
	fill(buffer, huge, 2);
	assert_int_equal(differing(buffer, huge, 2), 0);
	check_held(&sent);
	assert_int_equal(differing(buffer, huge, 2), 0);
	munmap(room, 2 * huge);
}

/* Writes by the kernel ------------------------------------------------------------------------------------------------- */

static void a_pipe_with(int fds[2], unsigned int seed)
{
	unsigned char *bytes = malloc(BYTES);

	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	assert_true(fcntl(fds[1], F_SETPIPE_SZ, (int)BYTES) >= (int)BYTES);
	fill(bytes, BYTES, seed);
	assert_int_equal(write(fds[1], bytes, BYTES), BYTES);
	free(bytes);
}

static void a_raw_read_into_it_leaves_what_was_sent(void **state)
{
	struct sent sent;
	int fds[2];

	send_buffer(&sent);
	a_pipe_with(fds, 2);
	if (guard_needs_settling()) {
		assert_int_equal(syscall(SYS_read, fds[0], sent.buffer, BYTES), -1);
		assert_int_equal(errno, EFAULT);
		guard_settle(sent.buffer, BYTES);
	}
	assert_int_equal(syscall(SYS_read, fds[0], sent.buffer, BYTES), BYTES);
	assert_int_equal(differing(sent.buffer, BYTES, 2), 0);
	check_held(&sent);
	close(fds[0]);
	close(fds[1]);
	munmap(sent.buffer, BYTES);
}

static void process_vm_writev_leaves_what_was_sent(void **state)
{
	struct sent sent;
	unsigned char *bytes = malloc(BYTES);
	struct iovec from = { bytes, BYTES }, to;

	send_buffer(&sent);
	fill(bytes, BYTES, 2);
	to = (struct iovec){ sent.buffer, BYTES };
	if (guard_needs_settling())
		guard_settle(sent.buffer, BYTES);
	assert_int_equal(process_vm_writev(getpid(), &from, 1, &to, 1, 0), BYTES);
	assert_int_equal(differing(sent.buffer, BYTES, 2), 0);
	check_held(&sent);
	free(bytes);
	munmap(sent.buffer, BYTES);
}

/* What a write by /proc/self/mem does: it may fail where the kernel can't wait, but what was sent stays. */
static void a_write_through_proc_leaves_what_was_sent(void **state)
{
	struct sent sent;
	int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	unsigned char *bytes = malloc(BYTES);

	assert_true(memory >= 0);
	send_buffer(&sent);
	fill(bytes, BYTES, 2);
	if (guard_needs_settling())
		guard_settle(sent.buffer, BYTES); /* it would write in spite of the protection */
	if (pwrite(memory, bytes, BYTES, (off_t)(uintptr_t)sent.buffer) == (ssize_t)BYTES)
		assert_int_equal(differing(sent.buffer, BYTES, 2), 0);
	else
		assert_int_equal(differing(sent.buffer, BYTES, 1), 0);
	check_held(&sent);
	close(memory);
	free(bytes);
	munmap(sent.buffer, BYTES);
}

static void the_kernel_can_read_what_is_guarded(void **state)
{
	struct sent sent;
	int fds[2];
	unsigned char *bytes = malloc(BYTES);

	send_buffer(&sent);
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	assert_true(fcntl(fds[1], F_SETPIPE_SZ, (int)BYTES) >= (int)BYTES);
	assert_int_equal(write(fds[1], sent.buffer, BYTES), BYTES);
	read_all(fds[0], bytes, BYTES);
	assert_int_equal(differing(bytes, BYTES, 1), 0);
	assert_int_equal(atomic_load(&sent.owner.faults), 0);
	check_held(&sent);
	close(fds[0]);
	close(fds[1]);
	free(bytes);
	munmap(sent.buffer, BYTES);
}

/* What is refused ------------------------------------------------------------------------------------------------------ */

static void expect_refusal(unsigned char *buffer, size_t bytes)
{
	struct owner owner = { 0 };
	struct guard_record *record = NULL;

	catch_segv();
	assert_int_equal(guard_protect(buffer, bytes, &pinned_ops, &owner, &record), -EINVAL);
	assert_false(guard_active());
}

static void shared_memory_is_refused(void **state)
{
	unsigned char *buffer = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int file = memfd_create("test", MFD_CLOEXEC);

	fill(buffer, BYTES, 1);
	expect_refusal(buffer, BYTES);
	fill(buffer, BYTES, 2);
	munmap(buffer, BYTES);
	assert_int_equal(ftruncate(file, BYTES), 0);
	buffer = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	fill(buffer, BYTES, 1);
	expect_refusal(buffer, BYTES);
	fill(buffer, BYTES, 2);
	assert_int_equal(differing(buffer, BYTES, 2), 0);
	munmap(buffer, BYTES);
	close(file);
}

static void files_are_refused(void **state)
{
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	unsigned char *buffer = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
	volatile unsigned char sum = 0;

	for (size_t i = 0; i < 4 * PAGE; i += PAGE)
		sum ^= buffer[i];
	expect_refusal(buffer, 4 * PAGE);
	buffer[0] ^= 1; /* still writable */
	munmap(buffer, 4 * PAGE);
	close(file);
}

/* Pages of its own in front of a shared object: guarded or refused, but never wrong. */
static void a_private_copy_of_shared_memory_is_never_wrong(void **state)
{
	struct owner owner = { 0 };
	struct guard_record *record;
	struct holder holder;
	int file = memfd_create("test", MFD_CLOEXEC);
	unsigned char *buffer;

	catch_segv();
	assert_int_equal(ftruncate(file, BYTES), 0);
	buffer = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
	fill(buffer, BYTES, 1);
	if (!guard_protect(buffer, BYTES, &pinned_ops, &owner, &record)) {
		hold(&holder, buffer, BYTES);
		fill(buffer, BYTES, 2);
		assert_int_equal(let_go(&holder, 1), 0);
		guard_release(record);
	}
	fill(buffer, BYTES, 2);
	assert_int_equal(differing(buffer, BYTES, 2), 0);
	munmap(buffer, BYTES);
	close(file);
}

static void untouched_pages_are_refused(void **state)
{
	unsigned char *buffer = map_buffer(BYTES);

	fill(buffer, BYTES - PAGE, 1);
	expect_refusal(buffer, BYTES);
	fill(buffer, BYTES, 2);
	assert_int_equal(differing(buffer, BYTES, 2), 0);
	munmap(buffer, BYTES);
}

static void a_hole_is_refused(void **state)
{
	unsigned char *buffer = map_buffer(BYTES);

	fill(buffer, BYTES, 1);
	munmap(buffer + 4 * PAGE, PAGE);
	expect_refusal(buffer, BYTES);
	expect_refusal(buffer + 4 * PAGE, PAGE);
	fill(buffer, 4 * PAGE, 2);
	fill(buffer + 5 * PAGE, BYTES - 5 * PAGE, 2);
	munmap(buffer, BYTES);
}

static void ranges_that_are_none_are_refused(void **state)
{
	unsigned char *buffer = map_buffer(BYTES);

	fill(buffer, BYTES, 1);
	expect_refusal(buffer + 1, PAGE);
	expect_refusal(buffer, PAGE + 1);
	expect_refusal(buffer, 0);
	expect_refusal(buffer, (size_t)-4096);
	expect_refusal((unsigned char *)0xffffffff80000000ul, PAGE);
	munmap(buffer, BYTES);
}

/* Read-only memory of the program stays read-only through the guard's hands. */
static void the_programs_own_protection_is_kept(void **state)
{
	struct owner owner = { 0 };
	struct guard_record *record;
	unsigned char *buffer = map_buffer(BYTES);
	int rc;

	catch_segv();
	fill(buffer, BYTES, 1);
	assert_int_equal(mprotect(buffer, BYTES, PROT_READ), 0);
	rc = guard_protect(buffer, BYTES, &pinned_ops, &owner, &record);
	if (!rc)
		guard_release(record);
	else
		assert_int_equal(rc, -EINVAL);
	assert_int_equal(syscall(SYS_getrandom, buffer, 1, 0), -1);
	assert_int_equal(errno, EFAULT);
	munmap(buffer, BYTES);
}

/* A stack is guarded by userfaultfd, whose faults need no stack, and refused by mprotect. */
static __attribute__((noinline)) void with_stack_buffer(void)
{
	unsigned char room[BYTES + PAGE];
	unsigned char *buffer = (unsigned char *)(((uintptr_t)room + PAGE - 1) & ~(PAGE - 1));
	struct owner owner = { 0 };
	struct guard_record *record;
	struct holder holder;

	fill(buffer, BYTES, 1);
	if (guard_needs_settling()) {
		expect_refusal(buffer, BYTES);
		return;
	}
	assert_int_equal(guard_protect(buffer, BYTES, &pinned_ops, &owner, &record), 0);
	hold(&holder, buffer, BYTES);
	fill(buffer, BYTES, 2);
	assert_int_equal(let_go(&holder, 1), 0);
	guard_release(record);
}

static struct guard_record *left_behind;
static struct holder left_held;

static __attribute__((noinline)) void leave_stack_guarded(void)
{
	static struct owner owner;
	unsigned char room[BYTES + PAGE];
	unsigned char *buffer = (unsigned char *)(((uintptr_t)room + PAGE - 1) & ~(PAGE - 1));

	fill(buffer, BYTES, 1);
	assert_int_equal(guard_protect(buffer, BYTES, &pinned_ops, &owner, &left_behind), 0);
	hold(&left_held, buffer, BYTES);
}

static void *on_a_stack(void *arg)
{
	with_stack_buffer();
#ifdef __SANITIZE_THREAD__
	return NULL; /* the sanitizer itself would meet guarded frames while it holds locks that the guard's thread wants */
#endif
	if (guard_needs_settling())
		return NULL;
	/* The frames of what follows lie on guarded pages, those of the guard itself among them. */
	leave_stack_guarded();
	guard_settle(arg, 1);
	with_stack_buffer();
	assert_int_equal(let_go(&left_held, 1), 0);
	guard_release(left_behind);
	return NULL;
}

static void stacks_are_guarded_or_refused(void **state)
{
	static char elsewhere;
	pthread_t thread;

	catch_segv();
	on_a_stack(&elsewhere);
	assert_int_equal(pthread_create(&thread, NULL, on_a_stack, &elsewhere), 0);
	pthread_join(thread, NULL);
	assert_false(guard_active());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(unmapping_leaves_what_was_sent),
		BOTH(a_foreign_mapping_in_its_place_keeps_its_protection),
		BOTH(a_file_in_part_of_its_place_sets_the_rest_free),
		BOTH(dropping_leaves_what_was_sent),
		BOTH(dropping_a_part_leaves_what_was_sent),
		BOTH(dropping_a_part_does_not_hinder_settling),
		BOTH(replacing_a_part_leaves_what_was_sent),
		BOTH(offering_leaves_what_was_sent),
		BOTH(moving_leaves_what_was_sent),
		BOTH(moving_a_part_leaves_what_was_sent),
		BOTH(locked_memory_is_guarded_too),
		BOTH(huge_pages_are_guarded_too),
		BOTH(a_raw_read_into_it_leaves_what_was_sent),
		BOTH(process_vm_writev_leaves_what_was_sent),
		BOTH(a_write_through_proc_leaves_what_was_sent),
		BOTH(the_kernel_can_read_what_is_guarded),
		BOTH(shared_memory_is_refused),
		BOTH(files_are_refused),
		BOTH(a_private_copy_of_shared_memory_is_never_wrong),
		BOTH(untouched_pages_are_refused),
		BOTH(a_hole_is_refused),
		BOTH(ranges_that_are_none_are_refused),
		BOTH(the_programs_own_protection_is_kept),
		BOTH(stacks_are_guarded_or_refused),
	};

	alarm(100);
	stats_start();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
