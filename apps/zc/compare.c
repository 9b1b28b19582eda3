/* SPDX-License-Identifier: MIT */
/*
 * zc compare: the rounds. Each round runs every path once, in an order that moves on by one with each round, so that a
 * drift of the machine (temperature, other users) does not favour one of them.
 */
#define _GNU_SOURCE
#include "apps/zc/compare.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/zc/commands.h"
#include "apps/zc/compare_output.h"
#include "apps/zc/compare_run.h"
#include "apps/zc/library.h"
#include "common/clock.h"

/* After this many failures a path's remaining rounds are left out: each could cost a whole --timeout. */
#define FAILURES_MAX 2

struct outputs {
	struct output json, csv, html;
};

/* The comparison ----------------------------------------------------------------------------------------------------- */

struct run *comparison_add(struct path_result *result)
{
	struct run *more = realloc(result->run, (result->runs + 1) * sizeof(*more));

	if (!more)
		return NULL;
	result->run = more;
	more[result->runs] = (struct run){ .bytes = NAN, .payload_min = NAN, .payload_max = NAN };
	return &more[result->runs++];
}

static void run_free(struct run *run)
{
	free(run->failure);
	run->failure = NULL;
}

void comparison_free(struct comparison *comparison)
{
	char *texts[] = { comparison->name,	  comparison->server,  comparison->client,
			  comparison->unit,	  comparison->metric,  comparison->bytes_source,
			  comparison->cpu_source, comparison->preload, comparison->conclusion };

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		free(texts[i]);
	for (size_t i = 0; i < comparison->paths; i++) {
		for (size_t k = 0; k < comparison->path[i].runs; k++)
			run_free(&comparison->path[i].run[k]);
		free(comparison->path[i].run);
		json_decref(comparison->path[i].statistics);
		free(comparison->path[i].explanation);
	}
	json_decref(comparison->environment);
	*comparison = (struct comparison){ .winner = -1 };
}

static const char *metric_words(const struct compare_options *options, char *out, size_t bytes)
{
	switch (options->metric.kind) {
	case EXTRACT_REGEX:
		snprintf(out, bytes, "the number that %s finds in the client's output", options->metric.text);
		return out;
	case EXTRACT_POINTER:
		snprintf(out, bytes, "%s in the client's JSON", options->metric.text);
		return out;
	default:
		return "the seconds that the client took";
	}
}

static const char *bytes_words(const struct compare_options *options)
{
	if (options->bytes.kind != EXTRACT_NONE)
		return BYTES_TOLD;
	if (options->lab)
		return "through the interfaces between the lab's hosts during the client's run, headers and RDMA's packets "
		       "included";
	if (options->isolate)
		return "received by the loopback interface of the comparison's own network namespace, headers included, "
		       "and through rings beside it";
	return "through the machine's network interfaces during the client's run, headers and other programs' traffic "
	       "included, and through rings beside them";
}

static const char *preload_words(const struct compare_options *options)
{
	if (options->preload_server && options->preload_client)
		return "server and client";
	return options->preload_server ? "server" : "client";
}

static const char *cpu_words(void)
{
	struct meter meter;
	bool grouped;

	meter_open(&meter, "probe");
	grouped = *meter.group;
	meter_close(&meter);
	return grouped ? "server and client with all their processes while the client ran, by cgroup" :
			 "server and client with all their processes while the client ran, by their CPU clocks";
}

static int comparison_fill(struct comparison *out, const struct compare_options *options)
{
	char words[512];

	*out = (struct comparison){
		.name = strdup(options->name ? options->name : options->client),
		.server = strdup(options->server),
		.client = strdup(options->client),
		.unit = strdup(options->unit ? options->unit : "seconds"),
		.metric = strdup(metric_words(options, words, sizeof(words))),
		.bytes_source = strdup(bytes_words(options)),
		.cpu_source = strdup(cpu_words()),
		.preload = strdup(preload_words(options)),
		.higher = options->higher,
		.repeat = options->repeat,
		.environment = environment_read(options->notes),
		.paths = options->paths,
		.winner = -1,
	};
	for (size_t i = 0; i < options->paths; i++)
		out->path[i] = (struct path_result){ .path = options->path[i],
						     .rdma_wait = lab_rdma_wait(options, options->path[i]) };
	if (!out->name || !out->server || !out->client || !out->unit || !out->metric || !out->bytes_source ||
	    !out->cpu_source || !out->preload || !out->environment)
		return -ENOMEM;
	return 0;
}

