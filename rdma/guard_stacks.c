/* SPDX-License-Identifier: MIT */
/*
 * The stacks of the program's threads. libc drops their pages when a thread ends, and the kernel puts signals' frames there:
 * neither is seen by anybody, so that a thread's stack is guarded for that thread alone, if at all.
 *
 * A thread tells of its stack before the program runs on it. Nobody tells of its end: whatever a thread still does on its way
 * out (destructors, for one) it does on its stack. Instead the kernel is asked whether the thread is there when somebody wants
 * its stack, and when there is no room for another one.
 */
#define _GNU_SOURCE
#include "rdma/guard_internal.h"

#include <stdint.h>
#include <string.h>

#define FIRST_STACKS 64

struct stack {
	uintptr_t low, high;
	uintptr_t reach; /* the lowest `low` of this one and those before it, or less */
	int thread;	 /* 0: it is known to have ended */
};

/* By falling `high`: libc maps downwards, so that a new one mostly is the last. They may overlap. */
static struct stack first_stacks[FIRST_STACKS];
static struct stack *stacks = first_stacks;
static size_t stack_count, stack_room = FIRST_STACKS;
static bool unknown; /* there is one that nobody knows of: any memory may be a stack */
static int process;  /* its number: in a child of vfork that is the parent's */

/* The thread's own: the child of a fork has no other, and finds the table as another thread may have left it. */
static __thread struct {
	uintptr_t low, high;
} own __attribute__((tls_model("initial-exec")));

static int self(void)
{
	return (int)sys_call(SYS_gettid, 0, 0, 0, 0, 0, 0);
}

/* Asks the kernel; whoever is gone is not asked for again. */
static bool is_there(struct stack *stack)
{
	if (stack->thread && sys_call(SYS_tgkill, process, stack->thread, 0, 0, 0, 0) < 0)
		stack->thread = 0;
	return stack->thread != 0;
}

/* How many end above `address`: the first ones. */
static size_t count_above(uintptr_t address)
{
	size_t low = 0, high = stack_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (stacks[middle].high > address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static uintptr_t reach_at(size_t at)
{
	uintptr_t before = at ? stacks[at - 1].reach : UINTPTR_MAX;

	return before < stacks[at].low ? before : stacks[at].low;
}

static void sweep(void)
{
	size_t kept = 0;

	for (size_t i = 0; i < stack_count; i++) {
		if (!is_there(&stacks[i]))
			continue;
		stacks[kept] = stacks[i];
		stacks[kept].reach = reach_at(kept);
		kept++;
	}
	stack_count = kept;
}

/* Makes room for one more; a quarter of all are free then, so that who comes next does not sweep again. */
static bool make_room(void)
{
	struct stack *larger;

	if (stack_count < stack_room)
		return true;
	sweep();
	if (stack_count <= stack_room / 4 * 3)
		return true;
	larger = sys_map(2 * stack_room * sizeof(*larger), MAP_PRIVATE);
	if (!larger)
		return stack_count < stack_room;
	memcpy(larger, stacks, stack_count * sizeof(*larger));
	if (stacks != first_stacks)
		sys_call(SYS_munmap, (long)stacks, (long)(stack_room * sizeof(*stacks)), 0, 0, 0, 0);
	stacks = larger;
	stack_room *= 2;
	return true;
}

static void insert(uintptr_t low, uintptr_t high, int thread)
{
	size_t at;

	if (!make_room()) {
		unknown = true;
		return;
	}
	at = count_above(high);
	memmove(&stacks[at + 1], &stacks[at], (stack_count - at) * sizeof(*stacks));
	stack_count++;
	stacks[at] = (struct stack){ .low = low, .high = high, .thread = thread };
	stacks[at].reach = reach_at(at);
	for (size_t i = at + 1; i < stack_count && stacks[i].reach > low; i++)
		stacks[i].reach = low;
}

static void add(uintptr_t low, uintptr_t high)
{
	int thread = self();

	if (!process)
		process = (int)sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0);
	/* The kernel gives numbers again: who had this one has ended. */
	for (size_t i = 0; i < stack_count; i++) {
		if (stacks[i].thread == thread)
			stacks[i].thread = 0;
	}
	/* And libc gives stacks again. */
	for (size_t at = count_above(high); at < stack_count && stacks[at].high == high; at++) {
		if (stacks[at].low == low) {
			stacks[at].thread = thread;
			return;
		}
	}
	insert(low, high, thread);
}

void guard_stack_begins(uintptr_t low, uintptr_t high)
{
	uint64_t mask = guard_lock();

	own.low = low;
	own.high = high;
	add(low, high);
	guard_unlock(mask);
}

void guard_stacks_unknown(void)
{
	uint64_t mask = guard_lock();

	unknown = true;
	guard_unlock(mask);
}

bool guard_stacks_touch(uintptr_t start, uintptr_t end, bool but_own)
{
	if (unknown)
		return true;
	for (size_t i = count_above(start); i-- > 0 && stacks[i].reach < end;) {
		if (stacks[i].low < end && is_there(&stacks[i]) && !(but_own && stacks[i].thread == self()))
			return true;
	}
	return false;
}

void guard_stacks_child(void)
{
	stacks = first_stacks;
	stack_room = FIRST_STACKS;
	stack_count = 0;
	unknown = false;
	process = 0;
	if (own.high)
		add(own.low, own.high);
}
