/* SPDX-License-Identifier: MIT */
/*
 * Sessions: the control connection's thread owns the session; data connections find it by its number, which only the
 * client that was welcomed knows. The control connection's end takes the data connections along.
 */
#define _GNU_SOURCE
#include "apps/tools/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "apps/tools/frame.h"
#include "apps/tools/net.h"
#include "common/clock.h"

#define CONNECTIONS_MAX 1000000

struct session_share *session_share(struct connection *connection)
{
	return &connection->session->share;
}

static void refuse(struct server *server, int fd, const char *why)
{
	struct fault ignored = { 0 };
	char rest[4096];

	tell(server->tool->options->tool, "refused a connection: %s", why);
	frame_send(fd, FRAME_REFUSED, json_pack("{s:s}", "why", why), &ignored);
	/* Closing with bytes unread would take the reason back: a reset overtakes it. */
	shutdown(fd, SHUT_WR);
	while (recv(fd, rest, sizeof(rest), MSG_DONTWAIT) > 0)
		;
}

/* Data connections ---------------------------------------------------------------------------------------------------- */

/* Joins the session that the frame names. Returns whether there is one. */
static bool join(struct server *server, struct connection *connection, const json_t *body)
{
	uint64_t id = (uint64_t)json_integer_value(json_object_get(body, "session"));
	json_int_t index = json_integer_value(json_object_get(body, "connection"));
	struct session *at = NULL;

	pthread_mutex_lock(&server->lock);
	if (index >= 0 && index < CONNECTIONS_MAX && !server->stopping)
		for (at = server->sessions; at && at->id != id; at = at->next)
			;
	if (at) {
		connection->session = at;
		connection->session_id = id;
		connection->index = (uint32_t)index;
		connection->shared = connection->values = at->values;
		connection->next = at->connections;
		at->connections = connection;
	}
	pthread_mutex_unlock(&server->lock);
	return at;
}

static void leave(struct connection *connection, struct outcome *outcome)
{
	struct session *session = connection->session;
	struct server *server = session->server;
	struct fault *fault = &outcome->fault;
	char text[sizeof(fault->text)];

	pthread_mutex_lock(&server->lock);
	for (struct connection **at = &session->connections; *at; at = &(*at)->next) {
		if (*at != connection)
			continue;
		*at = connection->next;
		break;
	}
	if (session->aborted || server->stopping) {
		fault->code = 0;
	} else if (fault->code) {
		memcpy(text, fault->text, sizeof(text));
		snprintf(fault->text, sizeof(fault->text), "connection %u: %.370s", connection->index, text);
	}
	outcome_add(&session->total, outcome);
	pthread_cond_broadcast(&server->changed);
	pthread_mutex_unlock(&server->lock);
}

/* The outcome is on the heap: its histogram is more than a small thread's stack should bear. */
static void serve_data(struct server *server, int fd, const json_t *body)
{
	struct connection connection = { .outcome = malloc(sizeof(struct outcome)),
					 .stream = { .fd = fd, .epoll = -1 } };
	struct outcome *outcome = connection.outcome;
	int rc;

	if (!outcome || !join(server, &connection, body)) {
		refuse(server, fd, "there is no such session");
		free(outcome);
		return;
	}
	outcome_reset(outcome);
	rc = net_configure(fd, connection.shared, &outcome->fault);
	if (!rc) {
		rc = stream_open(&connection.stream, fd, connection.shared->wait);
		if (rc)
			fault_errno(&outcome->fault, -rc, "no way to wait");
	}
	if (!rc) {
		rc = server->tool->serve(&connection);
		if (!rc)
			rc = verdict_send(&connection.stream, (struct verdict){ outcome->messages, outcome->reads });
		if (rc)
			fault_errno(&outcome->fault, -rc, "the connection broke");
		stream_forget(&connection.stream);
	}
	if (rc)
		shutdown(fd, SHUT_RDWR);
	leave(&connection, outcome);
	free(outcome);
}

/* The control connection ------------------------------------------------------------------------------------------------ */

/* Takes a session in, unless enough were. Returns whether it did. */
static bool enlist(struct server *server, struct session *session)
{
	bool fits;

	pthread_mutex_lock(&server->lock);
	fits = !server->stopping && (!server->shared->sessions || server->taken < server->shared->sessions);
	if (fits) {
		server->taken++;
		session->next = server->sessions;
		server->sessions = session;
	}
	pthread_mutex_unlock(&server->lock);
	return fits;
}

/*
 * Ends the session for new connections and waits for those that there are; `broken` ones are shut down. The caller
 * holds no lock.
 */
static void drain(struct session *session, bool broken)
{
	struct server *server = session->server;

	pthread_mutex_lock(&server->lock);
	for (struct session **at = &server->sessions; *at; at = &(*at)->next) {
		if (*at != session)
			continue;
		*at = session->next;
		break;
	}
	session->aborted = broken;
	for (struct connection *at = session->connections; at && broken; at = at->next)
		shutdown(at->stream.fd, SHUT_RDWR);
	while (session->connections)
		pthread_cond_wait(&server->changed, &server->lock);
	pthread_mutex_unlock(&server->lock);
}

