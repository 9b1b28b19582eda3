/* SPDX-License-Identifier: MIT */
/* What the kernel is asked of a socket that connects, and when: counted, and with another socket under its number. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "pair_testing.h"
#include "preload/engine_in.h"
#include "preload/far.h"
#include "preload/real.h"

#define MARK (-77) /* a process group that there is none of */

static bool has_device;

/* Whether RDMA is possible is the machine's, else. */
bool __wrap_far_possible(void);
bool __wrap_far_possible(void)
{
	return has_device;
}

static struct sockaddr_in address;
static int listening, client, server = -1;

static void start_library(void)
{
	assert_true(stats || !stats_start());
	assert_true(table || !table_start());
}

static int listen_plainly(void **state)
{
	socklen_t bytes = sizeof(address);

	address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	listening = real.socket(AF_INET, SOCK_STREAM, 0);
	return real.bind(listening, (struct sockaddr *)&address, sizeof(address)) || real.listen(listening, 8) ||
	       getsockname(listening, (struct sockaddr *)&address, &bytes);
}

static int stop_listening(void **state)
{
	real.close(listening);
	return 0;
}

/* As the program would: all of it by the wrappers. */
static int open_client(void **state)
{
	start_library();
	has_device = true;
	client = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(client, (struct sockaddr *)&address, sizeof(address)))
		return -1;
	server = (int)sys_call(SYS_accept4, listening, 0, 0, 0, 0, 0);
	return server < 0 || !table_conn(client);
}

static int close_client(void **state)
{
	conn_close(client);
	real.close(client);
	real.close(server);
	return 0;
}

/* Another socket has the number, and nobody has seen it get it. */
static void replace_unseen(int domain, int type)
{
	int other = (int)sys_call(SYS_socket, domain, type, 0, 0, 0, 0);

	assert_true(other >= 0);
	assert_int_equal(sys_call(SYS_dup3, other, client, 0, 0, 0, 0), client);
	sys_call(SYS_close, other, 0, 0, 0, 0, 0);
}

static struct engine *engine(void)
{
	return atomic_load(&table_conn(client)->engine);
}

static void step_once(void)
{
	engine_step(table_conn(client), engine(), client);
}

/* Of a second connect(), in a process of its own. */
struct calls {
	int protocol, cookie, getsockname, getpeername, getpid, connects;
};

static int connect_one(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	sys_call(SYS_getpgid, MARK, 0, 0, 0, 0, 0);
	(void)!connect(fd, (struct sockaddr *)&address, sizeof(address));
	sys_call(SYS_getpgid, MARK, 0, 0, 0, 0, 0);
	return table_conn(fd) && atomic_load(&table_conn(fd)->engine) ? 0 : 1;
}

/* What a process does once is done by its first connection. */
static void connect_twice(void)
{
	start_library();
	ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	raise(SIGSTOP);
	_exit(connect_one() | connect_one());
}

static void add(struct calls *calls, const struct __ptrace_syscall_info *info)
{
	uint64_t number = info->entry.nr, name = info->entry.args[2];

	calls->protocol += number == SYS_getsockopt && name == SO_PROTOCOL;
	calls->cookie += number == SYS_getsockopt && name == SO_COOKIE;
	calls->getsockname += number == SYS_getsockname;
	calls->getpeername += number == SYS_getpeername;
	calls->getpid += number == SYS_getpid;
	calls->connects += number == SYS_connect;
}

static struct calls count_calls_of_connect(void)
{
	struct calls calls = { 0 };
	struct __ptrace_syscall_info info;
	int status, marks = 0;
	pid_t child = fork();

	if (!child)
		connect_twice();
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSTOPPED(status));
	assert_int_equal(ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL), 0);
	for (;;) {
		ptrace(PTRACE_SYSCALL, child, NULL, NULL);
		assert_int_equal(waitpid(child, &status, 0), child);
		if (WIFEXITED(status))
			break;
		assert_true(ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof(info), &info) > 0);
		if (info.op != PTRACE_SYSCALL_INFO_ENTRY)
			continue;
		if (info.entry.nr == SYS_getpgid && (int)info.entry.args[0] == MARK)
			marks++;
		else if (marks == 3)
			add(&calls, &info);
	}
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_int_equal(marks, 4);
	assert_int_equal(calls.connects, 1);
	return calls;
}

