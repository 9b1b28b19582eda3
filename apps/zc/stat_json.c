/* SPDX-License-Identifier: MIT */
/* zc stat for programs: every counter, under the names of stats.def. */
#include <stdint.h>

#include "apps/zc/stat_view.h"
#include "common/clock.h"

/* Beyond what JSON's readers take for an integer a counter is wrong anyhow; it stays a number, and positive. */
static json_t *number(uint64_t value)
{
	return value <= INT64_MAX ? json_integer((json_int_t)value) : json_real((double)value);
}

static json_t *counters(const struct stat_row *rows, const uint64_t *values, int count)
{
	json_t *object = json_object();

	for (int i = 0; i < count; i++)
		json_object_set_new(object, rows[i].name, number(values[i]));
	return object;
}

static json_t *latency_json(const struct view_path *path)
{
	uint64_t samples = view_samples(path);
	json_t *buckets = json_array(), *object = json_object();

	for (int i = 0; i < STATS_LATENCY_BUCKETS; i++)
		if (path->latency[i])
			json_array_append_new(buckets,
					      json_pack("{s:I, s:I, s:o}", "from_ns", (json_int_t)(i ? 1ull << i : 0),
							"below_ns", (json_int_t)(2ull << i), "sends",
							number(path->latency[i])));
	json_object_set_new(object, "timed_sends", number(samples));
	json_object_set_new(object, "p50", samples ? json_real(view_percentile(path, 50.0)) : json_null());
	json_object_set_new(object, "p90", samples ? json_real(view_percentile(path, 90.0)) : json_null());
	json_object_set_new(object, "p99", samples ? json_real(view_percentile(path, 99.0)) : json_null());
	json_object_set_new(object, "p999", samples ? json_real(view_percentile(path, 99.9)) : json_null());
	json_object_set_new(object, "buckets", buckets);
	return object;
}

static json_t *paths_json(const struct view_conn *conn, int rates)
{
	json_t *object = json_object();

	for (int p = 0; p < PATH_COUNT; p++) {
		json_t *path;

		if (!path_sends((enum zc_path)p))
			continue;
		path = counters(stat_path_rows, conn->path[p].counter, STAT_PATH_COUNT);
		json_object_set_new(path, "latency_ns", latency_json(&conn->path[p]));
		if (rates) {
			json_object_set_new(path, "bytes_per_s", json_real(conn->path[p].bytes_rate));
			json_object_set_new(path, "calls_per_s", json_real(conn->path[p].calls_rate));
		}
		json_object_set_new(object, path_name((enum zc_path)p), path);
	}
	return object;
}

/* What a connection and a sum of connections have in common. */
static json_t *sum_json(const struct view_conn *conn, int rates)
{
	json_t *object = json_object();
	char sentence[VIEW_SENTENCE_BYTES];

	json_object_set_new(object, "paths", paths_json(conn, rates));
	json_object_set_new(object, "counters", counters(stat_conn_rows, conn->counter, STAT_CONN_COUNT));
	json_object_set_new(object, "reasons", counters(stat_reason_rows, conn->reason, REASON_COUNT));
	json_object_set_new(object, "explanation",
			    view_explain(conn, sentence, sizeof(sentence)) ? json_string(sentence) : json_null());
	if (rates)
		json_object_set_new(object, "receive_bytes_per_s", json_real(conn->receive_rate));
	return object;
}

/* What path `auto` tried, and what came out; only the classes of sizes that it has met. */
static json_t *trials_json(const struct view *view)
{
	json_t *trials = json_array();

	for (unsigned int class = 0; class < STATS_TRIALS; class ++) {
		const struct view_trial *trial = &view->trial[class];
		char sentence[VIEW_SENTENCE_BYTES];
		json_t *costs = json_object();

		if (!view_explain_trial(trial, class, sentence, sizeof(sentence))) {
			json_decref(costs);
			continue;
		}
		for (unsigned int way = 0; way < STATS_TRIAL_WAYS; way++)
			json_object_set_new(costs, path_name(view_trial_path(way)),
					    trial->cost[way] ? json_real(view_trial_cost(trial, way)) : json_null());
		json_array_append_new(trials, json_pack("{s:I, s:o, s:o, s:s, s:s}", "from_bytes",
							(json_int_t)(class ? 65536ll << class : 0), "tries",
							number(trial->tries), "us_per_mb", costs, "taken",
							path_name(view_trial_path((unsigned int)trial->taken - 1)),
							"explanation", sentence));
	}
	return trials;
}