/* Progress ----------------------------------------------------------------------------------------------------------- */

static bool progress_wanted(const struct compare_options *options)
{
	return !options->quiet && isatty(STDERR_FILENO);
}

static void progress_show(const struct compare_options *options, unsigned int done, const char *path, uint64_t began)
{
	unsigned int all = options->warmup + options->repeat * (unsigned int)options->paths;
	double spent = (double)(clock_now() - began) / (double)NS_PER_SEC;

	if (!progress_wanted(options))
		return;
	fprintf(stderr, "\r\033[K[%u/%u] %s%s", done + 1, all, path, done < options->warmup ? " (warm-up)" : "");
	if (done)
		fprintf(stderr, ", about %.0f s left", spent / done * (all - done));
	fflush(stderr);
}

static void progress_clear(const struct compare_options *options)
{
	if (progress_wanted(options))
		fputs("\r\033[K", stderr);
}

/* Rounds ------------------------------------------------------------------------------------------------------------- */

static bool is_given_up(const struct path_result *result)
{
	size_t failures = 0;

	for (size_t i = 0; i < result->runs; i++)
		failures += result->run[i].failed;
	return failures >= FAILURES_MAX;
}

static void warm_up(struct bench *bench, uint64_t began)
{
	for (unsigned int i = 0; i < bench->options->warmup && !bench->stopped; i++) {
		struct run run = { 0 };

		progress_show(bench->options, i, path_name(bench->options->path[0]), began);
		run_once(bench, bench->options->path[0], &run, NULL);
		run_free(&run);
	}
}

static int run_rounds(struct bench *bench, struct comparison *comparison)
{
	unsigned int done = bench->options->warmup;
	uint64_t began = clock_now();

	warm_up(bench, began);
	for (unsigned int round = 1; round <= comparison->repeat; round++) {
		for (unsigned int order = 1; order <= comparison->paths && !bench->stopped; order++) {
			struct path_result *result = &comparison->path[(round + order - 2) % comparison->paths];
			struct run *run;

			progress_show(bench->options, done++, path_name(result->path), began);
			if (is_given_up(result))
				continue;
			run = comparison_add(result);
			if (!run)
				return -ENOMEM;
			run->round = round;
			run->order = order;
			run_once(bench, result->path, run, &result->sum);
		}
	}
	progress_clear(bench->options);
	return 0;
}

/* What is needed before the first round ------------------------------------------------------------------------------- */

/* Checks by the shell's own rules that the command's first word is there, unless it is no plain word. */
static int check_program(const char *option, const char *command)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+";
	size_t length;
	char *word;
	int status;
	pid_t pid;

	command += strspn(command, " \t");
	length = strspn(command, plain);
	if (!length || !strchr(" \t", command[length]))
		return 0;
	word = strndup(command, length);
	if (!word)
		return command_failed("compare", "no memory");
	fflush(NULL);
	pid = fork();
	if (!pid) {
		execl("/bin/sh", "sh", "-c", "command -v -- \"$1\" >/dev/null", "sh", word, (char *)NULL);
		_exit(0);
	}
	status = 0;
	if (pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status))
		status = command_failed("compare", "%s: there is no program '%s'", option, word);
	else
		status = 0;
	free(word);
	return status;
}

/* Moves to a network namespace with nothing but a loopback interface. */
static int isolate(void)
{
	struct ifreq request = { .ifr_name = "lo" };
	int fd, rc = 0;

	if (unshare(CLONE_NEWNET))
		return -errno;
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	request.ifr_flags = IFF_UP | IFF_RUNNING;
	if (ioctl(fd, SIOCSIFFLAGS, &request))
		rc = -errno;
	close(fd);
	return rc;
}

