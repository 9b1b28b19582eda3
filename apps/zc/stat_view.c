/* SPDX-License-Identifier: MIT */
#include "apps/zc/stat_view.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"

/* A terminal obeys control characters, and JSON is UTF-8: only plain ASCII passes. */
static void copy_printable(char *out, size_t bytes, const char *from, size_t from_bytes)
{
	size_t i;

	for (i = 0; i + 1 < bytes && i < from_bytes && from[i]; i++)
		out[i] = from[i] >= ' ' && from[i] <= '~' ? from[i] : '?';
	out[i] = '\0';
}

static void write_address(char *out, size_t bytes, const uint8_t *from)
{
	char text[INET6_ADDRSTRLEN];
	struct sockaddr_in6 six;
	struct sockaddr_in four;

	_Static_assert(sizeof(six) == STATS_ADDRESS_BYTES, "a slot holds a sockaddr_in6");
	memcpy(&six, from, sizeof(six));
	memcpy(&four, from, sizeof(four));
	if (four.sin_family == AF_INET && inet_ntop(AF_INET, &four.sin_addr, text, sizeof(text)))
		snprintf(out, bytes, "%s:%u", text, ntohs(four.sin_port));
	else if (six.sin6_family == AF_INET6 && inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof(text)))
		snprintf(out, bytes, "[%s]:%u", text, ntohs(six.sin6_port));
	else
		snprintf(out, bytes, "?");
}

static void take_slot(struct view_conn *out, const struct stats_slot *slot, uint32_t number)
{
	static const char *const roles[] = { [ROLE_SERVER] = "server", [ROLE_CLIENT] = "client" };

	*out = (struct view_conn){
		.slot = number,
		.opened_ns = slot->opened_ns,
		.fd = slot->fd,
		.role = slot->role <= ROLE_CLIENT ? roles[slot->role] : "?",
		.policy = number ? path_name((enum zc_path)slot->policy) : NULL,
	};
	write_address(out->local, sizeof(out->local), slot->local);
	write_address(out->peer, sizeof(out->peer), slot->peer);
	for (int p = 0; p < PATH_COUNT; p++) {
		memcpy(out->path[p].counter, (const void *)slot->path[p], sizeof(out->path[p].counter));
		memcpy(out->path[p].latency, (const void *)slot->latency[p], sizeof(out->path[p].latency));
	}
	/* On this path each send is one system call, so that the library does not count them twice. */
	out->path[PATH_COPY].counter[STAT_PATH_SYSCALLS] = out->path[PATH_COPY].counter[STAT_PATH_CALLS];
	memcpy(out->counter, (const void *)slot->conn, sizeof(out->counter));
	memcpy(out->reason, (const void *)slot->reason, sizeof(out->reason));
}

static void add(struct view_conn *into, const struct view_conn *from)
{
	for (int p = 0; p < PATH_COUNT; p++) {
		for (int i = 0; i < STAT_PATH_COUNT; i++)
			into->path[p].counter[i] += from->path[p].counter[i];
		for (int i = 0; i < STATS_LATENCY_BUCKETS; i++)
			into->path[p].latency[i] += from->path[p].latency[i];
	}
	for (int i = 0; i < STAT_CONN_COUNT; i++)
		into->counter[i] += from->counter[i];
	for (int i = 0; i < REASON_COUNT; i++)
		into->reason[i] += from->reason[i];
}

/* Sums of connections have a path in common, or none to tell of. */
static const char *common_policy(const struct view *view)
{
	const char *policy = view->open_count ? view->open[0].policy : NULL;

	if (view_sends(&view->closed))
		return NULL;
	for (size_t i = 1; i < view->open_count; i++)
		if (strcmp(view->open[i].policy, policy))
			return NULL;
	return policy;
}

static void take_host(struct view_host *out, const struct stats_host *host)
{
	struct sockaddr_in6 six;
	struct sockaddr_in four;

	memcpy(&six, host->address, sizeof(six));
	memcpy(&four, host->address, sizeof(four));
	*out->address = '\0';
	if (four.sin_family == AF_INET)
		inet_ntop(AF_INET, &four.sin_addr, out->address, sizeof(out->address));
	else if (six.sin6_family == AF_INET6)
		inet_ntop(AF_INET6, &six.sin6_addr, out->address, sizeof(out->address));
	memcpy(out->trial, (const void *)host->trial, sizeof(out->trial));
}

