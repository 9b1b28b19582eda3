/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "apps/tools/client.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/tools/frame.h"
#include "apps/tools/net.h"
#include "common/clock.h"

#define LOOK_MS 250 /* how often a standstill is looked for */

/* What a worker says through its gate, and what it is told. */
enum { GATE_READY = 'r', GATE_DONE = 'd', GATE_FAILED = 'f', GATE_GO = 'g' };

/* Workers --------------------------------------------------------------------------------------------------------------- */

/* Keeps the descriptor in the list of those that giving up shuts down. Returns 0 or -errno. */
static int keep_fd(struct client *client, int fd)
{
	int rc = 0;
	int *more;

	pthread_mutex_lock(&client->lock);
	more = realloc(client->fds, (client->fd_count + 1) * sizeof(int));
	if (more) {
		client->fds = more;
		client->fds[client->fd_count++] = fd;
		if (client->given_up)
			shutdown(fd, SHUT_RDWR);
	} else {
		rc = -ENOMEM;
	}
	pthread_mutex_unlock(&client->lock);
	return rc;
}

int worker_connect(struct worker *worker, uint32_t index, struct stream *stream)
{
	struct client *client = worker->client;
	struct fault *fault = &worker->outcome->fault;
	int fd = net_connect(client->host, client->port, client->shared->timeout, client->shared->socket_buffer, fault);
	int rc;

	if (fd < 0)
		return fd;
	rc = keep_fd(client, fd);
	if (rc) {
		close(fd);
		return fault_errno(fault, -rc, "no memory for a connection");
	}
	rc = net_configure(fd, client->shared, fault);
	if (!rc)
		rc = frame_send(fd, FRAME_DATA,
				json_pack("{s:I, s:I}", "session", (json_int_t)client->session_id, "connection",
					  (json_int_t)index),
				fault);
	if (rc)
		return rc;
	rc = stream_open(stream, fd, client->shared->wait);
	return rc ? fault_errno(fault, -rc, "no way to wait") : 0;
}

int worker_end(struct worker *worker, struct stream *stream, struct verdict *verdict)
{
	int rc = shutdown(stream->fd, SHUT_WR) ? -errno : 0;

	if (!rc)
		rc = verdict_receive(stream, verdict);
	return rc ? fault_errno(&worker->outcome->fault, -rc, "no verdict from the server, it is gone") : 0;
}

static void gate_say(struct worker *worker, char what)
{
	while (write(worker->gate, &what, 1) < 0 && errno == EINTR)
		;
}

static bool gate_wait(struct worker *worker)
{
	char what = 0;

	while (read(worker->gate, &what, 1) < 0 && errno == EINTR)
		;
	return what == GATE_GO;
}

static void *worker_main(void *argument)
{
	struct worker *worker = argument;
	struct client *client = worker->client;
	struct cpu before;
	char end = GATE_FAILED;

	if (!client->prepare(worker)) {
		gate_say(worker, GATE_READY);
		if (gate_wait(worker)) {
			cpu_now(&before);
			worker->slot->began_ns = clock_now();
			if (!client->measure(worker))
				end = GATE_DONE;
			worker->slot->ended_ns = clock_now();
			cpu_now(&worker->slot->cpu);
			cpu_subtract(&worker->slot->cpu, &before);
		}
	}
	client->dispose(worker);
	gate_say(worker, end);
	return NULL;
}

