/* SPDX-License-Identifier: MIT */
/* zc stat in words: which share of what a program sent took which path, and why no faster one. */
#include <stdarg.h>
#include <string.h>

#include "apps/zc/stat_view.h"
#include "common/clock.h"

struct words {
	char *out;
	size_t bytes, used;
};

static void say(struct words *words, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct words *words, const char *format, ...)
{
	va_list list;
	int more;

	va_start(list, format);
	more = words->used < words->bytes ?
		       vsnprintf(words->out + words->used, words->bytes - words->used, format, list) :
		       0;
	va_end(list);
	words->used += more > 0 ? (size_t)more : 0;
}

/* Cut, not rounded: 100 % are said of all alone. */
static double share(uint64_t part, uint64_t whole)
{
	return whole ? (double)(uint64_t)(1000.0 * (double)part / (double)whole) / 10.0 : 0.0;
}

static bool is_ring(int path)
{
	return path == PATH_BSDP || path == PATH_ZSDP || path == PATH_AZSDP;
}

bool view_used_ring(const struct view_conn *conn)
{
	for (int p = 0; p < PATH_COUNT; p++)
		if (is_ring(p) && conn->path[p].counter[STAT_PATH_CALLS])
			return true;
	return false;
}

/* Why something is copied into the ring, and not fetched from where it is. */
static bool is_of_ring(const struct view_conn *conn, enum stat_reason reason)
{
	switch (reason) {
	case REASON_UNALIGNED:
	case REASON_NOT_PRIVATE:
	case REASON_NO_GUARD:
	case REASON_GUARD_FAILED:
	case REASON_GUARD_COST:
	case REASON_FAULTED:
	case REASON_FAULTED_SITE:
	case REASON_FAULTED_BUFFER:
	case REASON_GET_UNPROVED:
	case REASON_GET_REFUSED:
	case REASON_GET_OTHER_USER:
	case REASON_GET_UNSEEN:
	case REASON_SOURCES_FULL:
	case REASON_RDMA_MEMORY:
	case REASON_NO_MEMORY:
		return true;
	case REASON_RDMA_MEMLOCK: /* or it has kept it from meeting at all */
		return view_used_ring(conn);
	default:
		return false;
	}
}

/* Of the bytes that went by copy, those that the kernel moved from files, if they are a large part. */
static uint64_t large_file_bytes(const struct view_conn *conn)
{
	uint64_t bytes = conn->counter[STAT_CONN_FILE_BYTES];

	return bytes && bytes >= conn->path[PATH_COPY].counter[STAT_PATH_BYTES] / 4 ? bytes : 0;
}

/* Returns the most frequent reason of those that keep sends off a source, or off a ring. */
static enum stat_reason first_reason(const struct view_conn *conn, bool of_ring)
{
	enum stat_reason order[REASON_COUNT];
	size_t count = view_reasons(conn, order);

	for (size_t i = 0; i < count; i++)
		if (is_of_ring(conn, order[i]) == of_ring)
			return order[i];
	return REASON_NONE;
}

static void say_reason(struct words *words, const struct view_conn *conn, enum stat_reason reason)
{
	uint64_t rewrites = conn->counter[STAT_CONN_REWRITES];
	const char *rewritten = reason == REASON_FAULTED	? "buffers" :
				reason == REASON_FAULTED_SITE	? "the buffers of certain calls" :
				reason == REASON_FAULTED_BUFFER ? "certain buffers" :
								  NULL;

	if (rewritten && rewrites)
		say(words, " because %s were rewritten within %.0f us of the send", rewritten,
		    (double)conn->counter[STAT_CONN_REWRITE_NS] / (double)rewrites / (double)NS_PER_US);
	else if (reason != REASON_NONE)
		say(words, " because: %s", stat_reason_rows[reason].help);
}

/* Some went by the ring, and nothing says why: it was not asked for more, or they were small. */
static void say_small(struct words *words, const struct view_conn *conn)
{
	if (conn->path[PATH_ZSDP].counter[STAT_PATH_CALLS] || conn->path[PATH_AZSDP].counter[STAT_PATH_CALLS])
		say(words, " because they were sends below ZC_SOURCE_MIN");
}

