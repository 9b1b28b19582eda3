/* SPDX-License-Identifier: MIT */
/*
 * verbs-peer PLUG-IN ADDRESS MODE [BYTES [MESSAGE-BYTES [COMMAND]]]: both ends of a connection over verbs, in two processes, the
 * accepting one at ADDRESS. A pair of Unix sockets between them stands for the TCP connection. Each end prints a line
 * of JSON; the exit status is 0 if both ends have seen what they should.
 *
 *	stream	BYTES each way at once, compared byte for byte
 *	rate	BYTES one way, not compared
 *	lat	ping-pong of MESSAGE-BYTES, waiting by polling
 *	sleep	ping-pong of MESSAGE-BYTES, waiting by sleeping
 *	get	BYTES by GETs of MESSAGE-BYTES from the accepting end's memory
 *	break	as stream, with COMMAND run by a shell after a third (`kill`: the connecting end ends); when the connection
 *		breaks, both ends tell each other over the socket by which byte to go on, and the rest goes there
 *	refuse	the accepting end refuses
 *	version	the connecting end is COMMAND, a plug-in of another version
 *	devices	shows the devices
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/hist.h"
#include "tests/vm/programs/verbs_peer.h"

struct end self;
static uint8_t pattern[PATTERN_BYTES + CHUNK_MAX];
uint8_t scratch[CHUNK_MAX];

void die(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fprintf(stderr, "verbs-peer, %s end: ", self.name);
	vfprintf(stderr, format, arguments);
	fprintf(stderr, "\n");
	va_end(arguments);
	exit(1);
}

static void make_pattern(void)
{
	for (size_t i = 0; i < sizeof(pattern); i++)
		pattern[i] = (uint8_t)((i % PATTERN_BYTES) * 2654435761u >> 13);
}

const uint8_t *pattern_at(uint64_t position)
{
	return pattern + position % PATTERN_BYTES;
}

void must_match(const uint8_t *bytes, size_t count, uint64_t position)
{
	if (memcmp(bytes, pattern_at(position), count))
		die("wrong bytes at %llu", (unsigned long long)position);
}

/* Waiting ----------------------------------------------------------------------------------------------------------- */

const char *trouble(void)
{
	enum verbs_trouble why;

	self.verbs->state(self.conn, &why);
	return self.verbs->tell(why);
}

/* Sleeps until something has happened. */
void sleep_for(unsigned int what)
{
	struct pollfd fds[] = { { self.verbs->fd(self.conn), POLLIN, 0 }, { self.other, POLLIN, 0 } };
	bool breaks = !strcmp(self.mode, "break");

	if (!self.verbs->arm(self.conn, what))
		return;
	if (poll(fds, breaks ? 2 : 1, PATIENCE_MS) <= 0)
		die("nothing happens: sent %llu, received %llu", (unsigned long long)self.sent,
		    (unsigned long long)self.received);
	/* The other end has told by which byte to go on. */
	if (breaks && fds[1].revents)
		self.verbs->give_up(self.conn);
	self.verbs->woke(self.conn);
}

static bool is_to_be_refused(void)
{
	return !strcmp(self.mode, "refuse") || !strcmp(self.mode, "version");
}

static void wait_for_up(void)
{
	struct pollfd fd = { self.verbs->fd(self.conn), POLLIN, 0 };

	while (self.verbs->state(self.conn, NULL) == VERBS_OPENING) {
		self.verbs->arm(self.conn, VERBS_IN);
		if (self.verbs->state(self.conn, NULL) == VERBS_OPENING && poll(&fd, 1, PATIENCE_MS) <= 0)
			die("no connection");
		self.verbs->woke(self.conn);
	}
	if (self.verbs->state(self.conn, NULL) == VERBS_BROKEN && !is_to_be_refused())
		die("no connection: %s", trouble());
}

