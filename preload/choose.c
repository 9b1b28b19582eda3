/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/choose.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <string.h>

#include "common/clock.h"
#include "common/rules.h"

bool choose_moves;
static struct rules rules;

void choose_start(void (*refused)(const char *message))
{
	char message[512];

	if (settings.rules && rules_read(settings.rules, &rules, message, sizeof(message)) < 0) {
		rules.count = 0;
		refused(message);
	}
	choose_moves =
		rules.count || (settings.path != PATH_TCP && settings.path != PATH_COPY && settings.path != PATH_SG);
}

enum zc_path choose_policy(enum stats_role role, const struct sockaddr *address)
{
	int path = rules.count ? rules_match(&rules, role, program_invocation_short_name, address) : -ENOENT;

	return path < 0 ? (enum zc_path)settings.path : (enum zc_path)path;
}

uint64_t choose_peer_key(const struct sockaddr *peer)
{
	const uint8_t *from = NULL;
	uint64_t hash = 0xcbf29ce484222325ull;
	size_t bytes = 0;

	if (peer->sa_family == AF_INET) {
		from = (const uint8_t *)&((const struct sockaddr_in *)peer)->sin_addr;
		bytes = sizeof(struct in_addr);
	} else if (peer->sa_family == AF_INET6) {
		from = (const uint8_t *)&((const struct sockaddr_in6 *)peer)->sin6_addr;
		bytes = sizeof(struct in6_addr);
	}
	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ from[i]) * 0x100000001b3ull; /* FNV-1a */
	return hash ? hash : 1;
}

/* A small cache without locks: a lost race costs a probe. */
#define MEMORY_ROWS 256
static struct {
	_Atomic uint64_t key;
	_Atomic uint64_t until_ns;
} memory[MEMORY_ROWS];

static size_t row_of(uint64_t key)
{
	return (key ^ key >> 32) % MEMORY_ROWS;
}

void choose_remember_copied(uint64_t key)
{
	atomic_store_explicit(&memory[row_of(key)].until_ns, clock_now() + CHOOSE_MEMORY_NS, memory_order_relaxed);
	atomic_store_explicit(&memory[row_of(key)].key, key, memory_order_release);
}

bool choose_is_copied(uint64_t key)
{
	size_t row = row_of(key);

	return atomic_load_explicit(&memory[row].key, memory_order_acquire) == key &&
	       clock_now() < atomic_load_explicit(&memory[row].until_ns, memory_order_relaxed);
}
