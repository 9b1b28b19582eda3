/* SPDX-License-Identifier: MIT */
/*
 * kill: two programs stream to each other, one is killed at a random moment, and the other one must see what it would see over
 * TCP: what has arrived is a right prefix, a clean end of file comes after all bytes of completed sends only, a sender is told,
 * and nobody hangs. Nothing is left behind: no file, no segment, no socket with a name, no process.
 *
 *	kill --library FILE [--runs N] [--seed S] [--ring-bytes N] [--address A] [--slow N]
 *
 * They meet on 127.0.0.1, in a network of their own, or on the address A of this machine's; a death comes N times as long after
 * what it waits for. ZC_PATH and the other settings are the environment's. Without --ring-bytes the rings have another size every so many runs.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "kill.h"

#define PATIENCE_MS 30000
#define LOOK_MS 1000
#define BATCH 100 /* runs with the same servers */
#define STATS_NAME "stats"

static const char *const end_names[] = { "sender", "receiver", "nobody" };
static const char *const styles[] = { "blocking", "poll", "vector", "" };
static const char *const receive_styles[] = { "blocking", "poll", "epoll", "waitall" };

struct server {
	pid_t pid;
	int control;
};

struct judge {
	const char *library;
	struct board *board;
	int board_fd, messages[2];
	struct server server[2];
	unsigned long ring_bytes; /* 0: several */
	unsigned long ring_now;
	struct in_addr address;
	unsigned long slow;
	bool isolated;
	char stats_dir[64];
	/* of the run */
	pid_t pid[2];
	int status[2];
	unsigned int ended;
	bool half_open;
	struct use use[2];
};

/* What became of all runs. */
struct tally {
	unsigned long runs, killed[2], late, half_open, good_ends, resets, resets_short;
	unsigned long apart, met, on_ring, fetching, back; /* when the victim died */
	uint64_t ring, announced, fetched, switches;
};

static void must(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "kill: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Servers -------------------------------------------------------------------------------------------------------------- */

static void exec_server(const struct judge *judge, enum end end, int control)
{
	char text[4][16];
	const int numbers[] = { judge->board_fd, control, judge->messages[1] };
	char ring[32];

	for (int i = 0; i < 3; i++) {
		snprintf(text[i], sizeof(text[i]), "%d", numbers[i]);
		fcntl(numbers[i], F_SETFD, 0);
	}
	snprintf(ring, sizeof(ring), "%lu", judge->ring_now);
	setenv("ZC_RING_BYTES", ring, 1);
	setenv("ZC_STATS_DIR", judge->stats_dir, 1);
	setenv("LD_PRELOAD", judge->library, 1);
	execl("/proc/self/exe", "kill", "--serve", end_names[end], text[0], text[1], text[2], (char *)NULL);
	_exit(3);
}

static void start_servers(struct judge *judge)
{
	for (enum end end = SENDER; end <= RECEIVER; end++) {
		int control[2];

		must(!pipe2(control, O_CLOEXEC), "pipe");
		judge->server[end].pid = fork();
		must(judge->server[end].pid >= 0, "fork");
		if (!judge->server[end].pid)
			exec_server(judge, end, control[0]);
		close(control[0]);
		judge->server[end].control = control[1];
	}
}

static bool stop_servers(struct judge *judge)
{
	bool good = true;

	for (enum end end = SENDER; end <= RECEIVER; end++)
		close(judge->server[end].control);
	for (enum end end = SENDER; end <= RECEIVER; end++) {
		int status;

		must(waitpid(judge->server[end].pid, &status, 0) == judge->server[end].pid, "waitpid");
		if (status)
			fprintf(stderr, "kill: the %s's server ended with status %#x\n", end_names[end], status);
		good &= !status;
	}
	return good;
}

/* A run ---------------------------------------------------------------------------------------------------------------- */

static void start_end(struct judge *judge, enum end end)
{
	must(write(judge->server[end].control, "", 1) == 1, "a server has ended");
}

/* Whoever still waits for the dead one to connect is given another connection, without a byte. */
static void release_listener(const struct judge *judge)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_port = htons((uint16_t)judge->board->port),
				       .sin_addr = judge->address };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	(void)!connect(fd, (struct sockaddr *)&address, sizeof(address));
	close(fd);
}

