/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "apps/tools/server.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "apps/tools/net.h"
#include "apps/tools/session.h"

#define FULL_PAUSE_MS 100

/* Takes the link out of the list before its descriptor is closed: its number may be somebody else's at once. */
static void link_close(struct link *link)
{
	struct server *server = link->server;

	pthread_mutex_lock(&server->lock);
	for (struct link **at = &server->links; *at; at = &(*at)->next) {
		if (*at != link)
			continue;
		*at = link->next;
		break;
	}
	close(link->fd);
	free(link);
	pthread_cond_broadcast(&server->changed);
	pthread_mutex_unlock(&server->lock);
}

static void *link_thread(void *argument)
{
	struct link *link = argument;

	session_accept(link->server, link->fd);
	link_close(link);
	return NULL;
}

static void link_open(struct server *server, int fd)
{
	struct link *link = malloc(sizeof(*link));
	pthread_attr_t attributes;
	pthread_t thread;
	int rc;

	if (!link) {
		close(fd);
		return;
	}
	*link = (struct link){ fd, server, NULL };
	pthread_mutex_lock(&server->lock);
	link->next = server->links;
	server->links = link;
	pthread_mutex_unlock(&server->lock);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&thread, &attributes, link_thread, link);
	pthread_attr_destroy(&attributes);
	if (rc) {
		tell(server->tool->options->tool, "no thread for a connection: %s", strerrordesc_np(rc));
		link_close(link);
	}
}

/* Accepts all who wait. Returns how long to leave the others alone, in ms; -1: not at all. */
static int accept_all(struct server *server, int listener)
{
	for (;;) {
		int fd = accept(listener, NULL, NULL);

		if (fd >= 0)
			link_open(server, fd);
		else if (errno == EAGAIN || errno == EWOULDBLOCK)
			return -1;
		else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
			return FULL_PAUSE_MS;
		/* Anything else is the fate of one connection that died before it was accepted. */
	}
}

static bool is_over(struct server *server)
{
	bool over;

	pthread_mutex_lock(&server->lock);
	over = server->shared->sessions && server->finished >= server->shared->sessions;
	pthread_mutex_unlock(&server->lock);
	return over;
}

static void serve(struct server *server, int listener, int signals)
{
	struct pollfd waiting[] = {
		{ .fd = signals, .events = POLLIN },
		{ .fd = server->finished_event, .events = POLLIN },
		{ .fd = listener, .events = POLLIN },
	};
	int pause_ms = -1;

	for (;;) {
		eventfd_t ignored;

		if (poll(waiting, pause_ms < 0 ? 3 : 2, pause_ms) < 0 && errno != EINTR)
			break;
		if (waiting[0].revents)
			break;
		if (waiting[1].revents)
			eventfd_read(server->finished_event, &ignored);
		if (is_over(server))
			break;
		pause_ms = accept_all(server, listener);
	}
}

/* Shuts every connection down, and waits until their threads are gone. */
static void stop(struct server *server)
{
	pthread_mutex_lock(&server->lock);
	server->stopping = true;
	for (struct link *at = server->links; at; at = at->next)
		shutdown(at->fd, SHUT_RDWR);
	while (server->links)
		pthread_cond_wait(&server->changed, &server->lock);
	pthread_mutex_unlock(&server->lock);
}

/* SIGINT and SIGTERM are read from a descriptor; blocked before any thread starts, so that none takes them. */
static int open_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC);
}

static int finish(struct server *server, struct fault *fault)
{
	const char *tool = server->tool->options->tool;
	int status = server->shared->sessions && server->failed ? EXIT_FAILURE : EXIT_SUCCESS;
	json_t *json;

	if (!server->shared->json)
		return status;
	json = json_pack("{s:s, s:s, s:O}", "tool", tool, "role", server->tool->options->server, "sessions",
			 server->reports);
	if (json_write(server->shared->json, json, fault)) {
		tell(tool, "%s", fault->text);
		status = EXIT_FAILURE;
	}
	json_decref(json);
	return status;
}

int server_run(const struct tool *tool, const struct shared_options *shared, uint64_t port)
{
	struct server server = {
		.tool = tool,
		.shared = shared,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.changed = PTHREAD_COND_INITIALIZER,
		.reports = json_array(),
	};
	struct fault fault = { 0 };
	char address[NET_ADDRESS_BYTES];
	int signals, listener, status = EXIT_FAILURE;

	signal(SIGPIPE, SIG_IGN);
	signals = open_signals();
	server.finished_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (shared->json && json_check(shared->json, &fault))
		goto out;
	listener = net_listen(shared->bind, port, address, &fault);
	if (listener < 0)
		goto out;
	/* With --json - the line goes the same way: it is the first, and the object follows. */
	printf("listening on %s\n", address);
	fflush(stdout);
	serve(&server, listener, signals);
	close(listener);
	stop(&server);
	status = finish(&server, &fault);
out:
	if (fault.code && status)
		tell(tool->options->tool, "%s", fault.text);
	close(signals);
	close(server.finished_event);
	json_decref(server.reports);
	return status;
}
