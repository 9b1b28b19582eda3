/* SPDX-License-Identifier: MIT */
/*
 * The table of descriptors: which of the process's descriptors are connections of ours. Reading it is one load, without a
 * lock; what it points to is never freed (conn.h), so that a reader who lost a race with close sees a connection that is
 * not his and finds out when he takes its lock.
 *
 * An entry is 0 (not looked at yet), TABLE_OTHER (looked at: not ours), TABLE_OWN (a descriptor of the library itself),
 * TABLE_EARLY (a socket that is not connected, of which before.h keeps something), a connection, or an epoll set (its
 * address with TABLE_SET).
 */
#ifndef ZC_PRELOAD_TABLE_H
#define ZC_PRELOAD_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct conn;
struct set;

#define TABLE_DESCRIPTORS (1u << 20) /* fs.nr_open's default; higher numbers stay with the kernel alone */

enum { TABLE_UNKNOWN = 0, TABLE_OTHER = 1, TABLE_OWN = 2, TABLE_EARLY = 3, TABLE_SET = 4 };
#define TABLE_TAGS 7ul

extern _Atomic uintptr_t *table;
extern uint32_t table_size; /* 0 before table_start() */

/* Whether the last socket() that is known to have made the number made a TCP socket. Another may have its number since. */
extern _Atomic bool *table_made;

static inline bool table_was_made(int fd)
{
	return (uint32_t)fd < table_size && atomic_load_explicit(&table_made[fd], memory_order_relaxed);
}

static inline void table_makes(int fd, bool tcp)
{
	if ((uint32_t)fd < table_size && atomic_load_explicit(&table_made[fd], memory_order_relaxed) != tcp)
		atomic_store_explicit(&table_made[fd], tcp, memory_order_relaxed);
}

/* Reserves the table's address space (9 MiB, nothing touched). Returns 0 or -ENOMEM. */
int table_start(void);

static inline uintptr_t table_entry(int fd)
{
	if ((uint32_t)fd >= table_size)
		return TABLE_OTHER;
	return atomic_load_explicit(&table[fd], memory_order_acquire);
}

/* Returns the connection behind a descriptor, NULL if it is none of ours as far as is known. */
static inline struct conn *table_conn(int fd)
{
	uintptr_t entry = table_entry(fd);

	return __builtin_expect(entry & TABLE_TAGS || !entry, 1) ? (struct conn *)0 : (struct conn *)entry;
}

static inline struct set *table_set(int fd)
{
	uintptr_t entry = table_entry(fd);

	return (entry & TABLE_SET) ? (struct set *)(entry & ~TABLE_TAGS) : (struct set *)0;
}

static inline void table_put(int fd, uintptr_t entry)
{
	if ((uint32_t)fd < table_size)
		atomic_store_explicit(&table[fd], entry, memory_order_release);
}

/* Marks the library's own descriptors, so that no call of the program closes or replaces them. */
void table_own_refresh(void);

static inline bool table_is_own(int fd)
{
	return table_entry(fd) == TABLE_OWN;
}

/* One of the library's own descriptors that come and go with connections. */
void table_own_keep(int fd);
void table_own_drop(int fd);

/* The same, and closes it. Nothing for -1. */
void table_own_close(int fd);

/* Returns the highest descriptor that is open and none of the library's, or -1. */
int table_highest_of_program(void);

/* Returns the lowest own descriptor at or above `from`, or -1. */
int table_own_next(int from);

/* The library's own event descriptors besides those of log, statistics and guard; -1 takes one away. */
void table_own_add(int fd);

#endif
