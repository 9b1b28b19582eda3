/* SPDX-License-Identifier: MIT */
/*
 * What the preload adds to the start of a process: starts LIBRARY COUNT PROGRAM runs PROGRAM COUNT times without and COUNT times with
 * LD_PRELOAD=LIBRARY, in turn, from start to end, and prints both medians in milliseconds as JSON.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "experiments/bench/bench.h"

static double start_ms(const char *program, char **environment)
{
	char *argv[] = { (char *)program, NULL };
	uint64_t begun = clock_now();
	pid_t child;
	int status;

	errno = posix_spawn(&child, program, NULL, NULL, argv, environment);
	if (errno || waitpid(child, &status, 0) < 0)
		bench_fail(program);
	if (status) {
		fprintf(stderr, "starts: %s ended with status %d\n", program, status);
		exit(1);
	}
	return (double)(clock_now() - begun) / NS_PER_MS;
}

static double quartile(const double *sorted, uint64_t count, unsigned int quarter)
{
	return sorted[(count - 1) * quarter / 4];
}

int main(int argc, char **argv)
{
	char preload[4096];
	char *with[] = { preload, NULL }, *without[] = { NULL };
	double *plain, *preloaded, plain_ms, preloaded_ms;
	uint64_t count;

	if (argc != 4) {
		fprintf(stderr, "usage: starts LIBRARY COUNT PROGRAM\n");
		return 2;
	}
	count = bench_number("COUNT", argv[2], 1, 1000000);
	if (access(argv[1], R_OK))
		bench_fail(argv[1]);
	snprintf(preload, sizeof(preload), "LD_PRELOAD=%s", argv[1]);
	plain = calloc(count, sizeof(*plain));
	preloaded = calloc(count, sizeof(*preloaded));
	if (!plain || !preloaded)
		bench_fail("memory");
	for (uint64_t i = 0; i < count; i++) {
		plain[i] = start_ms(argv[3], without);
		preloaded[i] = start_ms(argv[3], with);
	}
	plain_ms = bench_median(plain, count);
	preloaded_ms = bench_median(preloaded, count);
	printf("{\"count\": %llu, \"plain_ms\": %.4f, \"plain_quartiles_ms\": [%.4f, %.4f], \"preloaded_ms\": %.4f, "
	       "\"preloaded_quartiles_ms\": [%.4f, %.4f]}\n",
	       (unsigned long long)count, plain_ms, quartile(plain, count, 1), quartile(plain, count, 3), preloaded_ms,
	       quartile(preloaded, count, 1), quartile(preloaded, count, 3));
	return 0;
}
