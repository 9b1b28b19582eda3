/* SPDX-License-Identifier: MIT */
/*
 * What an exec takes along: whether the next program will have the library in it (here the test program itself stands for it),
 * and what start-up makes of a variable that may say anything.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/stats.h"
#include "preload/engine.h"
#include "preload/exec.h"
#include "preload/target.h"
#include "pair_testing.h"
#include "rdma/channel.h"

static char preload[PATH_MAX + 32];
static char *with_us[] = { (char *)"LANG=C", preload, NULL };
static char *without[] = { (char *)"LD_PRELOAD=/lib/nothing.so:other.so", NULL };

static enum target look(const char *path, char *const envp[])
{
	const struct target_name name = { AT_FDCWD, path, true };

	return target_of(&name, envp);
}

/* Makes a program of these bytes. */
static void write_program(const char *path, const void *bytes, size_t length, mode_t mode)
{
	int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, length), length);
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
}

static int enter_directory(void **state)
{
	static char directory[] = "/tmp/exec_test.XXXXXX";
	char self[PATH_MAX] = "";

	if (stats_start() < 0 || table_start() < 0 || readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		return -1;
	snprintf(preload, sizeof(preload), "LD_PRELOAD=first.so:%s", self);
	target_start();
	*state = mkdtemp(directory);
	return *state ? chdir(directory) : -1;
}

static int remove_directory(void **state)
{
	unlink("script");
	unlink("copy");
	unlink("static");
	unlink("plain");
	return chdir("/") || rmdir(*state);
}

static void a_dynamic_program_is_ours_if_it_preloads_us(void **state)
{
	assert_int_equal(look("/bin/true", with_us), TARGET_OURS);
	assert_int_equal(look("true", with_us), TARGET_OURS);
	assert_int_equal(look("/bin/true", without), TARGET_FOREIGN);
	assert_int_equal(look("/bin/true", NULL), TARGET_FOREIGN);
}

static void what_can_not_be_run_is_no_target(void **state)
{
	assert_int_equal(look("/nowhere/nothing", with_us), TARGET_NONE);
	assert_int_equal(look("no-such-program", with_us), TARGET_NONE);
	assert_int_equal(look("/", with_us), TARGET_NONE);
	write_program("plain", "text", 4, 0600);
	if (geteuid())
		assert_int_equal(look("./plain", with_us), TARGET_NONE);
}

static void a_script_is_what_its_interpreter_is(void **state)
{
	write_program("script", "#! /bin/sh -e\ntrue\n", 19, 0700);
	assert_int_equal(look("./script", with_us), TARGET_OURS);
	assert_int_equal(look("./script", without), TARGET_FOREIGN);
	write_program("script", "#!./script\n", 11, 0700);
	assert_int_equal(look("./script", with_us), TARGET_FOREIGN);
	write_program("script", "#!/nowhere\n", 11, 0700);
	assert_int_equal(look("./script", with_us), TARGET_FOREIGN);
	write_program("script", "#!", 2, 0700);
	assert_int_equal(look("./script", with_us), TARGET_FOREIGN);
	write_program("script", "true\n", 5, 0700);
	assert_int_equal(look("./script", with_us), TARGET_FOREIGN);
}

static void a_program_with_other_rights_is_foreign(void **state)
{
	char bytes[1 << 16];
	int fd = open("/bin/true", O_RDONLY);
	ssize_t got = read(fd, bytes, sizeof(bytes));

	close(fd);
	assert_true(got > 0);
	write_program("copy", bytes, (size_t)got, 0755);
	assert_int_equal(look("./copy", with_us), TARGET_OURS);
	assert_int_equal(chmod("copy", 04755), 0);
	assert_int_equal(look("./copy", with_us), TARGET_FOREIGN);
	assert_int_equal(chmod("copy", 02755), 0);
	assert_int_equal(look("./copy", with_us), TARGET_FOREIGN);
}

static void a_static_program_is_foreign(void **state)
{
	Elf64_Ehdr head = {
		.e_ident = { ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64 },
#if defined(__x86_64__)
		.e_machine = EM_X86_64,
#else
		.e_machine = EM_AARCH64,
#endif
		.e_phoff = sizeof(head),
		.e_phentsize = sizeof(Elf64_Phdr)
	};
	struct {
		Elf64_Ehdr head;
		Elf64_Phdr part;
	} program = { head, { .p_type = PT_LOAD } };

	program.head.e_phnum = 1;
	write_program("static", &program, sizeof(program), 0700);
	assert_int_equal(look("./static", with_us), TARGET_FOREIGN);
	program.part.p_type = PT_INTERP;
	write_program("static", &program, sizeof(program), 0700);
	assert_int_equal(look("./static", with_us), TARGET_OURS);
	program.head.e_machine = EM_S390;
	write_program("static", &program, sizeof(program), 0700);
	assert_int_equal(look("./static", with_us), TARGET_FOREIGN);
	program.head = head;
	program.head.e_phnum = UINT16_MAX;
	program.head.e_phoff = UINT64_MAX - 8;
	write_program("static", &program, sizeof(program), 0700);
	assert_int_equal(look("./static", with_us), TARGET_FOREIGN);
	write_program("static", &program, 20, 0700);
	assert_int_equal(look("./static", with_us), TARGET_FOREIGN);
}

/* Start-up ----------------------------------------------------------------------------------------------------------- */

/* A channel as exec_begins leaves one. */
static int make_rest(const char *bytes)
{
	struct iovec iov = { (void *)bytes, strlen(bytes) };
	struct channel channel;
	int fd;

	assert_int_equal(channel_make(&channel, LANE_RING_MIN), 0);
	atomic_store(&channel.out.shared->reader, 1);
	assert_true(lane_take_over(&channel.out));
	assert_int_equal(lane_put(&channel.out, &iov, 1, 0), iov.iov_len);
	lane_leave(&channel.out);
	fd = dup(channel.fd);
	channel_close(&channel);
	return fd;
}

static void set_variable(const char *format, ...)
{
	char text[256];
	va_list list;

	va_start(list, format);
	vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	setenv(EXEC_VARIABLE, text, 1);
	exec_take_in();
	assert_null(getenv(EXEC_VARIABLE));
}

static void receives_begin_with_what_was_left(void **state)
{
	char data[32];
	struct iovec iov = { data, sizeof(data) };
	int fds[2], rest = make_rest("left over");

	connect_pair(fds);
	set_variable("%d.%lx.%d,;", rest, (unsigned long)conn_cookie_of(fds[0]), fds[0]);
	assert_int_equal(fcntl(rest, F_GETFD), -1);
	assert_non_null(table_conn(fds[0]));
	assert_int_equal(engine_recv(table_conn(fds[0]), fds[0], &iov, 1, MSG_DONTWAIT), 9);
	assert_memory_equal(data, "left over", 9);
	assert_int_equal(send(fds[1], "raw", 3, 0), 3);
	assert_int_equal(engine_recv(table_conn(fds[0]), fds[0], &iov, 1, 0), ENGINE_BY_KERNEL);
	close_pair(fds);
}

/* None of these may touch a connection or a descriptor that has nothing to do with it. */
static void a_variable_of_nonsense_changes_nothing(void **state)
{
	int fds[2], rest = make_rest("x"), plain = memfd_create("plain", MFD_CLOEXEC);
	unsigned long cookie;
	char byte;

	connect_pair(fds);
	cookie = (unsigned long)conn_cookie_of(fds[0]);
	set_variable("%s", "");
	set_variable("%s", "nonsense");
	set_variable("%s", "..;..;..,,,;;;");
	set_variable("%s", "99999999999999999999.1.1,;");
	set_variable("-1.%lx.%d,;", cookie, fds[0]);
	set_variable("%d.%lx", rest, cookie);
	set_variable("%d.0.%d,;", rest, fds[0]);
	set_variable("%d.%lx.%d,;", plain, cookie, fds[0]);
	set_variable("%d.%lx.%d,;", fds[1], cookie, fds[0]);
	set_variable("%d.%lx.%d,;", 9999, cookie, fds[0]);
	assert_int_equal(send(fds[1], "y", 1, 0), 1);
	assert_int_equal(recv(fds[0], &byte, 1, 0), 1);
	assert_int_equal(byte, 'y');
	assert_int_equal(fcntl(plain, F_GETFD), FD_CLOEXEC);
	assert_int_equal(fcntl(rest, F_GETFD), 0);
	close_pair(fds);
	close(rest);
	close(plain);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_dynamic_program_is_ours_if_it_preloads_us),
		cmocka_unit_test(what_can_not_be_run_is_no_target),
		cmocka_unit_test(a_script_is_what_its_interpreter_is),
		cmocka_unit_test(a_program_with_other_rights_is_foreign),
		cmocka_unit_test(a_static_program_is_foreign),
		cmocka_unit_test(receives_begin_with_what_was_left),
		cmocka_unit_test(a_variable_of_nonsense_changes_nothing),
	};

	return cmocka_run_group_tests(tests, enter_directory, remove_directory);
}