static void take_end(struct judge *judge, const struct message *message)
{
	const struct plan *plan = &judge->board->plan;

	judge->pid[message->end] = message->pid;
	judge->status[message->end] = message->status;
	judge->ended++;
	if (message->end == plan->victim)
		judge->board->dead = true;
	if (message->end == plan->connects && !judge->board->accepted)
		release_listener(judge);
}

/* The listening end died before it had accepted, and the kernel has not told the other one, who is released. */
static void end_half_open(struct judge *judge)
{
	const struct board *board = judge->board;
	const struct plan *plan = &board->plan;

	if (judge->half_open || !board->dead || board->accepted || plan->victim == plan->connects ||
	    !is_half_open(board->port))
		return;
	judge->half_open = true;
	kill(board->end[plan->connects].pid, SIGKILL);
}

static bool await_message(struct judge *judge)
{
	struct pollfd look = { .fd = judge->messages[0], .events = POLLIN };
	int rc = 0;

	for (int waited = 0; !rc && waited < PATIENCE_MS; waited += LOOK_MS) {
		rc = poll(&look, 1, LOOK_MS);
		if (!rc)
			end_half_open(judge);
	}
	return rc > 0;
}

/* Returns whether all have ended in time. */
static bool watch(struct judge *judge)
{
	struct message message;

	while (judge->ended < 2) {
		if (!await_message(judge))
			return false;
		must(read(judge->messages[0], &message, sizeof(message)) == sizeof(message), "messages");
		judge->pid[message.end] = message.pid;
		if (message.what == LISTENS)
			start_end(judge, judge->board->plan.connects);
		else
			take_end(judge, &message);
	}
	return true;
}

/* One that listens and ends before it has said so is not in the plan: death begins behind that. */
static bool run(struct judge *judge, uint64_t seed)
{
	struct board *board = judge->board;

	memset(board, 0, sizeof(*board));
	plan_make(&board->plan, seed);
	board->plan.death_ns *= (uint32_t)judge->slow;
	board->address = judge->address;
	judge->ended = 0;
	judge->half_open = false;
	judge->pid[SENDER] = judge->pid[RECEIVER] = 0;
	start_end(judge, board->plan.connects == SENDER ? RECEIVER : SENDER);
	return watch(judge);
}

static bool was_killed(const struct judge *judge)
{
	enum end victim = judge->board->plan.victim;

	return victim != NOBODY && WIFSIGNALED(judge->status[victim]) && WTERMSIG(judge->status[victim]) == SIGKILL;
}

/* What is wrong, NULL for nothing ------------------------------------------------------------------------------------- */

static const char *wrong_anyway(const struct judge *judge, bool killed)
{
	const struct board *board = judge->board;

	for (enum end end = SENDER; end <= RECEIVER; end++) {
		if (judge->status[end] && !(killed && end == board->plan.victim))
			return "an end that was not killed ended badly";
	}
	if (board->different)
		return "wrong bytes have arrived";
	if (board->arrived > board->attempted)
		return "more has arrived than was sent";
	if (board->confirmed && board->confirmed - 1 != board->completed)
		return "the receiver has confirmed another number of bytes";
	return NULL;
}

/*
 * What has to be there before a clean end of file. Small sends that `sg` holds, for 100 µs at most, die with the process: that is
 * its price (docs/decisions/0003).
 */
static uint64_t required(const struct board *board)
{
	const char *path = getenv("ZC_PATH");
	bool holds = !path || !strcmp(path, "auto") || !strcmp(path, "sg");

	return holds ? board->certain : board->completed;
}

/* The receiver of a sender that was killed. */
static const char *wrong_receiver(const struct board *board)
{
	const struct outcome *out = &board->end[RECEIVER];
	bool connecting = out->error && out->step <= 1;

	if (!out->ended)
		return "the receiver has not said how the stream ended";
	if (connecting)
		return out->error == ECONNREFUSED || out->error == ECONNRESET ? NULL : "a strange error of connect";
	if (!out->error)
		return board->arrived < required(board) ?
			       "a clean end of file, and bytes of completed sends are missing" :
			       NULL;
	if (out->error != ECONNRESET && !(out->error == EPIPE && !strcmp(out->doing, "answer")))
		return "a strange error of the receiver";
	return NULL;
}