int view_make(const struct found *found, struct view *out)
{
	const struct stats_segment *segment = found->segment;
	uint32_t used = atomic_load(&segment->slots_used);

	*out = (struct view){ .pid = found->pid, .running = found->running, .read_ns = clock_now() };
	out->open = calloc(used ? used : 1, sizeof(*out->open));
	if (!out->open)
		return -ENOMEM;
	out->started_ns = segment->started_ns;
	copy_printable(out->program, sizeof(out->program), segment->program, sizeof(segment->program));
	copy_printable(out->version, sizeof(out->version), segment->version, sizeof(segment->version));
	memcpy(out->process, (const void *)segment->process, sizeof(out->process));
	memcpy(out->trial, (const void *)segment->trial, sizeof(out->trial));
	for (int i = 0; i < STATS_HOSTS; i++)
		take_host(&out->host[i], &segment->host[i]);
	take_slot(&out->closed, &segment->slot[0], 0);
	out->all = out->closed;
	for (uint32_t i = 1; i < used; i++) {
		if (atomic_load(&segment->slot[i].state) != STATS_OPEN)
			continue;
		take_slot(&out->open[out->open_count], &segment->slot[i], i);
		add(&out->all, &out->open[out->open_count++]);
	}
	out->all.policy = common_policy(out);
	return 0;
}

void view_free(struct view *view)
{
	free(view->open);
	*view = (struct view){ 0 };
}

/* Counters move from a connection to the sum of the closed ones: what goes back is no rate. */
static double rate(uint64_t now, uint64_t before, double seconds)
{
	return now > before && seconds > 0.0 ? (double)(now - before) / seconds : 0.0;
}

static void conn_rates(struct view_conn *conn, const struct view_conn *before, double seconds)
{
	for (int p = 0; p < PATH_COUNT; p++) {
		const uint64_t *now = conn->path[p].counter, *then = before->path[p].counter;

		conn->path[p].bytes_rate = rate(now[STAT_PATH_BYTES], then[STAT_PATH_BYTES], seconds);
		conn->path[p].calls_rate = rate(now[STAT_PATH_CALLS], then[STAT_PATH_CALLS], seconds);
	}
	conn->receive_rate = rate(conn->counter[STAT_CONN_RECV_BYTES], before->counter[STAT_CONN_RECV_BYTES], seconds);
}

void view_rates(struct view *view, const struct view *before)
{
	static const struct view_conn nothing;
	double seconds = (double)(view->read_ns - before->read_ns) / (double)NS_PER_SEC;
	size_t at = 0;

	conn_rates(&view->all, &before->all, seconds);
	conn_rates(&view->closed, &before->closed, seconds);
	for (size_t i = 0; i < view->open_count; i++) {
		struct view_conn *conn = &view->open[i];
		const struct view_conn *then = &nothing;

		while (at < before->open_count && before->open[at].slot < conn->slot)
			at++;
		if (at < before->open_count && before->open[at].slot == conn->slot &&
		    before->open[at].opened_ns == conn->opened_ns)
			then = &before->open[at];
		conn_rates(conn, then, seconds);
	}
}

uint64_t view_sends(const struct view_conn *conn)
{
	uint64_t sends = 0;

	for (int p = 0; p < PATH_COUNT; p++)
		sends += conn->path[p].counter[STAT_PATH_CALLS];
	return sends;
}

uint64_t view_samples(const struct view_path *path)
{
	uint64_t samples = 0;

	for (int i = 0; i < STATS_LATENCY_BUCKETS; i++)
		samples += path->latency[i];
	return samples;
}

double view_percentile(const struct view_path *path, double percent)
{
	double wanted = percent / 100.0 * (double)view_samples(path), seen = 0.0;
	double top = 0.0;

	for (int i = 0; i < STATS_LATENCY_BUCKETS; i++) {
		double here = (double)path->latency[i], bottom = i ? (double)(1ull << i) : 0.0;

		if (!path->latency[i])
			continue;
		top = (double)(2ull << i);
		if (seen + here >= wanted)
			return bottom + (top - bottom) * (wanted - seen) / here;
		seen += here;
	}
	return top;
}

size_t view_reasons(const struct view_conn *conn, enum stat_reason order[REASON_COUNT])
{
	size_t count = 0;

	for (int i = 0; i < REASON_COUNT; i++) {
		size_t at = count;

		if (!conn->reason[i])
			continue;
		for (; at && conn->reason[order[at - 1]] < conn->reason[i]; at--)
			order[at] = order[at - 1];
		order[at] = (enum stat_reason)i;
		count++;
	}
	return count;
}