/* Both ends say that they are reading, and take their lanes over. */
static void take_over(void)
{
	atomic_store(&self.in->shared->reader, 1);
	if (self.verbs->credit(self.conn, VERBS_NOW) < 0)
		die("credit: %s", trouble());
	while (!lane_take_over(self.out)) {
		if (self.verbs->poll(self.conn) < 0)
			die("before takeover: %s", trouble());
		sleep_for(VERBS_IN | VERBS_OUT);
	}
}

void tell_other(const void *bytes, size_t count)
{
	if (write(self.other, bytes, count) != (ssize_t)count)
		die("the other end is gone");
}

bool hear_other(void *bytes, size_t count)
{
	for (size_t done = 0; done < count;) {
		ssize_t got = read(self.other, (uint8_t *)bytes + done, count - done);

		if (got <= 0)
			return false;
		done += (size_t)got;
	}
	return true;
}

/* Moving ------------------------------------------------------------------------------------------------------------ */

/* Puts up to `bytes`, not more than may be in one send. Returns how many. */
static size_t put(uint64_t bytes)
{
	struct iovec iov = { (void *)pattern_at(self.sent), bytes < LANE_CHUNK ? bytes : LANE_CHUNK };
	ssize_t rc = lane_put(self.out, &iov, 1, 0);

	if (rc < 0)
		die("lane_put: %zd", rc);
	self.sent += (uint64_t)rc;
	return (size_t)rc;
}

size_t take(bool compare)
{
	struct iovec iov = { scratch, sizeof(scratch) };
	size_t got;
	int rc = lane_get(self.in, &iov, 1, false, &got);

	if (rc < 0)
		die("lane_get: %d", rc);
	if (compare && got)
		must_match(scratch, got, self.received);
	self.received += got;
	return got;
}

static void run_command(void)
{
	if (!self.command || self.accepting)
		return;
	if (!strcmp(self.command, "kill"))
		raise(SIGKILL);
	if (system(self.command))
		die("the command failed: %s", self.command);
	self.command = NULL;
}

/* Sends and receives so many until both are done or the connection breaks. */
void exchange(uint64_t out, uint64_t in)
{
	bool compare = strcmp(self.mode, "rate");

	while (!self.broken && (self.sent < out || self.received < in || self.verbs->push(self.conn, 0))) {
		size_t done = self.sent < out ?
				      put(out - self.sent < self.message_bytes ? out - self.sent : self.message_bytes) :
				      0;

		self.verbs->push(self.conn, 0);
		if (self.verbs->poll(self.conn) < 0)
			self.broken = true;
		done += take(compare);
		self.verbs->credit(self.conn, 0);
		if (out && self.sent > out / 3)
			run_command();
		if (!done && !self.broken && (self.sent < out || self.received < in))
			sleep_for(VERBS_IN | VERBS_OUT | (self.verbs->push(self.conn, 0) ? VERBS_SENT : 0));
	}
}

/* No end closes before the other has all: what is under way would be lost. */
static void leave(void)
{
	struct verbs_positions at;
	char done;

	for (self.verbs->positions(self.conn, &at); at.delivered < at.written; self.verbs->positions(self.conn, &at)) {
		if (self.verbs->poll(self.conn) < 0)
			die("before the end: %s", trouble());
	}
	tell_other("d", 1);
	hear_other(&done, 1);
}

/* Modes ------------------------------------------------------------------------------------------------------------- */

static void stream(bool both)
{
	uint64_t out = both || !self.accepting ? self.bytes : 0, in = both || self.accepting ? self.bytes : 0;
	uint64_t from = clock_now();
	double seconds;

	exchange(out, in);
	if (self.broken)
		die("broken: %s", trouble());
	leave();
	seconds = (double)(clock_now() - from) / 1e9;
	printf("{\"end\":\"%s\",\"sent\":%llu,\"received\":%llu,\"gbit_s\":%.3f}\n", self.name,
	       (unsigned long long)self.sent, (unsigned long long)self.received,
	       (double)(self.sent + self.received) * 8 / seconds / 1e9);
}

static void receive_all(uint64_t until, bool sleeps)
{
	while (self.received < until) {
		if (take(true))
			self.verbs->credit(self.conn, 0);
		else if (self.verbs->poll(self.conn) < 0)
			die("broken: %s", trouble());
		else if (sleeps && lane_is_empty(self.in))
			sleep_for(VERBS_IN);
	}
}