/* The child of a fork: of all gates it keeps its own, so that the others' ends are seen when they die. */
static void process_main(struct worker *worker, pid_t parent)
{
	struct client *client = worker->client;

	/* A worker must not outlive who was to stop it. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(EXIT_FAILURE);
	close(client->control);
	for (uint32_t i = 0; i <= worker->index; i++)
		close(client->worker[i].gate_main);
	worker_main(worker);
	_exit(0);
}

static int worker_start(struct worker *worker, struct fault *fault)
{
	pid_t parent = getpid();
	int pair[2], rc;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		return fault_errno(fault, errno, "worker %u can't be started", worker->index);
	worker->gate_main = pair[0];
	worker->gate = pair[1];
	if (!worker->client->as_processes) {
		rc = pthread_create(&worker->thread, NULL, worker_main, worker);
	} else {
		worker->process = fork();
		if (!worker->process)
			process_main(worker, parent);
		rc = worker->process < 0 ? errno : 0;
		close(worker->gate);
		worker->gate = -1;
	}
	worker->is_running = !rc;
	if (!rc)
		return 0;
	close(worker->gate_main);
	if (worker->gate >= 0)
		close(worker->gate);
	return fault_errno(fault, rc, "worker %u can't be started", worker->index);
}

static int workers_open(struct client *client, struct fault *fault)
{
	size_t bytes = client->workers * sizeof(struct slot);
	int rc = 0;

	client->worker = calloc(client->workers, sizeof(*client->worker));
	client->slots = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (!client->worker || client->slots == MAP_FAILED)
		return fault_errno(fault, ENOMEM, "no memory for %u workers", client->workers);
	for (uint32_t i = 0; i < client->workers && !rc; i++) {
		struct worker *worker = &client->worker[i];

		*worker = (struct worker){ .client = client, .index = i, .slot = &client->slots[i] };
		worker->outcome = &worker->slot->outcome;
		outcome_reset(worker->outcome);
		rc = worker_start(worker, fault);
	}
	return rc;
}

/* Makes every worker end: its connections are shut down, its process is killed. */
static void give_up(struct client *client)
{
	pthread_mutex_lock(&client->lock);
	client->given_up = true;
	for (size_t i = 0; i < client->fd_count; i++)
		shutdown(client->fds[i], SHUT_RDWR);
	pthread_mutex_unlock(&client->lock);
	for (uint32_t i = 0; i < client->workers; i++) {
		struct worker *worker = &client->worker[i];

		if (worker->is_running && client->as_processes)
			kill(worker->process, SIGKILL);
		else if (worker->is_running)
			shutdown(worker->gate_main, SHUT_WR);
	}
}

static void workers_close(struct client *client)
{
	for (uint32_t i = 0; client->worker && i < client->workers; i++) {
		struct worker *worker = &client->worker[i];

		if (!worker->is_running)
			continue;
		if (client->as_processes) {
			waitpid(worker->process, NULL, 0);
		} else {
			pthread_join(worker->thread, NULL);
			close(worker->gate);
		}
		close(worker->gate_main);
		worker->is_running = false;
	}
	for (size_t i = 0; i < client->fd_count; i++)
		close(client->fds[i]);
	free(client->fds);
	client->fds = NULL;
	client->fd_count = 0;
}

/* The main thread -------------------------------------------------------------------------------------------------------- */

static uint64_t moved(const struct client *client)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < client->workers; i++)
		sum += atomic_load_explicit(&client->slots[i].moved, memory_order_relaxed);
	return sum;
}

static int worker_failed(struct worker *worker, struct fault *fault)
{
	const struct fault *own = &worker->outcome->fault;

	if (!own->code)
		return fault_set(fault, ECHILD, "worker %u died", worker->index);
	if (worker->client->workers == 1)
		return fault_set(fault, own->code, "%s", own->text);
	return fault_set(fault, own->code, "connection %u: %.370s", worker->index, own->text);
}

/* Takes what the polled gates say. Returns how many said what was waited for, or -errno. */
static int gates_read(struct client *client, struct pollfd *gates, char wanted, struct fault *fault)
{
	int said = 0;

	for (uint32_t i = 0; i < client->workers; i++) {
		char what = GATE_FAILED;

		if (!gates[i].revents)
			continue;
		if (read(gates[i].fd, &what, 1) < 0 && errno == EINTR)
			continue;
		if (what != wanted)
			return worker_failed(&client->worker[i], fault);
		gates[i].fd = -1;
		said++;
	}
	return said;
}

/* Waits until every worker has said `wanted`. Returns 0 or -errno. */
static int gates_wait(struct client *client, char wanted, struct fault *fault)
{
	struct pollfd *gates = calloc(client->workers, sizeof(*gates));
	uint64_t still_ns = clock_now(), last = moved(client);
	uint32_t missing = client->workers;
	int rc = gates ? 0 : fault_errno(fault, ENOMEM, "no memory for %u workers", client->workers);

	for (uint32_t i = 0; gates && i < client->workers; i++)
		gates[i] = (struct pollfd){ .fd = client->worker[i].gate_main, .events = POLLIN };
	while (missing && rc >= 0) {
		uint64_t now, sum;

		if (poll(gates, client->workers, LOOK_MS) < 0 && errno != EINTR)
			rc = fault_errno(fault, errno, "poll");
		else
			rc = gates_read(client, gates, wanted, fault);
		if (rc > 0)
			missing -= (uint32_t)rc;
		now = clock_now();
		sum = moved(client);
		if (sum != last || rc > 0) {
			last = sum;
			still_ns = now;
		} else if (rc == 0 && now - still_ns > client->shared->timeout * NS_PER_SEC) {
			rc = fault_set(fault, ETIMEDOUT,
				       "nothing has moved for %llu s (--timeout), after %llu messages",
				       (unsigned long long)client->shared->timeout, (unsigned long long)sum);
		}
	}
	free(gates);
	return rc < 0 ? rc : 0;
}

