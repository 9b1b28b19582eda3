/* SPDX-License-Identifier: MIT */
/*
 * The conformance corpus: small programs that must behave the same with and without libzc.so. Each case of cases.def runs
 * natively, then preloaded in both ends, in the server end and in the client end alone; see end.h for how a case is written
 * and runner.c for how runs are compared. Exit status: 0 all agree, 1 something differs, 2 usage.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"
#include "runner.h"
#include "transcript.h"

const struct corpus_case corpus_cases[] = {
#define CASE(name, function, argument) { name, function, argument },
#include "cases.def"
};
const size_t corpus_case_count = sizeof(corpus_cases) / sizeof(corpus_cases[0]);

static const char usage[] =
	"usage: corpus [--library FILE] [--mode native|both|server|client|all] [--only CASE|FAMILY/] [--skip PREFIX]...\n"
	"              [--shard I/N] [--repeat N] [--patience S] [--uses PATH [--rdma]] [--must-differ]\n"
	"              [--verbose]\n"
	"       corpus --list\n"
	"Runs each case natively and compares the preloaded modes with that. Without --library: native runs only.\n"
	"--uses PATH fails unless that path of the library has carried bytes; with --rdma, also unless ends have met by RDMA and\n"
	"soft-RoCE devices of this machine have sent what would hold these bytes. If one end alone is preloaded, none may meet.\n"
	"--patience S: seconds after which a run is taken for stuck.\n"
	"CORPUS_ADDRESSES=IPV4,IPV6: where servers listen, and clients connect to, in place of loopback.\n"
	"--must-differ turns the result round, for libraries that are wrong on purpose.\n";

static int loaded(struct dl_phdr_info *info, size_t bytes, void *wanted)
{
	const char *name = strrchr(info->dlpi_name, '/');
	const char *base = strrchr(wanted, '/');

	return name && base && !strcmp(name, base);
}

int end_main(const char *role, const char *name)
{
	const char *library = getenv("CORPUS_LIBRARY"), *fd = getenv("CORPUS_FD");
	struct end end = { .server = !strcmp(role, "server"), .control = CONTROL_FD, .fd = fd ? atoi(fd) : -1 };

	transcript_open(TRANSCRIPT_FD);
	if (library && !dl_iterate_phdr(loaded, (void *)library))
		die("%s is not preloaded", library);
	for (size_t i = 0; i < corpus_case_count; i++) {
		if (strcmp(corpus_cases[i].name, name) != 0)
			continue;
		end.name = corpus_cases[i].name;
		corpus_cases[i].run(&end, corpus_cases[i].argument);
		return 0;
	}
	die("no case %s", name);
}

#define SKIPS 16

struct options {
	struct runner runner;
	const char *only;
	const char *skips[SKIPS + 1]; /* NULL-terminated */
	unsigned int skip_count;
	bool must_differ, rdma;
	unsigned int shard, shards, repeat;
};

static int usage_error(const char *format, const char *what)
{
	fprintf(stderr, format, what);
	fputs(usage, stderr);
	exit(2);
}

static void choose_modes(struct runner *runner, const char *name)
{
	bool known = !strcmp(name, "all");

	for (int i = 0; i < MODE_COUNT; i++) {
		runner->modes[i] = i != MODE_NATIVE && (!strcmp(name, "all") || !strcmp(name, mode_names[i]));
		known |= !strcmp(name, mode_names[i]);
	}
	if (!known)
		usage_error("corpus: --mode %s: native, both, server, client or all\n", name);
}

static void list(void)
{
	for (size_t i = 0; i < corpus_case_count; i++)
		puts(corpus_cases[i].name);
	exit(0);
}