/* Which part of what was copied the kernel has moved from files: by bytes, as a few such sends may carry nearly all. */
static void say_file(struct words *words, const struct view_conn *conn)
{
	say(words, ", %.1f %% of these bytes because: %s",
	    share(large_file_bytes(conn), conn->path[PATH_COPY].counter[STAT_PATH_BYTES]),
	    stat_reason_rows[REASON_FILE].help);
}

static void say_cause(struct words *words, const struct view_conn *conn, int path)
{
	enum stat_reason reason = first_reason(conn, path == PATH_BSDP);

	if (path == PATH_COPY && large_file_bytes(conn))
		say_file(words, conn);
	else if (path == PATH_BSDP && reason == REASON_NONE)
		say_small(words, conn);
	else if (path == PATH_BSDP || path == PATH_COPY)
		say_reason(words, conn, reason);
}

/* The paths with their shares of the bytes, the greatest first. */
static void say_shares(struct words *words, const struct view_conn *conn, uint64_t all)
{
	bool said[PATH_COUNT] = { false };

	for (int n = 0; n < PATH_COUNT; n++) {
		int next = -1;

		for (int p = 0; p < PATH_COUNT; p++)
			if (!said[p] && conn->path[p].counter[STAT_PATH_CALLS] &&
			    (next < 0 ||
			     conn->path[p].counter[STAT_PATH_BYTES] > conn->path[next].counter[STAT_PATH_BYTES]))
				next = p;
		if (next < 0)
			return;
		said[next] = true;
		say(words, n ? ", %.1f %% by %s" : "%.1f %% of bytes went by %s",
		    share(conn->path[next].counter[STAT_PATH_BYTES], all), path_name((enum zc_path)next));
		say_cause(words, conn, next);
	}
}

/* How much of what was announced was copied after all, for somebody wrote to it. */
static void say_rewrites(struct words *words, const struct view_conn *conn)
{
	uint64_t rewrites = conn->counter[STAT_CONN_REWRITES], sends = conn->path[PATH_AZSDP].counter[STAT_PATH_CALLS];

	if (rewrites && sends)
		say(words, "; %llu writes met the guards of %llu sends by azsdp", (unsigned long long)rewrites,
		    (unsigned long long)sends);
}

static void explain_ring(struct words *words, const struct view_conn *conn)
{
	uint64_t all = 0;

	for (int p = 0; p < PATH_COUNT; p++)
		all += conn->path[p].counter[STAT_PATH_BYTES];
	say_shares(words, conn, all);
	say_rewrites(words, conn);
}

/* Of sends by copy that nothing was counted for. */
static const char *uncounted(const struct view_conn *conn)
{
	const char *policy = conn->policy;

	if (conn->counter[STAT_CONN_MEETINGS])
		return "no reason was counted";
	if (!policy)
		return "no faster path was asked for, or the peer has not answered with zc so far";
	if (!strcmp(policy, path_name(PATH_COPY)) || !strcmp(policy, path_name(PATH_TCP)))
		return "no faster path was asked for";
	if (!strcmp(policy, path_name(PATH_SG)) || !strcmp(policy, path_name(PATH_ZEROCOPY)))
		return "no reason was counted";
	return "the peer has not answered with zc so far";
}

static void explain_copies(struct words *words, const struct view_conn *conn, uint64_t copies)
{
	uint64_t sends = view_sends(conn);
	enum stat_reason order[REASON_COUNT];
	size_t reasons = view_reasons(conn, order), first = 0;

	if (copies >= sends)
		say(words, "all %llu sends took copy", (unsigned long long)copies);
	else
		say(words, "%.1f %% of %llu sends%s took copy", share(copies, sends), (unsigned long long)sends,
		    conn->path[PATH_ZEROCOPY].counter[STAT_PATH_CALLS] ? ", or parts of such," : "");
	if (large_file_bytes(conn)) {
		say_file(words, conn);
		first = reasons && order[0] == REASON_FILE;
		if (first < reasons)
			say(words, "; others mostly because: %s", stat_reason_rows[order[first]].help);
		return;
	}
	say(words, "%s%s", reasons ? ", mostly because: " : ": ",
	    reasons ? stat_reason_rows[order[0]].help : uncounted(conn));
}

