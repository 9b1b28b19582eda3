/* SPDX-License-Identifier: MIT */
/* zc stat for people: a block for each process, and in it one for each connection. */
#include <stdio.h>
#include <string.h>

#include "apps/zc/stat_view.h"
#include "common/clock.h"

/* Writes a number of bytes with three digits and a decimal unit, as links are measured. */
static const char *bytes_text(double bytes, char *out, size_t size)
{
	static const char *const units[] = { "B", "kB", "MB", "GB", "TB", "PB", "EB" };
	size_t unit = 0;

	while (bytes >= 999.5 && unit + 1 < sizeof(units) / sizeof(units[0])) {
		bytes /= 1000.0;
		unit++;
	}
	snprintf(out, size, "%.*f %s", !unit || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2, bytes, units[unit]);
	return out;
}

static const char *time_text(double ns, char *out, size_t size)
{
	if (ns >= 1e9)
		snprintf(out, size, "%.2f s", ns / 1e9);
	else if (ns >= 1e6)
		snprintf(out, size, "%.2f ms", ns / 1e6);
	else if (ns >= 1e3)
		snprintf(out, size, "%.1f us", ns / 1e3);
	else
		snprintf(out, size, "%.0f ns", ns);
	return out;
}

static void print_path(FILE *out, const struct view_path *path, const char *name, int rates)
{
	static const double percents[] = { 50.0, 90.0, 99.0, 99.9 };
	char text[32];

	fprintf(out, "    %-10s %12llu %10s %12llu", name, (unsigned long long)path->counter[STAT_PATH_CALLS],
		bytes_text((double)path->counter[STAT_PATH_BYTES], text, sizeof(text)),
		(unsigned long long)path->counter[STAT_PATH_SYSCALLS]);
	for (size_t i = 0; i < sizeof(percents) / sizeof(percents[0]); i++)
		fprintf(out, " %9s",
			view_samples(path) ? time_text(view_percentile(path, percents[i]), text, sizeof(text)) : "-");
	if (rates) {
		fprintf(out, " %8s/s", bytes_text(path->bytes_rate, text, sizeof(text)));
		fprintf(out, " %9.0f/s", path->calls_rate);
	}
	fputc('\n', out);
}

/* Prints the counters that are not zero. */
static void print_counters(FILE *out, const struct stat_row *rows, const uint64_t *values, int count)
{
	int column = 0;

	for (int i = 0; i < count; i++) {
		char text[96];
		int bytes;

		if (!values[i])
			continue;
		bytes = snprintf(text, sizeof(text), "%s %llu", rows[i].name, (unsigned long long)values[i]);
		if (column && column + bytes > 88) {
			fputs(",\n", out);
			column = 0;
		}
		column += fprintf(out, "%s%s", column ? ", " : "    ", text);
	}
	if (column)
		fputc('\n', out);
}

static void print_reasons(FILE *out, const struct view_conn *conn)
{
	enum stat_reason order[REASON_COUNT];
	size_t count = view_reasons(conn, order);
	char sentence[VIEW_SENTENCE_BYTES];

	if (view_explain(conn, sentence, sizeof(sentence)))
		fprintf(out, "    %s\n", sentence);
	for (size_t i = 0; i < count; i++)
		fprintf(out, "    %12llu x %-17s %s\n", (unsigned long long)conn->reason[order[i]],
			stat_reason_rows[order[i]].name, stat_reason_rows[order[i]].help);
}

static void print_conn(FILE *out, const struct view_conn *conn, int rates)
{
	char text[32];

	if (view_sends(conn))
		fprintf(out, "    %-10s %12s %10s %12s %9s %9s %9s %9s%s\n", "path", "sends, parts", "bytes",
			"system calls", "p50", "p90", "p99", "p99.9", rates ? "    bytes/s sends, parts/s" : "");
	for (int p = 0; p < PATH_COUNT; p++)
		if (conn->path[p].counter[STAT_PATH_CALLS] || conn->path[p].counter[STAT_PATH_SYSCALLS])
			print_path(out, &conn->path[p], path_name((enum zc_path)p), rates);
	print_counters(out, stat_conn_rows, conn->counter, STAT_CONN_COUNT);
	if (rates && conn->receive_rate > 0.0)
		fprintf(out, "    receiving %s/s\n", bytes_text(conn->receive_rate, text, sizeof(text)));
	print_reasons(out, conn);
}

static double seconds_since(uint64_t then, uint64_t now)
{
	return now > then ? (double)(now - then) / (double)NS_PER_SEC : 0.0;
}

/* What RDMA was found to be worth, host by host. */
static void print_hosts(FILE *out, const struct view *view)
{
	char sentence[VIEW_SENTENCE_BYTES];

	for (unsigned int i = 0; i < STATS_HOSTS * STATS_HOST_CLASSES; i++) {
		if (view_explain_host(&view->host[i / STATS_HOST_CLASSES], i % STATS_HOST_CLASSES, sentence,
				      sizeof(sentence)))
			fprintf(out, "    auto: %s\n", sentence);
	}
}

static void print_process(FILE *out, const struct view *view)
{
	fprintf(out, "%s (pid %d), zc %s, ", *view->program ? view->program : "?", (int)view->pid, view->version);
	if (view->running == FOUND_RUNNING)
		fprintf(out, "counted for %.1f s", seconds_since(view->started_ns, view->read_ns));
	else
		fputs(view->running == FOUND_ENDED ? "ended" : "perhaps still running", out);
	fprintf(out, ": %zu of %llu connections open\n", view->open_count,
		(unsigned long long)view->process[STAT_PROCESS_CONNECTIONS]);
	print_counters(out, stat_process_rows, view->process, STAT_PROCESS_COUNT);
	for (unsigned int class = 0; class < STATS_TRIALS; class ++) {
		char sentence[VIEW_SENTENCE_BYTES];

		if (view_explain_trial(&view->trial[class], class, sentence, sizeof(sentence)))
			fprintf(out, "    auto: %s\n", sentence);
	}
	print_hosts(out, view);
}

void view_print(FILE *out, const struct view *view, int rates)
{
	uint64_t closed = view_sends(&view->closed) + view->closed.counter[STAT_CONN_RECV_CALLS];

	print_process(out, view);
	if (view->open_count > 1 || closed) {
		fputs("\n  all connections\n", out);
		print_conn(out, &view->all, rates);
	}
	for (size_t i = 0; i < view->open_count; i++) {
		const struct view_conn *conn = &view->open[i];

		fprintf(out, "\n  fd %d: %s %s, peer %s, policy %s", conn->fd, conn->role, conn->local, conn->peer,
			conn->policy);
		if (view->running == FOUND_RUNNING)
			fprintf(out, ", open for %.1f s", seconds_since(conn->opened_ns, view->read_ns));
		fputc('\n', out);
		print_conn(out, conn, rates);
	}
	if (view->open_count && closed) {
		fputs("\n  closed connections\n", out);
		print_conn(out, &view->closed, rates);
	}
}
