/* SPDX-License-Identifier: MIT */
/* Memory that was sent from goes away, or loses what is in it, before the peer receives: that gets what was sent. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cases.h"
#include "end.h"
#include "plug_in.h"

#define BYTES 65536
#define ROUNDS 4

/* Whatever path the connection will take. Then the server end waits with its receives for the word of each round. */
static bool begin(struct end *end)
{
	meet_and_go(end);
	if (!end->server)
		return true;
	for (int i = 0; i < ROUNDS; i++) {
		await(end, "changed");
		take_quietly(end->fd, BYTES, 5, (uint64_t)i * BYTES);
		tell(end, "taken");
	}
	return false;
}

static void send_round(struct end *end, char *data, int round)
{
	pattern_fill(data, BYTES, 5, (uint64_t)round * BYTES);
	EXPECT(send(end->fd, data, BYTES, 0) == BYTES);
}

static void round_ends(struct end *end)
{
	tell(end, "changed");
	await(end, "taken");
}

/* By a descriptor of the process itself, which kernels before 6.13 refuse. */
void memory_advice(struct end *end, long raw)
{
	struct iovec iov = { .iov_len = BYTES };
	int self;

	if (!begin(end))
		return;
	self = (int)MUST(syscall(SYS_pidfd_open, getpid(), 0));
	iov.iov_base = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < ROUNDS; i++) {
		send_round(end, iov.iov_base, i);
		if (raw)
			CALL(syscall(SYS_process_madvise, self, &iov, 1, MADV_DONTNEED, 0));
		else
			CALL(process_madvise(self, &iov, 1, MADV_DONTNEED, 0));
		note("%d", *(char *)iov.iov_base);
		round_ends(end);
	}
}

/* By its name: where it was, a library's thread may have its stack by now. */
static int mappings_of(const char *file)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[PATH_MAX + 128];
	int count = 0;

	if (!maps)
		die("/proc/self/maps");
	while (fgets(line, sizeof(line), maps))
		count += strstr(line, file) != NULL;
	fclose(maps);
	return count;
}

/* A shared object's variables go with it. */
void memory_unloaded(struct end *end, long unused)
{
	if (!begin(end))
		return;
	for (int i = 0; i < ROUNDS; i++) {
		void *object = dlopen(CORPUS_PLUG_IN, RTLD_NOW | RTLD_LOCAL);
		char *data = object ? dlsym(object, PLUG_IN_DATA) : NULL;

		if (!data)
			die("%s", dlerror());
		send_round(end, data, i);
		EXPECT(mappings_of(CORPUS_PLUG_IN) > 0);
		CALL(dlclose(object));
		note("%d mapped", mappings_of(CORPUS_PLUG_IN)); /* none any more */
		round_ends(end);
	}
}