/* The sender of a receiver that was killed. */
static const char *wrong_sender(const struct board *board)
{
	const struct outcome *out = &board->end[SENDER];

	if (board->never_told)
		return "the sender went on and on, and was never told that its peer is gone";
	if (!out->ended)
		return "the sender has not said how the stream ended";
	if (out->error && out->error != EPIPE && out->error != ECONNRESET &&
	    !(out->error == ECONNREFUSED && out->step <= 1))
		return "a strange error of the sender";
	return NULL;
}

static const char *wrong_without_death(const struct board *board)
{
	if (board->arrived != board->completed || board->completed != board->attempted)
		return "bytes are missing, and nobody was killed";
	if (board->end[SENDER].error || board->end[RECEIVER].error)
		return "an error, and nobody was killed";
	return board->plan.confirms && !board->confirmed ? "no confirmation, and nobody was killed" : NULL;
}

static const char *wrong(const struct judge *judge)
{
	bool killed = was_killed(judge);
	const char *what = wrong_anyway(judge, killed);

	if (what)
		return what;
	if (!killed)
		return wrong_without_death(judge->board);
	return judge->board->plan.victim == SENDER ? wrong_receiver(judge->board) : wrong_sender(judge->board);
}

/* Telling -------------------------------------------------------------------------------------------------------------- */

static void show_file(pid_t pid, const char *name)
{
	char path[64], text[2048];
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	got = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
	if (got > 0)
		fprintf(stderr, "  %s: %.*s\n", path, (int)got, text);
	if (fd >= 0)
		close(fd);
}

static void show(const struct judge *judge, const char *what)
{
	const struct board *board = judge->board;
	const struct plan *plan = &board->plan;

	fprintf(stderr,
		"kill: seed %llu: %s\n  again: --seed %llu --runs 1 --ring-bytes %lu, with ZC_PATH=%s ZC_GUARD=%s\n"
		"  %s dies %u ns into step %u of %u; the %s connects; %u rounds, %u messages; send %s, receive %s\n"
		"  attempted %llu, completed %llu, arrived %llu\n",
		(unsigned long long)plan->seed, what, (unsigned long long)plan->seed, judge->ring_now,
		getenv("ZC_PATH"), getenv("ZC_GUARD"), end_names[plan->victim], plan->death_ns, plan->death,
		plan->rounds + plan->messages + 1, end_names[plan->connects], plan->rounds, plan->messages,
		styles[plan->send], receive_styles[plan->receive], (unsigned long long)board->attempted,
		(unsigned long long)board->completed, (unsigned long long)board->arrived);
	for (enum end end = SENDER; end <= RECEIVER; end++) {
		const struct outcome *out = &board->end[end];
		const struct use *use = &judge->use[end];

		fprintf(stderr,
			"  %s: pid %d, status %#x, step %u, %s: %s; met %llu, takeovers %llu, switches %llu, ring %llu, "
			"announced %llu, fetched %llu\n",
			end_names[end], (int)judge->pid[end], judge->status[end], out->step,
			out->ended ? out->doing : "has not ended", strerror(out->error),
			(unsigned long long)use->meetings, (unsigned long long)use->takeovers,
			(unsigned long long)use->switches, (unsigned long long)use->ring,
			(unsigned long long)use->announced, (unsigned long long)use->fetched);
	}
}

/* Who hangs is shown, and ends. */
static void show_hang(const struct judge *judge)
{
	show(judge, "somebody hangs");
	for (enum end end = SENDER; end <= RECEIVER; end++) {
		pid_t pid = judge->board->end[end].pid;

		if (pid > 0 && !kill(pid, 0)) {
			show_file(pid, "syscall");
			show_file(pid, "stack");
		}
	}
}

