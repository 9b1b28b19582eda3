/* SPDX-License-Identifier: MIT */
#include "preload/history.h"

#include <string.h>

#define STEP_MAX 7 /* HISTORY_PAUSE_FIRST << (STEP_MAX - 1) is HISTORY_PAUSE_MAX */
#define FAULTS_MAX 127

/* A row's word. */
struct state {
	uint32_t tag;		       /* 0: a free row */
	uint32_t pause : 13, step : 5; /* sends that are left of it, and how many pauses there were in a row */
	uint32_t guarded : 7, faults : 7;
};

_Static_assert(sizeof(struct state) == sizeof(uint64_t), "a row changes as a whole");
_Static_assert(HISTORY_PAUSE_FIRST << (STEP_MAX - 1) == HISTORY_PAUSE_MAX, "steps");

static struct state state_of(uint64_t word)
{
	struct state state;

	memcpy(&state, &word, sizeof(state));
	return state;
}

static uint64_t word_of(struct state state)
{
	uint64_t word;

	memcpy(&word, &state, sizeof(word));
	return word;
}

/* Keys --------------------------------------------------------------------------------------------------------------- */

/* The finalizer of SplitMix64: addresses differ in few bits. */
static uint64_t mix(uint64_t value)
{
	value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
	value = (value ^ value >> 27) * 0x94d049bb133111ebull;
	return value ^ value >> 31;
}

struct history_keys history_keys(uintptr_t site, const void *start, size_t bytes)
{
	uint64_t class = bytes ? 64 - (uint64_t)__builtin_clzll(bytes) : 0;

	return (struct history_keys){
		.site = site ? mix(site) : 0,
		.buffer = mix(((uintptr_t)start >> 12) ^ (class + 1) << 56),
	};
}

static uint32_t tag_of(uint64_t key)
{
	return (uint32_t)(key >> 32) | 1;
}

static struct history_row *set_of(struct history *history, uint64_t key)
{
	return history->rows[key % HISTORY_SETS];
}

/* Returns NULL for who has not faulted lately. */
static struct history_row *find(struct history *history, uint64_t key, uint64_t now)
{
	struct history_row *set = set_of(history, key);

	for (int way = 0; key && way < HISTORY_WAYS; way++) {
		uint64_t word = atomic_load_explicit(&set[way].word, memory_order_relaxed);
		uint64_t used = atomic_load_explicit(&set[way].used_ns, memory_order_relaxed);

		if (!word || state_of(word).tag != tag_of(key))
			continue;
		if (now > used && now - used > HISTORY_FORGET_NS) {
			atomic_compare_exchange_strong(&set[way].word, &word, 0);
			return NULL;
		}
		atomic_store_explicit(&set[way].used_ns, now, memory_order_relaxed);
		return &set[way];
	}
	return NULL;
}

/* The place of a key that has none: a free one, or the one that was not used for the longest time. */
static void enter(struct history *history, uint64_t key, uint64_t now)
{
	struct history_row *set = set_of(history, key), *oldest = set;
	struct state state = { .tag = tag_of(key), .guarded = 1, .faults = 1 };

	for (int way = 0; way < HISTORY_WAYS; way++) {
		if (!atomic_load_explicit(&set[way].word, memory_order_relaxed)) {
			oldest = &set[way];
			break;
		}
		if (atomic_load_explicit(&set[way].used_ns, memory_order_relaxed) <
		    atomic_load_explicit(&oldest->used_ns, memory_order_relaxed))
			oldest = &set[way];
	}
	atomic_store_explicit(&oldest->used_ns, now, memory_order_relaxed);
	atomic_store_explicit(&oldest->word, word_of(state), memory_order_relaxed);
}

/* Changes ------------------------------------------------------------------------------------------------------------ */

/* Changes a row that is still this key's; change() returns false to leave it as it is. */
static void change_row(struct history_row *row, uint64_t key, bool (*change)(struct state *state, void *arg), void *arg)
{
	uint64_t word = atomic_load_explicit(&row->word, memory_order_relaxed);
	struct state state;

	do {
		state = state_of(word);
		if (state.tag != tag_of(key) || !change(&state, arg))
			return;
	} while (!atomic_compare_exchange_weak(&row->word, &word, state.tag ? word_of(state) : 0));
}

struct answer {
	unsigned int faults_min;
	bool blamed, begins;
	unsigned int guarded, faults; /* for which */
};

static bool judge(struct state *state, void *arg)
{
	struct answer *answer = arg;

	answer->blamed = answer->begins = false;
	if (state->pause) {
		answer->blamed = true;
		if (!--state->pause) /* faults of sends before it may have come since: they are known */
			state->guarded = state->faults = 0;
		return true;
	}
	if (state->faults < answer->faults_min || 4 * state->faults < state->guarded)
		return false;
	answer->blamed = answer->begins = true;
	answer->guarded = state->guarded;
	answer->faults = state->faults;
	state->step += state->step < STEP_MAX;
	state->pause = (HISTORY_PAUSE_FIRST << (state->step - 1)) - 1; /* this send is the first of them */
	return true;
}

static bool excuse(struct state *state, void *arg)
{
	const struct answer *answer = arg;

	state->guarded -= answer->guarded < state->guarded ? answer->guarded : state->guarded;
	state->faults -= answer->faults < state->faults ? answer->faults : state->faults;
	return true;
}

static bool count_guarded(struct state *state, void *unused)
{
	if (++state->guarded < HISTORY_WINDOW)
		return true;
	if (4 * state->faults < state->guarded)
		state->step = 0;
	state->guarded /= 2;
	state->faults /= 2;
	if (!state->faults && !state->step && !state->pause)
		state->tag = 0; /* like everybody else */
	return true;
}

static bool count_fault(struct state *state, void *unused)
{
	if (state->faults == FAULTS_MAX)
		return false;
	state->faults++;
	return true;
}

static struct answer ask(struct history *history, uint64_t key, unsigned int faults_min, uint64_t now)
{
	struct answer answer = { .faults_min = faults_min };
	struct history_row *row = find(history, key, now);

	if (row)
		change_row(row, key, judge, &answer);
	return answer;
}

enum history_blame history_ask(struct history *history, struct history_keys keys, uint64_t now, bool *begins)
{
	struct answer answer = ask(history, keys.buffer, HISTORY_BUFFER_FAULTS, now);
	struct history_row *site = answer.begins ? find(history, keys.site, now) : NULL;
	enum history_blame blame = HISTORY_BUFFER;

	if (site)
		change_row(site, keys.site, excuse, &answer);
	if (!answer.blamed) {
		answer = ask(history, keys.site, HISTORY_SITE_FAULTS, now);
		blame = HISTORY_SITE;
	}
	*begins = answer.begins;
	return answer.blamed ? blame : HISTORY_NOBODY;
}

void history_guarded(struct history *history, struct history_keys keys, uint64_t now)
{
	const uint64_t both[] = { keys.site, keys.buffer };

	for (int i = 0; i < 2; i++) {
		struct history_row *row = find(history, both[i], now);

		if (row)
			change_row(row, both[i], count_guarded, NULL);
	}
}

void history_faulted(struct history *history, struct history_keys keys, uint64_t now)
{
	const uint64_t both[] = { keys.site, keys.buffer };

	for (int i = 0; i < 2; i++) {
		struct history_row *row = both[i] ? find(history, both[i], now) : NULL;

		if (row)
			change_row(row, both[i], count_fault, NULL);
		else if (both[i])
			enter(history, both[i], now);
	}
}