static void parse(struct options *options, int argc, char **argv)
{
	static const struct option known[] = {
		{ "library", required_argument, NULL, 'l' },  { "mode", required_argument, NULL, 'm' },
		{ "only", required_argument, NULL, 'o' },     { "skip", required_argument, NULL, 'k' },
		{ "shard", required_argument, NULL, 's' },    { "repeat", required_argument, NULL, 'r' },
		{ "uses", required_argument, NULL, 'u' },     { "must-differ", no_argument, NULL, 'd' },
		{ "verbose", no_argument, NULL, 'v' },	      { "list", no_argument, NULL, 'L' },
		{ "patience", required_argument, NULL, 'p' }, { "rdma", no_argument, NULL, 'R' },
		{ "help", no_argument, NULL, 'h' },	      { NULL, 0, NULL, 0 },
	};
	const char *mode = "all";
	int which;

	while ((which = getopt_long(argc, argv, "", known, NULL)) >= 0) {
		if (which == 'l')
			options->runner.library = realpath(optarg, NULL) ?: (perror(optarg), exit(1), NULL);
		else if (which == 'm')
			mode = optarg;
		else if (which == 'o')
			options->only = optarg;
		else if (which == 'k' && options->skip_count == SKIPS)
			usage_error("corpus: --skip %s: one too many\n", optarg);
		else if (which == 'k')
			options->skips[options->skip_count++] = optarg;
		else if (which == 's' && (sscanf(optarg, "%u/%u", &options->shard, &options->shards) != 2 ||
					  options->shard < 1 || options->shard > options->shards))
			usage_error("corpus: --shard %s: I/N with I from 1 to N\n", optarg);
		else if (which == 'r' && (sscanf(optarg, "%u", &options->repeat) != 1 || !options->repeat))
			usage_error("corpus: --repeat %s: a number from 1\n", optarg);
		else if (which == 'u')
			options->runner.uses = optarg;
		else if (which == 'p' && (sscanf(optarg, "%u", &options->runner.patience) != 1 ||
					  options->runner.patience < 1 || options->runner.patience > 86400))
			usage_error("corpus: --patience %s: seconds from 1 to 86400\n", optarg);
		else if (which == 'R')
			options->rdma = true;
		else if (which == 'v')
			options->runner.verbose = true;
		else if (which == 'd')
			options->must_differ = true;
		else if (which == 'L')
			list();
		else if (which == 'h')
			exit(fputs(usage, stdout) < 0);
		else if (which == '?')
			usage_error("%s", "");
	}
	if (optind < argc)
		usage_error("corpus: %s: no arguments are taken\n", argv[optind]);
	if (options->rdma && !options->runner.uses)
		usage_error("corpus: --rdma%s needs --uses\n", "");
	choose_modes(&options->runner, options->runner.library ? mode : "native");
}

static bool asked_for(const struct options *options, size_t number)
{
	const char *name = corpus_cases[number].name, *only = options->only;

	if (number % options->shards != options->shard - 1)
		return false;
	for (const char *const *skip = options->skips; *skip; skip++)
		if (!strncmp(name, *skip, strlen(*skip)))
			return false;
	return !only || !strcmp(name, only) ||
	       (*only && only[strlen(only) - 1] == '/' && !strncmp(name, only, strlen(only)));
}

#define PACKET_BYTES_MAX 4096 /* of soft-RoCE */

/* Whether the bytes went where they were to go; where that is RDMA, also by what the devices say. */
static bool used_as_told(const struct options *options, unsigned long long packets)
{
	const struct used *used = &options->runner.used;
	bool both = options->runner.modes[MODE_BOTH];

	if (!used->bytes && (both || !options->rdma)) {
		printf("not one byte took path %s\n", options->runner.uses);
		return false;
	}
	if (!options->rdma)
		return true;
	printf("%llu bytes took path %s; %llu ends met by RDMA; the devices have sent %llu packets\n", used->bytes,
	       options->runner.uses, used->rdma_meetings, packets);
	if (!both)
		return !used->rdma_meetings;
	/* What was in a ring when it broke, in a fork or at an end, has been counted and may go by TCP. */
	return used->rdma_meetings && packets * PACKET_BYTES_MAX > used->bytes / 2;
}

int main(int argc, char **argv)
{
	struct options options = { .runner.patience = runner_patience, .shard = 1, .shards = 1, .repeat = 1 };
	unsigned long long packets;
	unsigned long cases = 0;

	addresses_choose();
	if (argc == 4 && !strcmp(argv[1], "--end"))
		return end_main(argv[2], argv[3]);
	parse(&options, argc, argv);
	signal(SIGPIPE, SIG_DFL);
	if (options.runner.uses)
		uses_begin();
	packets = uses_rdma_packets();
	for (unsigned int round = 0; round < options.repeat; round++) {
		for (size_t i = 0; i < corpus_case_count; i++) {
			if (!asked_for(&options, i))
				continue;
			runner_case(&options.runner, &corpus_cases[i]);
			cases++;
		}
	}
	printf("%lu cases, %lu runs, %lu differ\n", cases, options.runner.runs, options.runner.failures);
	if (!cases)
		usage_error("corpus: --only %s: no such case; see --list\n", options.only ? options.only : "");
	if (options.runner.uses && !used_as_told(&options, uses_rdma_packets() - packets))
		return 1;
	/* A native run that fails is no proof of anything. */
	if (options.must_differ)
		return options.runner.failures && !options.runner.native_failures ? 0 : 1;
	return options.runner.failures ? 1 : 0;
}