static json_t *result_body(struct session *session)
{
	const struct outcome *total = &session->total;

	return json_pack("{s:o, s:I, s:I, s:I, s:I, s:s, s:s, s:I, s:I, s:o}", "cpu",
			 cpu_json(&session->cpu, total->bytes), "messages", (json_int_t)total->messages, "bytes",
			 (json_int_t)total->bytes, "reads", (json_int_t)total->reads, "wrong_messages",
			 (json_int_t)total->wrong_messages, "first_wrong", total->first_wrong, "fault",
			 total->fault.text, "zerocopy_sends", (json_int_t)total->zerocopy_sends, "zerocopy_copied",
			 (json_int_t)total->zerocopy_copied, "latency_us", latency_json(&total->latency));
}

static void report(struct session *session, const json_t *peer_cpu)
{
	struct server *server = session->server;
	struct report report = {
		.tool = server->tool,
		.values = session->values,
		.role = FOR_SERVER,
		.outcome = &session->total,
		.seconds = session->began_ns ? (double)(session->ended_ns - session->began_ns) / NS_PER_SEC : 0.0,
		.cpu = &session->cpu,
		.peer_cpu = json_is_object(peer_cpu) ? peer_cpu : NULL,
		.verified = !session->total.wrong_messages,
	};

	if (!server->shared->json)
		return;
	pthread_mutex_lock(&server->lock);
	json_array_append_new(server->reports, report_json(&report));
	pthread_mutex_unlock(&server->lock);
}

/* Answers START and STOP. Returns 0 when the session came to its end. */
static int control(struct session *session, int fd, struct fault *fault)
{
	json_t *body = NULL;
	int kind = frame_receive(fd, &body, fault);

	while (kind == FRAME_START) {
		json_decref(body);
		cpu_now(&session->before);
		session->began_ns = clock_now();
		if (frame_send(fd, FRAME_STARTED, NULL, fault))
			return -fault->code;
		kind = frame_receive(fd, &body, fault);
	}
	if (kind != FRAME_STOP) {
		json_decref(body);
		return kind < 0 ? kind : fault_set(fault, EPIPE, "the client went away before the end of its session");
	}
	cpu_now(&session->cpu);
	cpu_subtract(&session->cpu, &session->before);
	session->ended_ns = clock_now();
	drain(session, json_is_true(json_object_get(body, "aborted")));
	if (session->aborted)
		fault_set(fault, ECANCELED, "the client gave its session up");
	else if (!session->total.fault.code)
		report(session, json_object_get(body, "cpu"));
	json_decref(body);
	return frame_send(fd, FRAME_RESULT, result_body(session), fault);
}

static void finish(struct session *session, const struct fault *fault)
{
	struct server *server = session->server;
	const char *tool = server->tool->options->tool;
	bool failed = fault->code || session->total.fault.code || session->total.wrong_messages;

	if (session->total.fault.code)
		tell(tool, "%s", session->total.fault.text);
	if (session->total.wrong_messages)
		tell(tool, "verification failed: %llu messages are wrong; %s",
		     (unsigned long long)session->total.wrong_messages, session->total.first_wrong);
	if (fault->code && !server->stopping)
		tell(tool, "%s", fault->text);
	pthread_mutex_lock(&server->lock);
	server->finished++;
	server->failed += failed;
	pthread_mutex_unlock(&server->lock);
	eventfd_write(server->finished_event, 1);
}

static int check_hello(struct server *server, const json_t *body, void *values, struct fault *fault)
{
	const char *tool = json_string_value(json_object_get(body, "tool"));

	if (!tool || strcmp(tool, server->tool->options->tool))
		return fault_set(fault, EINVAL, "this is a server of %s, the client is %.40s",
				 server->tool->options->tool, tool ? tool : "unknown");
	if (options_hear(server->tool->options, json_object_get(body, "options"), values, fault))
		return -EINVAL;
	return server->tool->check(values, fault);
}

static void serve_session(struct server *server, int fd, const json_t *body)
{
	struct session *session = calloc(1, sizeof(*session));
	struct fault fault = { 0 };

	if (!session)
		return;
	session->server = server;
	session->values = calloc(1, server->tool->options->bytes);
	pthread_mutex_init(&session->share.lock, NULL);
	pthread_cond_init(&session->share.changed, NULL);
	outcome_reset(&session->total);
	/* JSON's integers are signed. */
	if (getrandom(&session->id, sizeof(session->id), 0) != sizeof(session->id) || !session->values)
		fault_errno(&fault, ENOMEM, "no session");
	session->id >>= 1;
	if (fault.code || check_hello(server, body, session->values, &fault)) {
		refuse(server, fd, fault.text);
	} else if (!enlist(server, session)) {
		refuse(server, fd, "the server has taken as many sessions as it was told to (--sessions)");
	} else {
		if (!frame_send(fd, FRAME_WELCOME, json_pack("{s:I}", "session", (json_int_t)session->id), &fault))
			control(session, fd, &fault);
		drain(session, true);
		finish(session, &fault);
	}
	pthread_mutex_destroy(&session->share.lock);
	pthread_cond_destroy(&session->share.changed);
	free(session->values);
	free(session);
}

void session_accept(struct server *server, int fd)
{
	struct fault fault = { 0 };
	json_t *body;
	int kind = frame_receive(fd, &body, &fault);

	if (kind == FRAME_HELLO)
		serve_session(server, fd, body);
	else if (kind == FRAME_DATA)
		serve_data(server, fd, body);
	else if (kind > 0)
		refuse(server, fd, "a connection begins with a hello");
	else if (kind < 0 && !server->stopping)
		refuse(server, fd, fault.text);
	json_decref(body);
}
