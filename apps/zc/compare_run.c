/* SPDX-License-Identifier: MIT */
/*
 * One run: a directory, a port, the server; when it is ready the client; what the client printed; verification; the end
 * of all of them. Every wait is a poll of the keepers' reports, the signals that end zc, and a deadline.
 */
#define _GNU_SOURCE
#include "apps/zc/compare_run.h"

#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/zc/compare_keeper.h"
#include "common/clock.h"

#define OUTPUT_BYTES_MAX (64u << 20)
/* Of a packet of TCP: IPv4 without options on the loopback interface, and IPv6 with timestamps and Ethernet's own. */
#define HEADER_BYTES_MIN 40.0
#define HEADER_BYTES_MAX 86.0
#define BACKOFF_FIRST_NS NS_PER_MS
#define BACKOFF_MAX_NS (32 * NS_PER_MS)

struct one {
	struct bench *bench;
	enum zc_path path;
	struct run *run;
	char port[8];
	char directory[PATH_MAX + 32], work[PATH_MAX + 48], stats[PATH_MAX + 48];
	struct keeper server, client;
	struct meter server_meter, client_meter;
	bool server_gone; /* and all that it started */
};

/* Failure ------------------------------------------------------------------------------------------------------------ */

static void fail(struct one *one, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fail(struct one *one, const char *format, ...)
{
	va_list list;

	if (one->run->failed)
		return; /* the first one is the cause */
	one->run->failed = true;
	va_start(list, format);
	if (vasprintf(&one->run->failure, format, list) < 0)
		one->run->failure = NULL;
	va_end(list);
}

static void file_of(const struct one *one, const char *role, const char *kind, char *out, size_t bytes)
{
	snprintf(out, bytes, "%s/%s.%s", one->directory, role, kind);
}

static void say_status(int status, char *out, size_t bytes)
{
	if (WIFSIGNALED(status))
		snprintf(out, bytes, "was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		snprintf(out, bytes, "ended with exit status %d%s", WEXITSTATUS(status),
			 WEXITSTATUS(status) == 127 ? " (is a program missing?)" : "");
}

/* Fails with a sentence and the last words of the process that it is about. */
static void fail_of(struct one *one, const char *role, const char *what)
{
	char file[PATH_MAX + 64];
	char *tail;

	file_of(one, role, "err", file, sizeof(file));
	tail = text_tail(file);
	if (tail && !*tail) {
		free(tail);
		file_of(one, role, "out", file, sizeof(file));
		tail = text_tail(file);
	}
	fail(one, "%s %s%s%s", role, what, tail && *tail ? ":\n" : "", tail ? tail : "");
	free(tail);
}

static void fail_status(struct one *one, const char *role, int status)
{
	char what[128];

	say_status(status, what, sizeof(what));
	fail_of(one, role, what);
}

/* Waiting ------------------------------------------------------------------------------------------------------------ */

void take_signal(struct bench *bench)
{
	struct signalfd_siginfo info;

	if (read(bench->signals, &info, sizeof(info)) == sizeof(info))
		bench->stopped = (int)info.ssi_signo;
}

/* Returns 1 with the note, 0 when there is none now, -EPIPE when the keeper has gone without one. */
static int read_note(const struct keeper *keeper, struct keeper_note *note)
{
	ssize_t got = read(keeper->report, note, sizeof(*note));

	if (got == sizeof(*note))
		return 1;
	return got < 0 && errno == EINTR ? 0 : -EPIPE;
}

/* Looks at the server's report. Returns 0, or -ECHILD with the run failed when it has ended in a way that it should not. */
static int look_at_server(struct one *one)
{
	struct keeper_note note;
	int rc = read_note(&one->server, &note);

	/* Status 0 is no end of it: it may have gone to the background. */
	if (rc > 0 && note.status)
		fail_status(one, "server", note.status);
	if (rc < 0)
		one->server_gone = true;
	return one->run->failed ? -ECHILD : 0;
}

/* Waits for events, at most until `deadline`. Returns 0, -EINTR when zc is to end, -ECHILD when the server failed. */
static int wait_events(struct one *one, int other, uint64_t deadline, bool *other_ready)
{
	struct pollfd fds[] = {
		{ one->bench->signals, POLLIN, 0 },
		{ one->server_gone ? -1 : one->server.report, POLLIN, 0 },
		{ other, POLLIN, 0 },
	};
	uint64_t now = clock_now();
	uint64_t left = deadline > now ? deadline - now : 0;
	struct timespec timeout = { (time_t)(left / NS_PER_SEC), (long)(left % NS_PER_SEC) };

	*other_ready = false;
	if (ppoll(fds, 3, &timeout, NULL) <= 0)
		return 0;
	if (fds[0].revents) {
		take_signal(one->bench);
		fail(one, "interrupted");
		return -EINTR;
	}
	*other_ready = fds[2].revents;
	return fds[1].revents ? look_at_server(one) : 0;
}

static uint64_t deadline_of(const struct one *one)
{
	return clock_now() + (uint64_t)(one->bench->options->timeout_s * (double)NS_PER_SEC);
}

/* Waits for a command to end. Returns 0 with the note, or an error with the run failed. */
static int wait_command(struct one *one, const char *role, struct keeper *keeper, struct keeper_note *note)
{
	uint64_t deadline = deadline_of(one);
	char what[64];
	bool ready;
	int rc;

	for (;;) {
		rc = wait_events(one, keeper->report, deadline, &ready);
		if (rc == -EINTR)
			return rc;
		if (ready) {
			int got = read_note(keeper, note);

			if (got > 0)
				return 0;
			if (got < 0)
				fail(one, "%s: its keeper was killed", role);
		}
		if (one->run->failed)
			return -ECHILD;
		if (!ready && clock_now() >= deadline) {
			snprintf(what, sizeof(what), "did not end within %g s (--timeout)",
				 one->bench->options->timeout_s);
			fail_of(one, role, what);
			return -ETIMEDOUT;
		}
	}
}

/* The server --------------------------------------------------------------------------------------------------------- */

static unsigned int ready_port(const struct one *one)
{
	const char *text = one->bench->options->ready_text;

	return (unsigned int)strtoul(strcmp(text, "{port}") ? text : one->port, NULL, 10);
}

static bool is_ready(const struct one *one)
{
	char file[PATH_MAX + 64];

	if (one->bench->options->ready == READY_PORT)
		return port_is_listened_to(ready_port(one));
	file_of(one, "server", "out", file, sizeof(file));
	if (line_has_come(file, &one->bench->options->ready_regex))
		return true;
	file_of(one, "server", "err", file, sizeof(file));
	return line_has_come(file, &one->bench->options->ready_regex);
}

/* Watches what the server prints; listening has no event of its own and is looked for again after a growing time. */
static int open_watch(const struct one *one)
{
	int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

	if (fd >= 0 && inotify_add_watch(fd, one->directory, IN_MODIFY | IN_CREATE) >= 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

static int wait_ready(struct one *one, int watch)
{
	uint64_t deadline = deadline_of(one), backoff = BACKOFF_FIRST_NS;
	char events[4096], what[128];
	bool printed;

	while (!is_ready(one)) {
		uint64_t now = clock_now();
		int rc;

		if (now >= deadline) {
			snprintf(what, sizeof(what), "was not ready within %g s (--timeout, --ready)",
				 one->bench->options->timeout_s);
			fail_of(one, "server", what);
			return -ETIMEDOUT;
		}
		if (one->bench->options->ready == READY_PORT || watch < 0)
			now += backoff;
		else
			now = deadline;
		rc = wait_events(one, watch, now < deadline ? now : deadline, &printed);
		if (!rc && one->server_gone) {
			fail_of(one, "server", "ended before it was ready");
			rc = -ECHILD;
		}
		if (rc)
			return rc;
		if (printed && read(watch, events, sizeof(events)) < 0)
			printed = false;
		backoff = backoff < BACKOFF_MAX_NS ? 2 * backoff : backoff;
	}
	return 0;
}

static int start(struct one *one, const char *role, const char *command, bool preload, const struct meter *meter,
		 struct keeper *out)
{
	char printed[PATH_MAX + 64], output[PATH_MAX + 64], error[PATH_MAX + 64];
	const struct placeholder list[] = {
		{ "{port}", one->port }, { "{address}", server_address(one->bench->options) },
		{ "{dir}", one->work },	 { "{path}", path_name(one->path) },
		{ "{output}", printed }, { 0 },
	};
	struct keeper_plan plan = {
		.output = output,
		.error = error,
		.meter = meter,
		.path = path_name(one->path),
		.stats_dir = one->stats,
		.rdma_wait = lab_rdma_wait(one->bench->options, one->path),
		.library = preload && one->path != PATH_TCP ? one->bench->library : NULL,
	};
	char *text;
	int rc = -ENOMEM;

	file_of(one, "client", "out", printed, sizeof(printed));
	file_of(one, role, "out", output, sizeof(output));
	file_of(one, role, "err", error, sizeof(error));
	text = text_substitute(command, list);
	plan.command = text;
	if (text)
		rc = keeper_start(&plan, out);
	if (rc)
		fail(one, "%s can't be started: %s", role, strerror(-rc));
	free(text);
	return rc;
}

static int start_server(struct one *one)
{
	const struct compare_options *options = one->bench->options;
	int watch, rc;

	if (options->ready == READY_PORT && port_is_listened_to(ready_port(one))) {
		fail(one, "server: port %u is in use already", ready_port(one));
		return -EADDRINUSE;
	}
	watch = open_watch(one);
	rc = start(one, "server", options->server, options->preload_server, &one->server_meter, &one->server);
	if (!rc)
		rc = wait_ready(one, watch);
	if (watch >= 0)
		close(watch);
	return rc;
}

/* The client --------------------------------------------------------------------------------------------------------- */

static void take_figures(struct one *one, double through_interfaces)
{
	const struct compare_options *options = one->bench->options;
	char file[PATH_MAX + 64], why[256];
	char *text;

	file_of(one, "client", "out", file, sizeof(file));
	text = text_read(file, OUTPUT_BYTES_MAX);
	one->run->value = one->run->wall_s;
	one->run->bytes = through_interfaces;
	if (!text)
		fail(one, "no memory for the client's output");
	else if (options->metric.kind != EXTRACT_NONE &&
		 extract_number(&options->metric, text, &one->run->value, why, sizeof(why)))
		fail_of(one, "client", why);
	else if (options->bytes.kind != EXTRACT_NONE &&
		 extract_number(&options->bytes, text, &one->run->bytes, why, sizeof(why)))
		fail_of(one, "client", why);
	free(text);
}

/* What rings have carried so far in this run: no interface has seen it, unless they are between hosts. */
static double through_rings(const struct one *one, const struct stats_sum *sum)
{
	if (one->bench->options->lab)
		return 0.0;
	return (double)(sum->all.path[PATH_BSDP].counter[STAT_PATH_BYTES] +
			sum->all.path[PATH_ZSDP].counter[STAT_PATH_BYTES] +
			sum->all.path[PATH_AZSDP].counter[STAT_PATH_BYTES]);
}

/* Notes what the programs themselves have moved: by the library where it is, else by what headers leave of the packets. */
static void take_payload(struct one *one, const struct stats_sum *sum, const struct traffic *traffic)
{
	const struct compare_options *options = one->bench->options;
	double sent = 0.0, received = (double)sum->all.counter[STAT_CONN_RECV_BYTES];

	if (one->path == PATH_TCP) {
		one->run->payload_min = traffic->bytes - HEADER_BYTES_MAX * traffic->packets;
		one->run->payload_max = traffic->bytes - HEADER_BYTES_MIN * traffic->packets;
		return;
	}
	for (int p = 0; p < PATH_COUNT; p++)
		sent += (double)sum->all.path[p].counter[STAT_PATH_BYTES];
	if (!options->preload_server || !options->preload_client)
		sent += received; /* what the other end has sent */
	else if (received > 1.05 * sent)
		return; /* somebody has sent who is out of reach */
	one->run->payload_min = one->run->payload_max = sent;
}

/* Both ends of the link between the lab's hosts are interfaces of one machine. */
static struct traffic traffic_since(const struct one *one, const struct traffic *before)
{
	struct traffic now = interface_traffic();
	double share = one->bench->options->lab ? 0.5 : 1.0;

	return (struct traffic){ (now.bytes - before->bytes) * share, (now.packets - before->packets) * share };
}

static int run_client(struct one *one)
{
	const struct compare_options *options = one->bench->options;
	double server_before = meter_cpu(&one->server_meter, one->server.pid);
	struct traffic before = interface_traffic();
	struct keeper_note note;
	double whole;
	int rc = start(one, "client", options->client, options->preload_client, &one->client_meter, &one->client);

	if (!rc)
		rc = wait_command(one, "client", &one->client, &note);
	if (!rc) {
		struct traffic traffic = traffic_since(one, &before);
		struct stats_sum sum = { 0 };

		if (options->bytes.kind == EXTRACT_NONE) {
			stats_sum_add(&sum, one->stats);
			take_payload(one, &sum, &traffic);
		}
		one->run->cpu_server_s = meter_cpu(&one->server_meter, one->server.pid) - server_before;
		one->run->cpu_client_s = meter_cpu(&one->client_meter, one->client.pid);
		one->run->wall_s = (double)(note.ended_ns - note.started_ns) / (double)NS_PER_SEC;
		if (note.status)
			fail_status(one, "client", note.status);
		else
			take_figures(one, traffic.bytes + through_rings(one, &sum));
	}
	whole = keeper_stop(&one->client);
	if (!*one->client_meter.group)
		one->run->cpu_client_s = whole; /* without a group: the sum that the kernel keeps of ended children */
	return one->run->failed ? -ECHILD : 0;
}

/* A verification is a command with the server still there; what the client printed is the file {output}. */
static void verify(struct one *one)
{
	const struct compare_options *options = one->bench->options;
	struct keeper_note note;
	struct keeper keeper = { .report = -1 };

	if (!start(one, "verification", options->verify, options->preload_client, &one->client_meter, &keeper) &&
	    !wait_command(one, "verification", &keeper, &note) && note.status)
		fail_status(one, "verification", note.status);
	keeper_stop(&keeper);
}

/* All ---------------------------------------------------------------------------------------------------------------- */

static int remove_one(const char *name, const struct stat *info, int kind, struct FTW *where)
{
	remove(name);
	return 0;
}

void remove_tree(const char *directory)
{
	nftw(directory, remove_one, 32, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static int make_room(struct one *one)
{
	snprintf(one->directory, sizeof(one->directory), "%s/%u", one->bench->directory, ++one->bench->runs);
	snprintf(one->work, sizeof(one->work), "%s/dir", one->directory);
	snprintf(one->stats, sizeof(one->stats), "%s/stats", one->directory);
	/* A server may go on as another user; names are not to be guessed, since the directory above can't be listed. */
	if (mkdir(one->directory, 0711) || mkdir(one->work, 0700) || chmod(one->work, 01777) ||
	    mkdir(one->stats, 0700) || chmod(one->stats, 01777))
		return -errno;
	return port_pick(one->port);
}

void run_once(struct bench *bench, enum zc_path path, struct run *out, struct stats_sum *sum)
{
	struct one one = { .bench = bench,
			   .path = path,
			   .run = out,
			   .server = { .report = -1 },
			   .client = { .report = -1 } };
	int rc = make_room(&one);

	out->bytes = out->payload_min = out->payload_max = NAN;
	if (rc) {
		fail(&one, "%s: %s", one.directory, strerror(-rc));
		remove_tree(one.directory);
		return;
	}
	meter_open(&one.server_meter, "server");
	meter_open(&one.client_meter, "client");
	if (!start_server(&one) && !run_client(&one) && bench->options->verify)
		verify(&one);
	keeper_stop(&one.server);
	meter_close(&one.client_meter);
	meter_close(&one.server_meter);
	if (sum)
		stats_sum_add(sum, one.stats);
	remove_tree(one.directory);
}