static void send_all(uint64_t until)
{
	while (self.sent < until) {
		put(until - self.sent);
		while (self.verbs->push(self.conn, 0) > 0)
			self.verbs->poll(self.conn);
	}
}

static void ping_pong(bool sleeps)
{
	uint64_t rounds = self.bytes / self.message_bytes;
	static struct hist times;

	hist_reset(&times);
	for (uint64_t i = 1; i <= rounds; i++) {
		uint64_t from = clock_now();

		if (self.accepting)
			receive_all(i * self.message_bytes, sleeps);
		send_all(i * self.message_bytes);
		if (!self.accepting)
			receive_all(i * self.message_bytes, sleeps);
		hist_record(&times, clock_now() - from);
	}
	leave();
	printf("{\"end\":\"%s\",\"rounds\":%llu,\"half_us\":{\"p50\":%.2f,\"p99\":%.2f}}\n", self.name,
	       (unsigned long long)rounds, (double)hist_percentile(&times, 50) / 2e3,
	       (double)hist_percentile(&times, 99) / 2e3);
}

/* The accepting end exposes memory and tells by its lane where. */
static void expose(void)
{
	uint8_t *memory = aligned_alloc(4096, EXPOSED_BYTES);
	struct verbs_remote remote;
	struct verbs_region *region;
	struct iovec iov = { &remote, sizeof(remote) };
	char done;

	for (size_t at = 0; at < EXPOSED_BYTES; at += CHUNK_MAX)
		memcpy(memory + at, pattern_at(at), CHUNK_MAX);
	if (self.verbs->expose(self.conn, memory, EXPOSED_BYTES, &remote, &region))
		die("expose");
	if (lane_put(self.out, &iov, 1, 0) != sizeof(remote))
		die("lane_put");
	while (self.verbs->push(self.conn, 0) > 0)
		sleep_for(VERBS_OUT | VERBS_SENT);
	hear_other(&done, 1);
	self.verbs->hide(self.conn, region);
	if (self.verbs->invalidate(memory, EXPOSED_BYTES))
		die("exposed memory is still in use");
	free(memory);
	printf("{\"end\":\"accepting\",\"exposed\":%u}\n", EXPOSED_BYTES);
}

struct gets {
	struct verbs_remote remote;
	uint8_t *memory; /* as large as what is exposed */
	uint64_t asked, done;
	unsigned int under_way, most;
};

/* Asks for as many as may be under way, each to the place that belongs to it, in two pieces. */
static void ask_more(struct gets *gets)
{
	while (gets->asked < self.bytes) {
		uint64_t at = gets->asked % EXPOSED_BYTES, left = self.bytes - gets->asked;
		uint64_t bytes = self.message_bytes < left ? self.message_bytes : left;
		struct verbs_remote from = { gets->remote.address + at, gets->remote.key };
		struct iovec iov[2];
		ssize_t got;

		bytes = bytes < EXPOSED_BYTES - at ? bytes : EXPOSED_BYTES - at;
		iov[0] = (struct iovec){ gets->memory + at, bytes / 3 };
		iov[1] = (struct iovec){ gets->memory + at + bytes / 3, bytes - bytes / 3 };
		got = self.verbs->get(self.conn, &from, bytes, iov, 2, 0, 0, at);
		if (got == -EAGAIN)
			break;
		if (got <= 0)
			die("get: %zd", got);
		gets->asked += (uint64_t)got;
		gets->under_way++;
		gets->most = gets->under_way > gets->most ? gets->under_way : gets->most;
	}
}