/* Signals that ask zc to end are taken when it looks for them, so that everything is put away first. */
static int open_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGQUIT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_CLOEXEC);
}

static bool needs_library(const struct compare_options *options)
{
	for (size_t i = 0; i < options->paths; i++)
		if (options->path[i] != PATH_TCP)
			return true;
	return false;
}

static int make_directory(struct bench *bench)
{
	const char *base = getenv("TMPDIR");

	if ((size_t)snprintf(bench->directory, sizeof(bench->directory), "%s/zc-compare-XXXXXX",
			     base && *base ? base : "/tmp") >= sizeof(bench->directory) ||
	    !mkdtemp(bench->directory) || chmod(bench->directory, 0711)) {
		command_failed("compare", "%s: no directory can be made: %s", bench->directory, strerror(errno));
		*bench->directory = '\0';
		return EXIT_FAILURE;
	}
	return 0;
}

/* The settings are the same for all paths: a refused one would be told by every process, or by none. */
static int settings_refused;
static void refused(const char *message)
{
	settings_refused = command_usage("compare", "%s", message);
}

static int prepare(struct bench *bench)
{
	const struct compare_options *options = bench->options;
	int rc = check_program("--server", options->server);

	if (!rc)
		rc = check_program("--client", options->client);
	if (!rc && options->verify)
		rc = check_program("--verify", options->verify);
	if (rc)
		return rc;
	if (settings_load(refused))
		return settings_refused;
	/* They come before ZC_PATH: a row would not be its path's. */
	if (settings.rules)
		return command_usage(
			"compare", "ZC_RULES is set, and rules choose paths by themselves: unset it for a comparison");
	if (needs_library(options) && library_find(bench->library, sizeof(bench->library)) < 0)
		return command_failed("compare", "%s", bench->library);
	if (options->isolate && (rc = isolate()))
		return command_failed("compare",
				      "--isolate: no network namespace can be made: %s; it takes the right "
				      "CAP_SYS_ADMIN",
				      strerror(-rc));
	return make_directory(bench);
}

/* Outputs ------------------------------------------------------------------------------------------------------------ */

static int open_one(struct output *output, const char *option, const char *name)
{
	int rc;

	if (name && !*name)
		return command_usage("compare", "--%s: the name of a file is missing", option);
	rc = output_open(output, name);
	return rc ? command_failed("compare", "--%s: %s can't be written: %s", option, name, strerror(-rc)) : 0;
}

/* Before the first run: minutes later would be late to find a mistyped directory. */
static int open_outputs(struct outputs *out, const struct compare_options *options)
{
	int rc = open_one(&out->json, "json", options->json);

	if (!rc)
		rc = open_one(&out->csv, "csv", options->csv);
	return rc ? rc : open_one(&out->html, "html", options->html);
}

static int commit_one(struct output *output)
{
	const char *name = output->name;
	int rc = output_commit(output);

	return rc ? command_failed("compare", "%s can't be written: %s", name, strerror(-rc)) : 0;
}

static bool is_stdout(const struct output *output)
{
	return output->name && !strcmp(output->name, "-");
}

static int show(struct outputs *out, const struct comparison *list, size_t count, bool merged)
{
	int rc = 0, json = 0;

	if (!is_stdout(&out->json) && !is_stdout(&out->csv) && !is_stdout(&out->html)) {
		if (merged)
			table_summary(stdout, list, count);
		for (size_t i = 0; i < count && !merged; i++)
			table_print(stdout, &list[i]);
	}
	if (out->json.stream)
		json = json_print(out->json.stream, list, count);
	if (out->csv.stream)
		csv_print(out->csv.stream, list, count);
	if (out->html.stream)
		html_print(out->html.stream, list, count);
	if (json)
		return command_failed("compare", "--json: %s",
				      json == -EINVAL ? "a text is not UTF-8" : strerror(-json));
	rc |= commit_one(&out->json);
	rc |= commit_one(&out->csv);
	rc |= commit_one(&out->html);
	return rc | command_flush("compare");
}