static void connecting_asks_the_kernel_nothing_of_the_socket(void **state)
{
	struct calls calls;

	has_device = true;
	calls = count_calls_of_connect();
	assert_int_equal(calls.protocol + calls.cookie + calls.getsockname + calls.getpeername, 0);
	assert_int_equal(calls.getpid, 1);
}

/* Whether the peer is on this host is all that matters then. */
static void connecting_asks_for_the_own_name_where_there_is_no_device(void **state)
{
	struct calls calls;

	has_device = false;
	calls = count_calls_of_connect();
	assert_int_equal(calls.getsockname, 1);
	assert_int_equal(calls.protocol + calls.cookie + calls.getpeername, 0);
	assert_int_equal(calls.getpid, 1);
}

static void first_call_that_moves_data_tells_which_socket_it_is(void **state)
{
	struct conn *conn = table_conn(client);

	assert_int_equal(atomic_load(&conn->cookie), 0);
	engine()->next_try = UINT32_MAX; /* it looks for its peer later */
	step_once();
	assert_int_equal(atomic_load(&conn->cookie), conn_cookie_of(client));
	assert_true(conn_is_same(conn, client));
	replace_unseen(AF_INET, SOCK_STREAM);
	assert_false(conn_is_same(conn, client));
}

static void socket_of_another_kind_under_the_number_is_left_alone(void **state)
{
	replace_unseen(AF_INET, SOCK_DGRAM);
	step_once();
	assert_int_equal(atomic_load(&engine()->state), ENGINE_OVER);
	assert_false(conn_is_same(table_conn(client), client));
}

/* Two threads of the program: the number was closed and opened again while the kernel duplicated it. */
static void duplicate_of_what_had_the_number_before_is_not_the_connection(void **state)
{
	int other = (int)sys_call(SYS_socket, AF_INET, SOCK_STREAM, 0, 0, 0, 0), twin = dup(client);

	conn_dup(client, other);
	assert_null(table_conn(other));
	conn_dup(client, twin);
	assert_ptr_equal(table_conn(twin), table_conn(client));
	conn_close(twin);
	real.close(twin);
	real.close(other);
}

/* A TCP socket is made and closed. Returns its number, which the next one gets. */
static int make_and_close(void)
{
	int fd;

	start_library();
	fd = socket(AF_INET, SOCK_STREAM, 0);
	conn_close(fd);
	real.close(fd);
	return fd;
}

static void assert_left_alone(int fd, int expected)
{
	assert_int_equal(fd, expected);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_null(table_conn(fd));
	real.close(fd);
}

static void number_that_socket_made_long_ago_is_asked_about(void **state)
{
	int fd = make_and_close();

	assert_left_alone((int)sys_call(SYS_socket, AF_INET, SOCK_DGRAM, 0, 0, 0, 0), fd);
}

static void socket_that_is_none_of_tcp_is_asked_about(void **state)
{
	int fd = make_and_close();

	assert_left_alone(socket(AF_INET, SOCK_DGRAM, 0), fd);
}

static void own_name_is_told_once_it_is_asked_for(void **state)
{
	struct sockaddr_in local = { 0 };
	uint32_t slot = table_conn(client)->slot;

	assert_true(slot != 0);
	memcpy(&local, stats->slot[slot].local, sizeof(local));
	assert_int_equal(local.sin_family, 0);
	step_once();
	memcpy(&local, stats->slot[slot].local, sizeof(local));
	assert_int_equal(local.sin_family, AF_INET);
	assert_int_equal(ntohl(local.sin_addr.s_addr), INADDR_LOOPBACK);
	memcpy(&local, stats->slot[slot].peer, sizeof(local));
	assert_int_equal(local.sin_port, address.sin_port);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_client, close_client)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(connecting_asks_the_kernel_nothing_of_the_socket),
		cmocka_unit_test(connecting_asks_for_the_own_name_where_there_is_no_device),
		TEST(first_call_that_moves_data_tells_which_socket_it_is),
		TEST(socket_of_another_kind_under_the_number_is_left_alone),
		TEST(duplicate_of_what_had_the_number_before_is_not_the_connection),
		cmocka_unit_test(number_that_socket_made_long_ago_is_asked_about),
		cmocka_unit_test(socket_that_is_none_of_tcp_is_asked_about),
		TEST(own_name_is_told_once_it_is_asked_for),
	};

	settings.path = PATH_BSDP;
	settings.ring_bytes = 65536;
	return cmocka_run_group_tests(tests, listen_plainly, stop_listening);
}