static void fetch(void)
{
	struct gets gets = { .memory = aligned_alloc(4096, EXPOSED_BYTES) };
	struct iovec iov = { &gets.remote, sizeof(gets.remote) };
	struct verbs_got got;
	uint64_t from;
	size_t bytes;

	while (lane_get(self.in, &iov, 1, false, &bytes) != LANE_DATA)
		sleep_for(VERBS_IN);
	from = clock_now();
	while (gets.done < self.bytes) {
		if (self.verbs->poll(self.conn) < 0)
			die("broken: %s", trouble());
		while (self.verbs->got(self.conn, &got)) {
			if (got.error)
				die("GET: %d, %s", got.error, trouble());
			gets.done += got.bytes;
			gets.under_way--;
		}
		ask_more(&gets);
		if (gets.under_way && gets.done < self.bytes)
			sleep_for(VERBS_GOT);
	}
	printf("{\"end\":\"connecting\",\"got\":%llu,\"most_under_way\":%u,\"gbit_s\":%.3f}\n",
	       (unsigned long long)gets.done, gets.most, (double)gets.done * 8 / (double)(clock_now() - from));
	for (uint64_t at = 0; at < EXPOSED_BYTES && at < self.bytes; at += CHUNK_MAX) {
		uint64_t left = self.bytes - at;

		must_match(gets.memory + at, left < CHUNK_MAX ? left : CHUNK_MAX, at);
	}
	tell_other("d", 1);
	free(gets.memory);
}

static void refused(void)
{
	if (self.verbs->state(self.conn, NULL) != VERBS_BROKEN)
		die("was not refused: %s", trouble());
	printf("{\"end\":\"connecting\",\"trouble\":\"%s\"}\n", trouble());
}

/* Ends -------------------------------------------------------------------------------------------------------------- */

static void set_up(struct verbs_setup *setup)
{
	if (channel_make(&self.channel, RING_BYTES))
		die("channel_make");
	self.out = &self.channel.out;
	self.in = &self.channel.in;
	*setup = (struct verbs_setup){ .out = *self.out, .in = *self.in, .nonce = "not a secret" };
}

static void run(void)
{
	wait_for_up();
	if (is_to_be_refused()) {
		refused();
		return;
	}
	take_over();
	if (!strcmp(self.mode, "stream") || !strcmp(self.mode, "rate"))
		stream(self.mode[0] == 's');
	else if (!strcmp(self.mode, "lat") || !strcmp(self.mode, "sleep"))
		ping_pong(self.mode[0] == 's');
	else if (!strcmp(self.mode, "get"))
		(self.accepting ? expose : fetch)();
	else if (!strcmp(self.mode, "break"))
		break_and_go_on();
	else
		die("there is no mode '%s'", self.mode);
}

static void end_all(void)
{
	if (self.conn)
		self.verbs->close(self.conn);
	channel_close(&self.channel);
	fflush(stdout);
}

/* The connection whose upgrade this would be: here it has no other meaning. */
static void name_tuple(const struct sockaddr_storage *to, struct verbs_tuple *tuple)
{
	if (verbs_tuple_make((const struct sockaddr *)to, (const struct sockaddr *)to, tuple))
		die("an address of no known kind");
}

static void accept_end(struct sockaddr_storage *address)
{
	struct verbs_listener *listener;
	struct verbs_request *request;
	struct verbs_setup setup;
	struct verbs_offer offer;
	struct pollfd fds[] = { { .events = POLLIN }, { self.other, POLLIN, 0 } };
	uint16_t port;
	int rc = self.verbs->listen((struct sockaddr *)address, 4, &listener);

	if (rc)
		die("listen: %s", strerror(-rc));
	port = htons(self.verbs->listener_port(listener));
	tell_other(&port, sizeof(port));
	fds[0].fd = self.verbs->listener_fd(listener);
	while ((rc = self.verbs->listener_take(listener, &request, &offer)) == -EAGAIN) {
		if (self.verbs->listener_heard(listener) != VERBS_REFUSED)
			break;
		if (poll(fds, 2, PATIENCE_MS) <= 0 || fds[1].revents)
			die("nobody connects");
	}
	if (!strcmp(self.mode, "version")) {
		printf("{\"end\":\"accepting\",\"trouble\":\"%s\"}\n",
		       self.verbs->tell(self.verbs->listener_heard(listener)));
		self.verbs->listener_close(listener);
		end_all();
		return;
	}
	if (rc || strcmp((const char *)offer.nonce, "not a secret") || offer.tuple.port[1] != port)
		die("a wrong request: %d", rc);
	if (!strcmp(self.mode, "refuse")) {
		self.verbs->refuse(request, VERBS_NO_QUEUE_PAIR);
		hear_other(&port, 1);
	} else {
		set_up(&setup);
		rc = self.verbs->admit(request, &setup, &self.conn);
		if (rc)
			die("admit: %s", strerror(-rc));
		run();
	}
	self.verbs->listener_close(listener);
	end_all();
}