static void count(struct tally *tally, const struct judge *judge)
{
	const struct board *board = judge->board;
	const struct use *sender = &judge->use[SENDER], *receiver = &judge->use[RECEIVER];

	tally->runs++;
	tally->ring += sender->ring;
	tally->announced += sender->announced;
	tally->fetched += receiver->fetched;
	tally->switches += sender->switches;
	tally->half_open += judge->half_open;
	if (judge->half_open)
		return;
	if (!was_killed(judge)) {
		tally->late += board->plan.victim != NOBODY;
		return;
	}
	tally->killed[board->plan.victim]++;
	if (board->plan.victim == SENDER) {
		bool reset = board->end[RECEIVER].error;

		tally->good_ends += !reset;
		tally->resets += reset;
		tally->resets_short += reset && board->arrived < board->completed;
	}
	if (!sender->meetings || !receiver->meetings)
		tally->apart++;
	else if (!sender->takeovers)
		tally->met++;
	else if (sender->takeovers == sender->switches)
		tally->back++;
	else if (sender->announced > receiver->fetched)
		tally->fetching++;
	else
		tally->on_ring++;
}

static void report(const struct tally *tally, double seconds)
{
	printf("%lu runs in %.1f s: %lu senders and %lu receivers killed, %lu too late, %lu left half open by the kernel; receivers of killed senders: %lu end of "
	       "file, %lu ECONNRESET (%lu of them with bytes of completed sends missing)\n",
	       tally->runs, seconds, tally->killed[SENDER], tally->killed[RECEIVER], tally->late, tally->half_open,
	       tally->good_ends, tally->resets, tally->resets_short);
	printf("killed before the ends had met: %lu; met, on TCP: %lu; on the ring: %lu; with announced bytes not fetched: %lu; "
	       "back on TCP: %lu\n",
	       tally->apart, tally->met, tally->on_ring, tally->fetching, tally->back);
	printf("bytes: %llu by the ring, %llu announced, %llu fetched; %llu switches\n",
	       (unsigned long long)tally->ring, (unsigned long long)tally->announced,
	       (unsigned long long)tally->fetched, (unsigned long long)tally->switches);
}

/* All ------------------------------------------------------------------------------------------------------------------ */

static unsigned long ring_of(uint64_t seed)
{
	static const unsigned long sizes[] = { 16384, 65536, 1048576 };

	return sizes[random_next(&seed) % 3];
}

static bool run_one(struct judge *judge, uint64_t seed, struct tally *tally)
{
	const char *what;

	memset(judge->use, 0, sizeof(judge->use));
	if (!run(judge, seed)) {
		show_hang(judge);
		return false;
	}
	for (enum end end = SENDER; end <= RECEIVER; end++)
		judge->use[end] = use_take(judge->stats_dir, judge->pid[end]);
	count(tally, judge);
	what = judge->half_open ? NULL : wrong(judge);
	if (what)
		show(judge, what);
	return !what;
}

static bool run_all(struct judge *judge, uint64_t seed, unsigned long runs, struct tally *tally)
{
	bool good = true;

	for (unsigned long i = 0; i < runs && good; i++) {
		if (!(i % BATCH)) {
			judge->ring_now = judge->ring_bytes ? judge->ring_bytes : ring_of(seed + i);
			start_servers(judge);
		}
		good = run_one(judge, seed + i, tally);
		if (!good) /* servers and ends die with the judge */
			return false;
		if (i % BATCH == BATCH - 1 || i == runs - 1)
			good = stop_servers(judge);
	}
	return good;
}

/* The path was there to be killed on. */
static bool was_used(const struct tally *tally)
{
	const char *path = getenv("ZC_PATH");
	bool ring = path && strstr(path, "sdp"), announces = ring && strcmp(path, "bsdp");

	if (tally->runs < BATCH)
		return true;
	if ((ring && !tally->ring) || (announces && (!tally->announced || !tally->fetching)))
		fprintf(stderr, "kill: the path was not used: nothing was tested\n");
	return !(ring && !tally->ring) && !(announces && (!tally->announced || !tally->fetching));
}

static bool has_network(const struct judge *judge)
{
	return judge->address.s_addr == htonl(INADDR_LOOPBACK);
}