/* What it found for other hosts. */
static json_t *hosts_json(const struct view *view)
{
	json_t *hosts = json_array();

	for (unsigned int i = 0; i < STATS_HOSTS * STATS_HOST_CLASSES; i++) {
		const struct view_host *host = &view->host[i / STATS_HOST_CLASSES];
		unsigned int class = i % STATS_HOST_CLASSES, size = class % (STATS_HOST_CLASSES / 2);
		char sentence[VIEW_SENTENCE_BYTES];
		json_t *costs;

		if (!view_explain_host(host, class, sentence, sizeof(sentence)))
			continue;
		costs = json_object();
		for (unsigned int way = 0; way < STATS_HOST_WAYS; way++) {
			uint64_t cost = host->trial[class].cost[way];

			json_object_set_new(costs, view_host_way(way),
					    cost ? json_real(view_host_cost(cost, class)) : json_null());
		}
		json_array_append_new(hosts,
				      json_pack("{s:s, s:b, s:I, s:o, s:o, s:s, s:s}", "address", host->address,
						"answered", view_host_is_answered(class), "from_bytes",
						size ? (json_int_t)(size == 3 ? 524288 :
								    size == 2 ? 65536 :
										4096) :
						       0,
						"tries", number(host->trial[class].tries),
						view_host_is_answered(class) ? "us_per_turn" : "us_per_mb", costs,
						"taken", view_host_way((unsigned int)host->trial[class].taken - 1),
						"explanation", sentence));
	}
	return hosts;
}

static json_t *seconds_json(const struct view *view, uint64_t since)
{
	if (view->running != FOUND_RUNNING || view->read_ns < since)
		return json_null();
	return json_real((double)(view->read_ns - since) / (double)NS_PER_SEC);
}

static json_t *conn_json(const struct view *view, const struct view_conn *conn, int rates)
{
	json_t *object = sum_json(conn, rates);

	json_object_set_new(object, "fd", json_integer(conn->fd));
	json_object_set_new(object, "role", json_string(conn->role));
	json_object_set_new(object, "policy", json_string(conn->policy));
	json_object_set_new(object, "local", json_string(conn->local));
	json_object_set_new(object, "peer", json_string(conn->peer));
	json_object_set_new(object, "open_s", seconds_json(view, conn->opened_ns));
	return object;
}

json_t *view_json(const struct view *view, int rates)
{
	json_t *object = json_object(), *open = json_array();

	for (size_t i = 0; i < view->open_count; i++)
		json_array_append_new(open, conn_json(view, &view->open[i], rates));
	json_object_set_new(object, "pid", json_integer(view->pid));
	json_object_set_new(object, "program", json_string(view->program));
	json_object_set_new(object, "version", json_string(view->version));
	json_object_set_new(object, "running",
			    view->running == FOUND_UNKNOWN ? json_null() :
							     json_boolean(view->running == FOUND_RUNNING));
	json_object_set_new(object, "counted_s", seconds_json(view, view->started_ns));
	json_object_set_new(object, "process", counters(stat_process_rows, view->process, STAT_PROCESS_COUNT));
	json_object_set_new(object, "trials", trials_json(view));
	json_object_set_new(object, "hosts", hosts_json(view));
	json_object_set_new(object, "all", sum_json(&view->all, rates));
	json_object_set_new(object, "closed", sum_json(&view->closed, rates));
	json_object_set_new(object, "connections", open);
	return object;
}
