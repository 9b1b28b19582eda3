/* SPDX-License-Identifier: MIT */
/*
 * Prints zc(1) or libzc(7), made from the lists that the program and the library themselves are made from, so that no setting,
 * counter, command or call can be missing. Run by the build.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "common/settings.h"
#include "common/stats.h"
#include "common/version.h"

/* Text with what troff would take for its own made plain. */
static void put(const char *text)
{
	int line_start = 1;

	for (; *text; text++) {
		if (line_start && (*text == '.' || *text == '\''))
			fputs("\\&", stdout);
		if (*text == '\\')
			fputs("\\e", stdout);
		else if (*text == '-')
			fputs("\\-", stdout);
		else
			putchar(*text);
		line_start = *text == '\n';
	}
}

static void item(const char *name, const char *text)
{
	fputs(".TP\n.B ", stdout);
	put(name);
	putchar('\n');
	put(text);
	putchar('\n');
}

/* Paragraphs are separated by an empty line. */
static void paragraphs(const char *text)
{
	const char *end;

	while ((end = strstr(text, "\n\n"))) {
		char part[4096];

		snprintf(part, sizeof(part), "%.*s", (int)(end - text), text);
		put(part);
		fputs("\n.PP\n", stdout);
		text = end + 2;
	}
	put(text);
	putchar('\n');
}

static void heading(const char *page, const char *section, const char *what)
{
	printf(".TH %s %s \"\" \"zc %s\" \"\"\n.SH NAME\n", page, section, ZC_VERSION);
	put(what);
	putchar('\n');
}

struct command {
	const char *id, *synopsis, *summary, *description;
};

static const struct command commands[] = {
#define ZC_COMMAND(id, synopsis, summary, description) { #id, synopsis, summary, description },
#include "apps/zc/commands.def"
};

static const struct {
	const char *id, *option, *help;
} options[] = {
#define ZC_OPTION(command, option, help) { #command, option, help },
#include "apps/zc/commands.def"
};

static const struct {
	const char *name, *what, *remedy;
} checks[] = {
#define ZC_CHECK(id, name, needed, what, remedy) { name, what, remedy },
#include "apps/zc/doctor.def"
#undef ZC_CHECK
};

static void print_command(const struct command *command)
{
	fputs(".SS zc ", stdout);
	put(command->id);
	fputs("\n.B zc ", stdout);
	put(command->id);
	putchar(' ');
	put(command->synopsis);
	fputs("\n.PP\nThis command ", stdout);
	put(command->summary);
	fputs(".\n.PP\n", stdout);
	paragraphs(command->description);
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		if (!strcmp(options[i].id, command->id))
			item(options[i].option, options[i].help);
	}
}

static void print_zc(void)
{
	heading("ZC", "1", "zc - run programs under libzc.so, and see what that changes");
	puts(".SH SYNOPSIS\n.B zc\n.I COMMAND\n[ARGUMENT...]\n.br\n.B zc help\n[COMMAND]\n.br\n.B zc \\-\\-version\n.SH COMMANDS");
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		print_command(&commands[i]);
	puts(".SH WHAT ZC DOCTOR LOOKS AT");
	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
		char text[1024];

		if (*checks[i].remedy)
			snprintf(text, sizeof(text), "%s. Remedy: %s.", checks[i].what, checks[i].remedy);
		else
			snprintf(text, sizeof(text), "%s.", checks[i].what);
		item(checks[i].name, text);
	}
	puts(".SH EXIT STATUS\n0 on success, 1 for a failure, 2 for wrong usage; of\n.B zc run\n"
	     "that of the program, 126 or 127 if it can't be executed or found.\n"
	     ".SH SEE ALSO\n.BR libzc (7),\n.BR zc\\-msg (1),\n.BR zc\\-writes (1),\n.BR zc\\-ttcp (1)");
}

/* Returns the row's standard in words, and in *bytes how much of that is to be printed. */
static const char *standard_of(const struct setting_row *row, int *bytes)
{
	const char *from = row->allowed;

	*bytes = (int)strlen(row->standard);
	if (*bytes || !strchr(row->allowed, '|'))
		return row->standard;
	for (unsigned int i = 0; i < row->choice && strchr(from, '|'); i++)
		from = strchr(from, '|') + 1;
	*bytes = (int)strcspn(from, "|");
	return from;
}