/* Receives the frame that is due on the control connection. */
static int expect(struct client *client, enum frame_kind kind, json_t **body, struct fault *fault)
{
	int rc = frame_expect(client->control, kind, body, fault);

	if (rc != -EAGAIN)
		return rc;
	fault->code = 0;
	return fault_set(fault, ETIMEDOUT, "the server did not answer within %llu s (--timeout)",
			 (unsigned long long)client->shared->timeout);
}

static int hello(struct client *client, struct fault *fault)
{
	const struct option_table *table = client->tool->options;
	struct timeval limit = { .tv_sec = (time_t)client->shared->timeout };
	json_t *body;
	int rc;

	client->control = net_connect(client->host, client->port, client->shared->timeout, 0, fault);
	if (client->control < 0)
		return client->control;
	/* The server answers at once; what is long is measured on other connections. */
	setsockopt(client->control, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(client->control, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	rc = frame_send(
		client->control, FRAME_HELLO,
		json_pack("{s:s, s:o}", "tool", table->tool, "options", options_json(table, client->values, TOLD)),
		fault);
	if (!rc)
		rc = expect(client, FRAME_WELCOME, &body, fault);
	if (rc)
		return rc;
	client->session_id = (uint64_t)json_integer_value(json_object_get(body, "session"));
	json_decref(body);
	return 0;
}

/* Opens the gates, and waits for the end of the measured part. */
static int measure(struct client *client, struct results *results, struct fault *fault)
{
	struct cpu before;
	json_t *body;
	int rc = frame_send(client->control, FRAME_START, NULL, fault);

	if (!rc)
		rc = expect(client, FRAME_STARTED, &body, fault);
	if (rc)
		return rc;
	json_decref(body);
	cpu_now(&before);
	for (uint32_t i = 0; i < client->workers; i++)
		if (write(client->worker[i].gate_main, &(char){ GATE_GO }, 1) != 1)
			return worker_failed(&client->worker[i], fault);
	rc = gates_wait(client, GATE_DONE, fault);
	cpu_now(&results->cpu);
	cpu_subtract(&results->cpu, &before);
	return rc;
}

/* Tells the server that it is over and takes its result, which is worth having after a failure too. */
static int stop(struct client *client, struct results *results, bool aborted, struct fault *fault)
{
	json_t *body =
		json_pack("{s:b, s:o}", "aborted", aborted, "cpu", cpu_json(&results->cpu, results->total.bytes));
	int rc = frame_send(client->control, FRAME_STOP, body, fault);

	return rc ? rc : expect(client, FRAME_RESULT, &results->peer, fault);
}

static void add_up(struct client *client, struct results *results)
{
	uint64_t began = UINT64_MAX, ended = 0;

	for (uint32_t i = 0; i < client->workers; i++) {
		const struct slot *slot = &client->slots[i];

		outcome_add(&results->total, &slot->outcome);
		began = slot->began_ns < began ? slot->began_ns : began;
		ended = slot->ended_ns > ended ? slot->ended_ns : ended;
		if (client->as_processes && !i)
			results->cpu = slot->cpu;
		else if (client->as_processes)
			cpu_add(&results->cpu, &slot->cpu);
	}
	results->seconds = ended > began ? (double)(ended - began) / NS_PER_SEC : 0.0;
}

/* Joins what both ends have verified, and what went wrong at the server. */
static int judge(struct results *results, struct fault *fault)
{
	json_int_t there = json_integer_value(json_object_get(results->peer, "wrong_messages"));
	const char *first = json_string_value(json_object_get(results->peer, "first_wrong"));
	const char *why = json_string_value(json_object_get(results->peer, "fault"));

	results->verified = !there && !results->total.wrong_messages;
	if (results->total.wrong_messages)
		snprintf(results->first_wrong, sizeof(results->first_wrong), "%s", results->total.first_wrong);
	else if (there)
		snprintf(results->first_wrong, sizeof(results->first_wrong), "%s", first ? first : "?");
	if (why && *why && !fault->code)
		return fault_set(fault, EPROTO, "the server failed: %.350s", why);
	return -fault->code;
}

static int client_run(struct client *client, struct results *results, struct fault *fault)
{
	struct fault ignored = { 0 };
	int rc;

	signal(SIGPIPE, SIG_IGN);
	outcome_reset(&results->total);
	pthread_mutex_init(&client->lock, NULL);
	client->control = -1;
	rc = hello(client, fault);
	if (!rc) {
		rc = workers_open(client, fault);
		if (!rc)
			rc = gates_wait(client, GATE_READY, fault);
		if (!rc)
			rc = measure(client, results, fault);
		if (rc && client->worker)
			give_up(client);
		workers_close(client);
		if (!rc)
			add_up(client, results);
		stop(client, results, rc, rc ? &ignored : fault);
		rc = judge(results, fault);
	}
	if (client->control >= 0)
		close(client->control);
	if (client->slots && client->slots != MAP_FAILED)
		munmap(client->slots, client->workers * sizeof(struct slot));
	free(client->worker);
	pthread_mutex_destroy(&client->lock);
	return rc;
}

static json_t *client_json(const struct client *client, const struct results *results)
{
	const char *peer_latency_of = client->tool->latency_of(client->values, FOR_SERVER);
	const json_t *peer_latency = json_object_get(results->peer, "latency_us");
	struct report report = {
		.tool = client->tool,
		.values = client->values,
		.role = FOR_CLIENT,
		.outcome = &results->total,
		.seconds = results->seconds,
		.cpu = &results->cpu,
		.peer_cpu = json_object_get(results->peer, "cpu"),
		.verified = results->verified,
	};
	json_t *json = report_json(&report);

	json_object_set(json, "peer_reads", json_object_get(results->peer, "reads"));
	json_object_set_new(json, "peer_latency_of",
			    peer_latency_of && json_is_object(peer_latency) ? json_string(peer_latency_of) :
									      json_null());
	json_object_set(json, "peer_latency_us", json_object_get(results->peer, "latency_us"));
	json_object_set(json, "peer_zerocopy_sends", json_object_get(results->peer, "zerocopy_sends"));
	json_object_set(json, "peer_zerocopy_copied", json_object_get(results->peer, "zerocopy_copied"));
	return json;
}

static void print_common(const struct client *client, const struct results *results)
{
	const char *latency_of = client->tool->latency_of(client->values, FOR_CLIENT);
	const struct hist *latency = &results->total.latency;
	double gb = (double)results->total.bytes / 1e9;
	json_t *peer = json_object_get(results->peer, "cpu");

	if (latency_of && latency->count)
		printf("%s: mean %.1f us, p50 %.1f, p90 %.1f, p99 %.1f, max %.1f\n", latency_of,
		       hist_mean(latency) / 1e3, (double)hist_percentile(latency, 50) / 1e3,
		       (double)hist_percentile(latency, 90) / 1e3, (double)hist_percentile(latency, 99) / 1e3,
		       (double)latency->max / 1e3);
	if (gb > 0)
		printf("processor: %.3f s/GB here, %.3f s/GB at the server\n",
		       (results->cpu.user_s + results->cpu.system_s) / gb,
		       json_number_value(json_object_get(peer, "s_per_gb")));
	if (client->shared->verify)
		puts(results->verified ? "every byte verified" : "WRONG BYTES");
}

static int report_results(struct client *client, const struct client_face *face, const struct results *results,
			  struct fault *fault)
{
	const char *file = client->shared->json;
	json_t *json = client_json(client, results);
	int rc = 0;

	if (face->extend)
		face->extend(client, json);
	if (!file || strcmp(file, "-")) {
		face->print(client, results);
		print_common(client, results);
		if (fflush(stdout))
			rc = fault_errno(fault, errno, "standard output can't be written");
	}
	if (file && !rc)
		rc = json_write(file, json, fault);
	json_decref(json);
	if (!rc && client->shared->verify && !results->verified)
		rc = fault_set(fault, EBADMSG, "verification failed: %s", results->first_wrong);
	return rc;
}

int client_main(struct client *client, const struct client_face *face)
{
	const char *tool = client->tool->options->tool;
	struct results *results = calloc(1, sizeof(*results));
	struct fault fault = { 0 };
	int rc = 0;

	if (!results) {
		tell(tool, "no memory for results");
		return EXIT_FAILURE;
	}
	if (client->shared->json)
		rc = json_check(client->shared->json, &fault);
	if (!rc)
		rc = client_run(client, results, &fault);
	if (!rc)
		rc = report_results(client, face, results, &fault);
	if (rc)
		tell(tool, "%s", fault.text);
	json_decref(results->peer);
	free(results);
	return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
