/* SPDX-License-Identifier: MIT */
/* zc stat: once, or again and again until Ctrl-C or the end of the process. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "apps/zc/commands.h"
#include "apps/zc/stat_find.h"
#include "apps/zc/stat_view.h"
#include "common/clock.h"

#define WATCH_MIN_S 0.1
#define WATCH_MAX_S 3600.0
#define PID_MOST 4194304 /* the kernel's own limit */
#define WHY_BYTES 8192

struct asked {
	pid_t pid;
	const char *file;
	bool json;
	double watch_s; /* 0: once */
};

/* One look at everything that was asked for. */
struct look {
	struct view *view;
	size_t count;
	size_t refused;
	size_t unreadable;
	char why[WHY_BYTES];
};

static volatile sig_atomic_t interrupted;

static void interrupt(int signal)
{
	interrupted = 1;
}

/* Asking ---------------------------------------------------------------------------------------------------------------- */

static int parse_target(const char *word, struct asked *out)
{
	char *end;
	long pid;

	if (!*word)
		return command_usage("stat", "'' is neither a PID nor a FILE");
	if (word[strspn(word, "0123456789")]) {
		out->file = word;
		return 0;
	}
	errno = 0;
	pid = strtol(word, &end, 10);
	if (errno || pid < 1 || pid > PID_MOST)
		return command_usage("stat", "PID %s: allowed is 1 to %d; a file of that name is ./%s", word, PID_MOST,
				     word);
	out->pid = (pid_t)pid;
	return 0;
}

static int parse_interval(const char *word, struct asked *out)
{
	char *end = NULL;

	out->watch_s = word ? strtod(word, &end) : 1.0;
	if (word && (!*word || *end || !(out->watch_s >= WATCH_MIN_S && out->watch_s <= WATCH_MAX_S)))
		return command_usage("stat", "--watch=%s: allowed is a number of seconds, %g to %g", word, WATCH_MIN_S,
				     WATCH_MAX_S);
	return 0;
}

/* Returns 0, EXIT_USAGE, or -1 when help was printed. */
static int parse(int argc, char **argv, struct asked *out)
{
	static const struct option options[] = {
		{ "json", no_argument, NULL, 'j' },
		{ "watch", optional_argument, NULL, 'w' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int option, rc;

	*out = (struct asked){ 0 };
	opterr = 0;
	while ((option = getopt_long(argc, argv, ":w::h", options, NULL)) != -1) {
		switch (option) {
		case 'j':
			out->json = true;
			break;
		case 'w':
			rc = parse_interval(optarg, out);
			if (rc)
				return rc;
			break;
		case 'h':
			command_help("stat");
			return -1;
		default:
			return command_bad_option("stat", option, argv);
		}
	}
	if (argc - optind > 1)
		return command_usage("stat", "one PID or FILE at a time, and not also '%s'", argv[optind + 1]);
	return optind < argc ? parse_target(argv[optind], out) : 0;
}

/* Looking --------------------------------------------------------------------------------------------------------------- */

static void look_free(struct look *look)
{
	for (size_t i = 0; i < look->count; i++)
		view_free(&look->view[i]);
	free(look->view);
	*look = (struct look){ 0 };
}

static int look_at_all(struct look *out)
{
	struct found_list list;
	int rc = found_all(&list);

	if (rc) {
		snprintf(out->why, sizeof(out->why), "/proc: %s", strerror(-rc));
		return rc;
	}
	out->refused = list.refused;
	out->unreadable = list.unreadable;
	out->view = calloc(list.count ? list.count : 1, sizeof(*out->view));
	rc = out->view ? 0 : -ENOMEM;
	while (!rc && out->count < list.count) {
		rc = view_make(&list.row[out->count], &out->view[out->count]);
		out->count += !rc;
	}
	found_list_free(&list);
	if (!rc && !out->count) {
		snprintf(out->why, sizeof(out->why),
			 "no process with TCP connections under zc was found (%zu of other "
			 "versions, %zu that may not be looked into%s); start one with `zc run`",
			 out->unreadable, out->refused, out->refused ? ": be their user or try sudo" : "");
		rc = -ESRCH;
	}
	return rc;
}

static int look_at(const struct asked *asked, struct look *out)
{
	struct found found = { 0 };
	int rc;

	*out = (struct look){ 0 };
	if (!asked->pid && !asked->file)
		return look_at_all(out);
	rc = asked->pid ? found_of_process(asked->pid, &found, out->why, sizeof(out->why)) :
			  found_of_file(asked->file, &found, out->why, sizeof(out->why));
	if (rc)
		return rc;
	out->view = calloc(1, sizeof(*out->view));
	rc = out->view ? view_make(&found, out->view) : -ENOMEM;
	out->count = !rc;
	stats_unmap(found.segment);
	if (rc)
		snprintf(out->why, sizeof(out->why), "%s", strerror(-rc));
	return rc;
}

static void rates_since(struct look *now, const struct look *before)
{
	for (size_t i = 0; i < now->count; i++)
		for (size_t k = 0; k < before->count; k++)
			if (now->view[i].pid == before->view[k].pid &&
			    now->view[i].started_ns == before->view[k].started_ns)
				view_rates(&now->view[i], &before->view[k]);
}

/* Showing --------------------------------------------------------------------------------------------------------------- */

static int show_json(const struct look *look, bool watch)
{
	json_t *processes = json_array(), *root;
	int rc;

	for (size_t i = 0; i < look->count; i++)
		json_array_append_new(processes, view_json(&look->view[i], watch));
	root = json_pack("{s:o, s:I, s:I}", "processes", processes, "not_permitted", (json_int_t)look->refused,
			 "not_readable", (json_int_t)look->unreadable);
	rc = root ? json_dumpf(root, stdout, watch ? JSON_COMPACT : JSON_INDENT(2)) : -1;
	json_decref(root);
	putchar('\n');
	return rc ? command_failed("stat", "JSON can't be written: %s", strerror(errno ? errno : ENOMEM)) : 0;
}

static void print_look(FILE *out, const struct look *look, bool rates)
{
	for (size_t i = 0; i < look->count; i++) {
		if (i)
			fputc('\n', out);
		view_print(out, &look->view[i], rates);
	}
	if (look->unreadable)
		fprintf(out, "\n%zu processes have statistics of another version of zc.\n", look->unreadable);
}

/* Prints as much of the text as the terminal holds, over what was there. */
static void redraw(const char *text)
{
	struct winsize size = { 0 };
	int rows = !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) && size.ws_row > 1 ? size.ws_row : 24;
	int columns = size.ws_col > 1 ? size.ws_col : 80;

	fputs("\033[H\033[J", stdout);
	for (int row = 1; *text && row < rows; row++) {
		int bytes = (int)strcspn(text, "\n");

		printf("%.*s\n", bytes < columns ? bytes : columns - 1, text);
		text += bytes + (text[bytes] == '\n');
	}
	if (*text)
		fputs("... more than the terminal holds", stdout);
}

static int show(const struct asked *asked, const struct look *look)
{
	bool watch = asked->watch_s > 0.0;
	char *text = NULL;
	size_t bytes;
	FILE *out;

	if (asked->json)
		return show_json(look, watch);
	if (!watch || !isatty(STDOUT_FILENO)) {
		print_look(stdout, look, watch);
		return 0;
	}
	out = open_memstream(&text, &bytes);
	if (!out)
		return command_failed("stat", "%s", strerror(errno));
	print_look(out, look, watch);
	fclose(out);
	redraw(text);
	free(text);
	return 0;
}

/* Watching -------------------------------------------------------------------------------------------------------------- */

/* Waits for the interval, the end of the process or a signal. Returns false when the watch is over. */
static bool wait_more(int process, double seconds, const sigset_t *unblocked)
{
	struct timespec interval = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };
	struct pollfd fd = { .fd = process, .events = POLLIN };
	int rc = interrupted ? -1 : ppoll(&fd, 1, &interval, unblocked);

	return !interrupted && rc <= 0;
}