static void print_settings(void)
{
	puts(".SH SETTINGS\nEnvironment variables. A value that is refused is told on standard error and leaves the standard in place.");
	for (size_t i = 0; i < setting_row_count; i++) {
		const struct setting_row *row = &setting_rows[i];
		char text[1024];
		int bytes;
		const char *standard = standard_of(row, &bytes);

		snprintf(text, sizeof(text), "%s. Allowed: %s. Standard: %.*s.", row->help, row->allowed,
			 bytes ? bytes : 4, bytes ? standard : "none");
		item(row->env, text);
	}
}

static void print_rows(const char *title, const struct stat_row *rows, size_t count)
{
	fputs(".SS ", stdout);
	put(title);
	putchar('\n');
	for (size_t i = 0; i < count; i++)
		item(rows[i].name, rows[i].help);
}

static void print_calls(void)
{
	static const char *const calls[] = {
#define ZC_CALL(ret, name, params, args) #name,
#define ZC_VOID(name, params, args) #name,
#define ZC_NORETURN(name, params, args) #name,
#define ZC_VARIADIC(ret, name, params) #name,
#define ZC_JUMP(ret, name, params) #name,
#define ZC_ALIAS(ret, name, of, params, args) #name,
#include "preload/calls.def"
	};

	puts(".SH INTERCEPTED CALLS");
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		put(calls[i]);
		puts(i + 1 < sizeof(calls) / sizeof(calls[0]) ? "," : ".");
	}
}