static void prepare(struct judge *judge, char *library)
{
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	judge->library = hold_libraries(library);
	must(judge->library != NULL, library);
	judge->isolated = isolate(has_network(judge));
	if (!judge->isolated)
		fprintf(stderr, "kill: no namespaces of our own: what is left behind is not looked for\n");
	snprintf(judge->stats_dir, sizeof(judge->stats_dir),
		 judge->isolated ? "/tmp/" STATS_NAME : "/tmp/zc-kill-XXXXXX");
	must(judge->isolated ? !mkdir(judge->stats_dir, 0700) : mkdtemp(judge->stats_dir) != NULL, judge->stats_dir);
	judge->board_fd = memfd_create("board", MFD_CLOEXEC);
	must(judge->board_fd >= 0 && !ftruncate(judge->board_fd, sizeof(*judge->board)), "memfd_create");
	judge->board = mmap(NULL, sizeof(*judge->board), PROT_READ | PROT_WRITE, MAP_SHARED, judge->board_fd, 0);
	must(judge->board != MAP_FAILED, "mmap");
	must(!pipe2(judge->messages, O_CLOEXEC), "pipe");
}

static bool nothing_left(const struct judge *judge)
{
	bool clean = true;

	if (waitpid(-1, NULL, WNOHANG) >= 0 || errno != ECHILD) {
		fprintf(stderr, "kill: a process was left behind\n");
		clean = false;
	}
	if (judge->isolated && litter(STATS_NAME, has_network(judge)))
		clean = false;
	if (rmdir(judge->stats_dir) < 0) {
		litter_in(judge->stats_dir, "");
		clean = false;
	}
	return clean;
}

static int serve_by(char **argv)
{
	struct board *board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[3]), 0);

	must(board != MAP_FAILED, "mmap");
	stream_make();
	return serve(strcmp(argv[2], end_names[SENDER]) ? RECEIVER : SENDER, board, atoi(argv[4]), atoi(argv[5]));
}

static int usage(void)
{
	fprintf(stderr, "usage: kill --library FILE [--runs N] [--seed S] [--ring-bytes N] [--address A] [--slow N]\n");
	return 2;
}

static int judge_all(struct judge *judge, char *library, uint64_t seed, unsigned long runs)
{
	struct tally tally = { 0 };
	uint64_t start = clock_now();
	bool good;

	prepare(judge, library);
	good = run_all(judge, seed, runs, &tally);
	report(&tally, (double)(clock_now() - start) / NS_PER_SEC);
	if (good)
		good = was_used(&tally) & nothing_left(judge);
	if (!good)
		fprintf(stderr, "kill: failed; the first seed was %llu\n", (unsigned long long)seed);
	return good ? 0 : 1;
}

int main(int argc, char **argv)
{
	static const struct option options[] = { { "library", required_argument, NULL, 'l' },
						 { "runs", required_argument, NULL, 'n' },
						 { "seed", required_argument, NULL, 's' },
						 { "ring-bytes", required_argument, NULL, 'r' },
						 { "address", required_argument, NULL, 'a' },
						 { "slow", required_argument, NULL, 'w' },
						 { 0 } };
	struct judge judge = { .address.s_addr = htonl(INADDR_LOOPBACK), .slow = 1 };
	char *library = NULL;
	unsigned long runs = 300;
	uint64_t seed = (uint64_t)time(NULL) * 1000000;
	int option;

	if (argc == 6 && !strcmp(argv[1], "--serve"))
		return serve_by(argv);
	while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		if (option == 'l')
			library = optarg;
		else if (option == 'n')
			runs = strtoul(optarg, NULL, 0);
		else if (option == 's')
			seed = strtoull(optarg, NULL, 0);
		else if (option == 'r')
			judge.ring_bytes = strtoul(optarg, NULL, 0);
		else if (option == 'w')
			judge.slow = strtoul(optarg, NULL, 0);
		else if (option != 'a' || inet_pton(AF_INET, optarg, &judge.address) != 1)
			return usage();
	}
	if (!library || !runs || !judge.slow || judge.slow > NS_PER_SEC / DEATH_NS_MAX || optind != argc)
		return usage();
	return judge_all(&judge, library, seed, runs);
}