static void abort_outputs(struct outputs *out)
{
	output_abort(&out->json);
	output_abort(&out->csv);
	output_abort(&out->html);
}

/* The command -------------------------------------------------------------------------------------------------------- */

static bool any_failed(const struct comparison *list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		for (size_t k = 0; k < list[i].paths; k++)
			if (list[i].path[k].failures || !list[i].path[k].runs)
				return true;
	return false;
}

static void list_free(struct comparison *list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		comparison_free(&list[i]);
	free(list);
}

static int measure(struct bench *bench, struct outputs *out)
{
	struct comparison comparison;
	int rc = comparison_fill(&comparison, bench->options);

	if (!rc)
		rc = run_rounds(bench, &comparison);
	if (!rc && !bench->stopped)
		rc = comparison_judge(&comparison);
	if (!rc && !bench->stopped)
		rc = comparison_explain(&comparison);
	if (rc)
		rc = command_failed("compare", "%s", strerror(-rc));
	else if (bench->stopped)
		rc = EXIT_FAILURE;
	else
		rc = show(out, &comparison, 1, false) || any_failed(&comparison, 1);
	comparison_free(&comparison);
	return rc;
}

/* The rounds are the guest's; what came of them is shown here. */
static int measure_in_lab(struct bench *bench, struct outputs *out, int argc, char **argv)
{
	struct comparison *list = NULL;
	size_t count = 0;
	int rc = make_directory(bench);

	if (!rc)
		rc = lab_measure(bench, argc, argv, &list, &count);
	if (!rc)
		rc = show(out, list, count, false) || any_failed(list, count);
	list_free(list, count);
	return rc;
}

static int merge(const struct compare_options *options, struct outputs *out)
{
	struct comparison *list = NULL;
	size_t count = 0;
	char why[PATH_MAX + 256];
	int rc = 0;

	for (char **file = options->file; *file && !rc; file++)
		if (json_read(*file, &list, &count, why, sizeof(why)))
			rc = command_failed("compare", "%s", why);
	if (!rc)
		rc = show(out, list, count, true) || any_failed(list, count);
	list_free(list, count);
	return rc;
}

/* Ends as the signal would have ended us, so that a shell's loop ends too. */
static void end_by(int number)
{
	sigset_t set;

	progress_clear(&(struct compare_options){ 0 });
	fprintf(stderr, "zc compare: ended by signal %d (%s); nothing was written\n", number, strsignal(number));
	signal(number, SIG_DFL);
	raise(number);
	sigemptyset(&set);
	sigaddset(&set, number);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
}

int zc_compare(int argc, char **argv)
{
	struct compare_options options;
	static struct bench bench;
	struct outputs out = { 0 };
	int rc;

	/* Else what is opened next would be taken for it. */
	if (fcntl(STDOUT_FILENO, F_GETFD) < 0)
		return command_failed("compare", "standard output is closed");
	rc = compare_parse(argc, argv, &options);
	bench = (struct bench){ .options = &options, .signals = -1 };
	if (rc)
		goto end;
	prctl(PR_SET_CHILD_SUBREAPER, 1); /* whatever a killed keeper leaves comes to us */
	bench.signals = open_signals();
	if (bench.signals < 0)
		rc = command_failed("compare", "%s", strerror(errno));
	if (!rc)
		rc = open_outputs(&out, &options);
	if (!rc && options.merge)
		rc = merge(&options, &out);
	else if (!rc && options.lab && !lab_is_here())
		rc = measure_in_lab(&bench, &out, argc, argv);
	else if (!rc && !(rc = prepare(&bench)))
		rc = measure(&bench, &out);
end:
	abort_outputs(&out);
	if (*bench.directory)
		remove_tree(bench.directory);
	json_decref(options.notes);
	if (options.metric.kind == EXTRACT_REGEX)
		regfree(&options.metric.regex);
	if (options.bytes.kind == EXTRACT_REGEX)
		regfree(&options.bytes.regex);
	if (bench.stopped)
		end_by(bench.stopped);
	return rc < 0 ? command_flush("compare") : rc;
}