static void connect_end(struct sockaddr_storage *address)
{
	struct verbs_setup setup;
	struct verbs_tuple tuple;
	uint16_t port;
	int rc;

	if (!hear_other(&port, sizeof(port)))
		die("the accepting end does not listen");
	*(address->ss_family == AF_INET ? &((struct sockaddr_in *)address)->sin_port :
					  &((struct sockaddr_in6 *)address)->sin6_port) = port;
	set_up(&setup);
	name_tuple(address, &tuple);
	rc = self.verbs->connect(NULL, (struct sockaddr *)address, &tuple, &setup, &self.conn);
	if (rc)
		die("connect: %s", strerror(-rc));
	run();
	end_all();
}

static void show_devices(void)
{
	struct verbs_device devices[8];
	enum verbs_trouble why;
	size_t memlock;
	int count = self.verbs->devices(devices, 8, &why, &memlock);

	printf("{\"count\":%d,\"trouble\":\"%s\",\"devices\":[", count, self.verbs->tell(why));
	for (int i = 0; i < count && i < 8; i++)
		printf("%s{\"name\":\"%s\",\"active\":%u,\"gids\":%u,\"reads\":%u}", i ? "," : "", devices[i].name,
		       devices[i].ports_active, devices[i].gids, devices[i].reads_out);
	printf("]}\n");
}

static const struct verbs_table *load(const char *path)
{
	void *plug_in = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	const struct verbs_table *table = plug_in ? dlsym(plug_in, VERBS_SYMBOL) : NULL;

	if (!table)
		die("%s", dlerror());
	if (table->version != VERBS_TABLE_VERSION || table->bytes != sizeof(*table))
		die("another version");
	return table;
}

static int run_both(struct sockaddr_storage *address)
{
	int ends[2], status = 0;
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		die("socketpair: %m");
	child = fork();
	self.accepting = child;
	self.name = child ? "accepting" : "connecting";
	self.other = ends[!child];
	close(ends[!!child]);
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (!strcmp(self.mode, "version"))
			self.verbs = load(self.command);
		connect_end(address);
		exit(0);
	}
	accept_end(address);
	waitpid(child, &status, 0);
	if (self.command && !strcmp(self.command, "kill"))
		return !WIFSIGNALED(status);
	return status != 0;
}

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM }, *found;
	struct sockaddr_storage address = { 0 };

	self.name = "no";
	if (argc < 4) {
		fprintf(stderr, "usage: verbs-peer PLUG-IN ADDRESS MODE [BYTES [MESSAGE-BYTES [COMMAND]]]\n");
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	make_pattern();
	self.mode = argv[3];
	self.bytes = argc > 4 ? strtoull(argv[4], NULL, 0) : 1 << 20;
	self.message_bytes = argc > 5 ? strtoull(argv[5], NULL, 0) : 65536;
	self.command = argc > 6 ? argv[6] : NULL;
	if (!self.message_bytes || self.message_bytes > CHUNK_MAX || getaddrinfo(argv[2], "0", &hints, &found)) {
		fprintf(stderr, "verbs-peer: messages have 1 to %u bytes; ADDRESS is a number: '%s'\n", CHUNK_MAX,
			argv[2]);
		return 2;
	}
	memcpy(&address, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	self.verbs = load(argv[1]);
	if (!strcmp(self.mode, "devices")) {
		show_devices();
		return 0;
	}
	return run_both(&address);
}
