/* SPDX-License-Identifier: MIT */
/*
 * Atomic operations that are taken apart: included before a source file of the project, it makes each of them a step at which
 * a test's scheduler may let the other end run. Stores that are not sequentially consistent reach the other end later, in
 * order, as on a machine with a store buffer (total store order: x86; what a weaker machine may do besides is not shown).
 */
#ifndef ZC_TESTS_STEPPED_H
#define ZC_TESTS_STEPPED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The test has these. `at` is one of 1, 4 or 8 bytes. */
uint64_t stepped_load(const volatile void *at, size_t bytes);
void stepped_store(volatile void *at, size_t bytes, uint64_t value, memory_order order);
uint64_t stepped_exchange(volatile void *at, size_t bytes, uint64_t value);
uint64_t stepped_add(volatile void *at, size_t bytes, uint64_t value);
bool stepped_compare_exchange(volatile void *at, size_t bytes, void *expected, uint64_t value);

/* The plain accesses that these come down to. */
static inline uint64_t stepped_read(const volatile void *at, size_t bytes)
{
	return bytes == 8 ? *(const volatile uint64_t *)at :
	       bytes == 4 ? *(const volatile uint32_t *)at :
			    *(const volatile uint8_t *)at;
}

static inline void stepped_write(volatile void *at, size_t bytes, uint64_t value)
{
	if (bytes == 8)
		*(volatile uint64_t *)at = value;
	else if (bytes == 4)
		*(volatile uint32_t *)at = (uint32_t)value;
	else
		*(volatile uint8_t *)at = (uint8_t)value;
}

static inline bool stepped_swap(volatile void *at, size_t bytes, void *expected, uint64_t value)
{
	uint64_t now = stepped_read(at, bytes);

	if (now != stepped_read(expected, bytes)) {
		stepped_write(expected, bytes, now);
		return false;
	}
	stepped_write(at, bytes, value);
	return true;
}

#undef atomic_load
#undef atomic_load_explicit
#undef atomic_store
#undef atomic_store_explicit
#undef atomic_exchange
#undef atomic_fetch_add
#undef atomic_fetch_sub
#undef atomic_compare_exchange_strong
#define atomic_load(at) stepped_load((at), sizeof(*(at)))
#define atomic_load_explicit(at, order) stepped_load((at), sizeof(*(at)))
#define atomic_store(at, value) stepped_store((at), sizeof(*(at)), (uint64_t)(value), memory_order_seq_cst)
#define atomic_store_explicit(at, value, order) stepped_store((at), sizeof(*(at)), (uint64_t)(value), (order))
#define atomic_exchange(at, value) stepped_exchange((at), sizeof(*(at)), (uint64_t)(value))
#define atomic_fetch_add(at, value) stepped_add((at), sizeof(*(at)), (uint64_t)(value))
#define atomic_fetch_sub(at, value) stepped_add((at), sizeof(*(at)), -(uint64_t)(value))
#define atomic_compare_exchange_strong(at, expected, value)                                                            \
	stepped_compare_exchange((at), sizeof(*(at)), (expected), (uint64_t)(value))

#endif
