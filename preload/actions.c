/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "preload/actions.h"

#include <stdatomic.h>
#include <stddef.h>

#include "common/sys.h"

#define BLOCK 64
#define BLOCKS_MAX 256 /* a program that never destroys its actions ends there */

struct entry {
	const void *_Atomic actions; /* NULL: free */
	struct action action;
};

/* Never given back: what is free is taken by the next. */
static struct entry first[BLOCK];
static struct entry *_Atomic more[BLOCKS_MAX];

/* What is being written: nobody's address. */
static const char claimed;

static struct entry *block(uint32_t at, bool makes)
{
	struct entry *none = NULL, *made;
	struct entry *_Atomic *place;

	if (!at)
		return first;
	place = &more[at - 1];
	if (atomic_load(place) || !makes)
		return atomic_load(place);
	made = sys_map(BLOCK * sizeof(*made), MAP_PRIVATE);
	if (made && !atomic_compare_exchange_strong(place, &none, made))
		sys_call(SYS_munmap, (long)made, BLOCK * sizeof(*made), 0, 0, 0, 0);
	return atomic_load(place);
}

static struct entry *claim(void)
{
	for (uint32_t at = 0; at <= BLOCKS_MAX; at++) {
		struct entry *entries = block(at, true);

		for (int i = 0; entries && i < BLOCK; i++) {
			const void *none = NULL;

			if (!atomic_load_explicit(&entries[i].actions, memory_order_relaxed) &&
			    atomic_compare_exchange_strong(&entries[i].actions, &none, &claimed))
				return &entries[i];
		}
		if (!entries)
			break;
	}
	return NULL;
}

void actions_add(const void *actions, int fd, int to)
{
	struct entry *entry = claim();

	if (!entry)
		return;
	entry->action = (struct action){ fd, to };
	atomic_store(&entry->actions, actions);
}

static struct entry *next(const void *actions, uint32_t *at)
{
	struct entry *entries;

	while (*at / BLOCK <= BLOCKS_MAX && (entries = block(*at / BLOCK, false))) {
		struct entry *entry = &entries[(*at)++ % BLOCK];

		if (atomic_load(&entry->actions) == actions)
			return entry;
	}
	return NULL;
}

void actions_forget(const void *actions)
{
	struct entry *entry;

	for (uint32_t at = 0; (entry = next(actions, &at));)
		atomic_store(&entry->actions, NULL);
}

bool actions_next(const void *actions, uint32_t *at, struct action *out)
{
	struct entry *entry = next(actions, at);

	if (entry)
		*out = entry->action;
	return entry != NULL;
}