int view_explain(const struct view_conn *conn, char *out, size_t bytes)
{
	uint64_t copies = conn->path[PATH_COPY].counter[STAT_PATH_CALLS];
	struct words words = { out, bytes, 0 };

	if (view_used_ring(conn))
		explain_ring(&words, conn);
	else if (copies)
		explain_copies(&words, conn, copies);
	else
		return 0;
	return 1;
}

/* What was tried ------------------------------------------------------------------------------------------------------ */

enum zc_path view_trial_path(unsigned int way)
{
	static const enum zc_path paths[STATS_TRIAL_WAYS] = { PATH_BSDP, PATH_ZSDP, PATH_AZSDP };

	return way < STATS_TRIAL_WAYS ? paths[way] : PATH_BSDP;
}

double view_trial_cost(const struct view_trial *trial, unsigned int way)
{
	return (double)trial->cost[way] / 1.024;
}

int view_explain_trial(const struct view_trial *trial, unsigned int class, char *out, size_t bytes)
{
	struct words words = { out, bytes, 0 };
	unsigned int said = 0;

	if (!trial->tries || !trial->taken || trial->taken > STATS_TRIAL_WAYS)
		return 0;
	if (!class)
		say(&words, "sends below 128 KB");
	else if (class + 1 < STATS_TRIALS)
		say(&words, "sends of %u to %u KB", 64u << class, 128u << class);
	else
		say(&words, "sends from %u KB on", 64u << class);
	say(&words, " were tried %llu time%s:", (unsigned long long)trial->tries, trial->tries == 1 ? "" : "s");
	for (unsigned int way = 0; way < STATS_TRIAL_WAYS; way++)
		if (trial->cost[way])
			say(&words, said++ ? ", %.0f by %s" : " %.0f us a MB by %s", view_trial_cost(trial, way),
			    path_name(view_trial_path(way)));
	say(&words, "; they go by %s", path_name(view_trial_path((unsigned int)trial->taken - 1)));
	return 1;
}

/* Between hosts ------------------------------------------------------------------------------------------------------- */

const char *view_host_way(unsigned int way)
{
	static const char *const ways[STATS_HOST_WAYS] = { "tcp", "bsdp", "zsdp", "azsdp" };

	return way < STATS_HOST_WAYS ? ways[way] : "?";
}

bool view_host_is_answered(unsigned int class)
{
	return class >= STATS_HOST_CLASSES / 2;
}

double view_host_cost(uint64_t cost, unsigned int class)
{
	return view_host_is_answered(class) ? (double)cost / 1e3 : (double)cost / 1.024;
}

int view_explain_host(const struct view_host *host, unsigned int class, char *out, size_t bytes)
{
	static const char *const sizes[STATS_HOST_CLASSES / 2] = { "below 4 KB", "of 4 to 64 KB", "of 64 to 512 KB",
								   "from 512 KB on" };
	uint64_t tries = host->trial[class].tries, taken = host->trial[class].taken;
	bool answered = view_host_is_answered(class);
	struct words words = { out, bytes, 0 };
	unsigned int said = 0;

	if (!*host->address || !tries || !taken || taken > STATS_HOST_WAYS)
		return 0;
	say(&words, "sends %s to %s that %s were tried %llu time%s:", sizes[class % (STATS_HOST_CLASSES / 2)],
	    host->address, answered ? "are answered" : "follow each other", (unsigned long long)tries,
	    tries == 1 ? "" : "s");
	for (unsigned int way = 0; way < STATS_HOST_WAYS; way++) {
		uint64_t cost = host->trial[class].cost[way];

		if (cost)
			say(&words,
			    said++   ? ", %.0f by %s" :
			    answered ? " %.0f us by %s" :
				       " %.0f us a MB by %s",
			    view_host_cost(cost, class), way ? view_host_way(way) : "TCP");
	}
	say(&words, "; they go by %s", taken == 1 ? "TCP" : view_host_way((unsigned int)taken - 1));
	return 1;
}