/* Signals are let in while waiting only, so that no line is cut in the middle. */
static void take_signals(sigset_t *unblocked)
{
	struct sigaction action = { .sa_handler = interrupt };
	sigset_t ours;

	sigemptyset(&ours);
	sigaddset(&ours, SIGINT);
	sigaddset(&ours, SIGTERM);
	sigprocmask(SIG_BLOCK, &ours, unblocked);
	sigdelset(unblocked, SIGINT);
	sigdelset(unblocked, SIGTERM);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

static int watch(const struct asked *asked, struct look *before, int process, const sigset_t *unblocked)
{
	struct look now;
	int rc = 0;

	while (!rc && wait_more(process, asked->watch_s, unblocked)) {
		if (look_at(asked, &now)) {
			look_free(&now);
			break; /* it has ended, or become another program */
		}
		rates_since(&now, before);
		look_free(before);
		*before = now;
		rc = show(asked, before);
		if (!rc)
			rc = command_flush("stat");
	}
	if (!rc && !interrupted && !asked->json)
		puts("\nThe process has ended, or is no longer under zc.");
	return rc;
}

/* Returns a descriptor that tells the end of what is watched, -1 when there is nothing of the kind. */
static int open_process(const struct look *look, const struct asked *asked)
{
	if (!asked->pid && !asked->file)
		return -1;
	return (int)syscall(SYS_pidfd_open, look->view[0].pid, 0);
}

int zc_stat(int argc, char **argv)
{
	struct look look = { 0 };
	struct asked asked;
	sigset_t unblocked;
	int rc = parse(argc, argv, &asked), process;

	if (rc)
		return rc < 0 ? command_flush("stat") : rc;
	if (asked.watch_s > 0.0)
		take_signals(&unblocked);
	rc = look_at(&asked, &look);
	if (rc) {
		rc = command_failed("stat", "%s", look.why);
		goto free_look;
	}
	rc = show(&asked, &look);
	if (!rc)
		rc = command_flush("stat");
	if (!rc && asked.watch_s > 0.0 && (!asked.file || look.view[0].running != FOUND_ENDED)) {
		process = open_process(&look, &asked);
		rc = watch(&asked, &look, process, &unblocked);
		if (process >= 0)
			close(process);
		if (!rc)
			rc = command_flush("stat");
	}
free_look:
	look_free(&look);
	return rc;
}