static void print_libzc(void)
{
	heading("LIBZC", "7",
		"libzc - moves the bytes of an unmodified TCP program over the cheapest path that is correct");
	puts(".SH SYNOPSIS\n.B LD_PRELOAD=libzc.so\n.I PROGRAM\n.SH PATHS");
	for (int i = 0; i < PATH_COUNT; i++)
		item(path_name((enum zc_path)i), path_help((enum zc_path)i));
	print_settings();
	puts(".SH RULES\nA file named by ZC_RULES, one rule a line; # begins a comment; the first that matches wins:\n.PP\n"
	     ".nf\nuse PATH|tcp server|client PROGRAM ADDRESS/PREFIX:PORT\n.fi\n.PP\n"
	     "PROGRAM is a file name with * and ?; ADDRESS is IPv4, IPv6 in brackets, or *; PORT a number, a range A\\-B, or *. For a\n"
	     "server the address and port are its own, for a client those of the other end.");
	puts(".SH COUNTERS\nShown by\n.BR zc\\ stat .");
	print_rows("Of a connection and path", stat_path_rows, STAT_PATH_COUNT);
	print_rows("Of a connection", stat_conn_rows, STAT_CONN_COUNT);
	print_rows("Of a process", stat_process_rows, STAT_PROCESS_COUNT);
	print_rows("Why a send did not take a faster path", stat_reason_rows, REASON_COUNT);
	print_calls();
	puts(".SH LIMITS\nNot reached: static programs, programs with set\\-user\\-ID or file capabilities, other libcs, Go programs.\n"
	     "Not seen: system calls that a program makes by bare instructions; the connection stays right, on TCP. A program that makes an\n"
	     "io_uring by syscall(), or maps one by mmap(), has all its connections on TCP from then on.\n"
	     "A child of a fork by a bare instruction, made while RDMA\'s libraries are being loaded (once in a process), must not use libc\'s loader: exit(), dlopen() and new threads wait for ever.\n"
	     "exit() while RDMA\'s libraries are being loaded, or a device opened (once in a process, some ten milliseconds), waits for that, a second at most; _exit() does not.\n"
	     "A connection that a packet filter sends to another address or port (REDIRECT, DNAT) stays on TCP. Where it changes a connection\'s own port (SNAT; of one that would "
	     "otherwise be the same as a redirected one), and another connection of that user\'s has that port itself, the two are told apart by how much they have sent and received, and when: "
	     "if they began within some milliseconds of each other (between hosts, within a second, and the first waited for its accept() meanwhile) and have done the same since, they may have each other\'s bytes. "
	     "A rule should keep such ports on tcp.\n"
	     "An epoll set in another set is told as readable once more than it is if bytes were left in a connection\'s ring when that was registered: one should wait in it without blocking.\n"
	     "epoll_wait(2) with room for one event tells that one again and again as long as it is not taken, if it is of a ring that another process holds too (or, where the program does something else between its waits, one of the kernel\'s in front of a ring\'s): give it room for more.\n"
	     "A handler of pthread_atfork() that a library\'s constructor has registered before libzc.so began must not wait for a thread that opens or closes a connection.\n"
	     "A process that is killed outright loses the bytes that sg has held, of at most ZC_SG_HOLD_US microseconds.\n"
	     "A bad address given to a send that sg gathers, to a send or receive on a ring, or to a wait, is a fault of the program, not EFAULT.\n"
	     "Where the guard is mprotect, a call that has the kernel write to a sent buffer fails with EFAULT if it is made by a bare instruction, or is "
	     "none of those that move bytes, wait, or read files (readlink, getdents64, stat, msgrcv, getsockname).\n"
	     "A signal mask that is set by sigblock(), sigsetmask(), sighold() or a bare instruction, and has SIGSEGV in it, may end a program under that guard; "
	     "a command that system() or popen() runs has SIGSTKFLT blocked in place of SIGSEGV.\n"
	     "A stack that a program makes and switches to itself (makecontext(), fibers) must not be what azsdp or zerocopy sends from under that guard: a call that grows into guarded pages ends the process. "
	     "A rule should keep such a program on copy, bsdp or zsdp.\n"
	     "On azsdp, a peer on this host that may no longer read the sender\'s memory (it has changed its user or entered Landlock, or the sender has become undumpable, behind their first large sends) has what was "
	     "announced before that with the sender\'s next send, not earlier.\n"
	     "On a ring: a connection that is taken from its process by pidfd_getfd() lacks what is unread in the ring; receives tell no time stamps "
	     "(SO_TIMESTAMP and the like); bytes sent to a peer that has shut down both ways may be received by it; and if a peer is killed with bytes unread, receives "
	     "fail with ECONNRESET as over TCP, but waits and SO_ERROR tell of an end of file.\n"
	     "Each connection that has met has about 12 MiB of address space, in three mappings: mlockall(MCL_CURRENT) locks those that are there (not those that come, by MCL_FUTURE), and connections "
	     "that would take more than half of vm.max_map_count stay on TCP.\n.SH HAZARDS\nOf ZC_RECV_SINK=yes: a program that leaves a receive in another way than by its return or its cancellation (longjmp() out of a signal's "
	     "handler) leaves its memory to the peer, whose next large send is written there.\n.PP\nOf ZC_RECV_ASYNC=yes: a receive returns before its bytes are there, and whoever touches them waits.\n"
	     "If the sender is killed in between, nobody has these bytes any more: their pages then end who touches them with SIGBUS\n"
	     "(system calls with an error) until the memory is freed, unmapped or received into again, and the next receive fails with\n"
	     "ECONNRESET. A program that unmaps, moves or drops such memory, or forks, by bare system call instructions meanwhile may\n"
	     "find zeroes there. It needs a userfaultfd that sees the kernel's faults, on Linux 6.6 or later; elsewhere it does nothing,\n"
	     "is counted as no_recv_async, and\n.B zc doctor\nsays why.\n.PP\nBetween hosts there is none of that: what is announced behind the bytes that a receive takes is\n"
	     "fetched into memory of the library's, 1 MiB of it at most, while the program goes on, and copied when it is received.\n.SH SEE ALSO\n.BR zc (1)");
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "zc.1"))
		print_zc();
	else if (argc == 2 && !strcmp(argv[1], "libzc.7"))
		print_libzc();
	else
		return fprintf(stderr, "usage: zc-man zc.1|libzc.7\n"), 2;
	return ferror(stdout) || fflush(stdout) ? 1 : 0;
}
