/* SPDX-License-Identifier: MIT */
/*
 * Which pages are covered by which record. Covers hang in a hash of 2 MiB regions and never cross the border of one, so that
 * looking a page up is one short list. Records of one buffer that is sent many times lie over each other: nothing here
 * needs to look at all of them but a fault. Memory comes from mmap in slabs and is never given back.
 */
#include "rdma/guard_internal.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#define REGION_SHIFT 21
#define REGION_BYTES ((uintptr_t)1 << REGION_SHIFT)
#define REGION_HEADS 4096
#define SLAB_BYTES 65536
#define WIDE_REGIONS 1024 /* from here on, looking at all records is cheaper than at each region */

struct guard_record *guard_all;
_Atomic unsigned long guard_records, guard_lent;
unsigned int guard_process;

static struct guard_cover *regions[REGION_HEADS];

union slot {
	union slot *next;
	struct guard_record record;
	struct guard_cover cover;
};
static union slot *free_slots;
static bool used; /* since the books were begun */

static union slot *slot_get(void)
{
	union slot *slot;

	if (!free_slots) {
		long at = sys_call(SYS_mmap, 0, SLAB_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (at < 0 && at > -4096)
			return NULL;
		used = true;
		slot = (union slot *)at;
		for (size_t i = 0; i < SLAB_BYTES / sizeof(*slot); i++) {
			slot[i].next = free_slots;
			free_slots = &slot[i];
		}
	}
	slot = free_slots;
	free_slots = slot->next;
	return slot;
}

static void slot_put(void *object)
{
	union slot *slot = object;

	slot->next = free_slots;
	free_slots = slot;
}

struct guard_record *record_new(void)
{
	union slot *slot = slot_get();

	if (!slot)
		return NULL;
	memset(&slot->record, 0, sizeof(slot->record));
	slot->record.process = guard_process;
	slot->record.next = guard_all;
	slot->record.link = &guard_all;
	if (guard_all)
		guard_all->link = &slot->record.next;
	guard_all = &slot->record;
	return &slot->record;
}

void record_free(struct guard_record *record)
{
	*record->link = record->next;
	if (record->next)
		record->next->link = record->link;
	slot_put(record);
}

void books_forget(void)
{
	if (!used)
		return;
	guard_all = NULL;
	free_slots = NULL;
	memset(regions, 0, sizeof(regions));
	atomic_store(&guard_records, 0);
	atomic_store(&guard_lent, 0);
	guard_process++;
	used = false;
}

static struct guard_cover **region_head(uintptr_t address)
{
	uint64_t hash = (uint64_t)(address >> REGION_SHIFT) * 0x9e3779b97f4a7c15ull;

	return &regions[hash >> 52];
}

static struct guard_cover *cover_new(struct guard_record *record, uintptr_t start, uintptr_t end)
{
	union slot *slot = slot_get();
	struct guard_cover **head = region_head(start);
	struct guard_cover *cover;

	if (!slot)
		return NULL;
	cover = &slot->cover;
	*cover = (struct guard_cover){ .start = start,
				       .end = end,
				       .record = record,
				       .next = *head,
				       .link = head,
				       .record_next = record->covers,
				       .record_link = &record->covers };
	if (*head)
		(*head)->link = &cover->next;
	*head = cover;
	if (record->covers) {
		record->covers->record_link = &cover->record_next;
	} else {
		atomic_fetch_add(&guard_records, 1);
		if (record_is_lent(record))
			atomic_fetch_add(&guard_lent, 1);
	}
	record->covers = cover;
	return cover;
}

void cover_remove(struct guard_cover *cover)
{
	*cover->link = cover->next;
	if (cover->next)
		cover->next->link = cover->link;
	*cover->record_link = cover->record_next;
	if (cover->record_next)
		cover->record_next->record_link = cover->record_link;
	if (!cover->record->covers) {
		atomic_fetch_sub(&guard_records, 1);
		if (record_is_lent(cover->record))
			atomic_fetch_sub(&guard_lent, 1);
	}
	slot_put(cover);
}

int cover_add(struct guard_record *record, uintptr_t start, uintptr_t end)
{
	uintptr_t first = start;

	while (start < end) {
		uintptr_t border = (start + REGION_BYTES) & ~(REGION_BYTES - 1);
		uintptr_t until = border < end ? border : end;

		if (!cover_new(record, start, until))
			goto undo;
		start = until;
	}
	return 0;

undo:
	/* The newest covers come first in the record's list. */
	while (record->covers && start > first) {
		start = record->covers->start;
		cover_remove(record->covers);
	}
	return -ENOMEM;
}

static bool touches(const struct guard_cover *cover, uintptr_t start, uintptr_t end)
{
	return cover->start < end && start < cover->end;
}

/* The first cover for which visit() returns true, or that touches if there is no visit(). */
static struct guard_cover *scan_all(uintptr_t start, uintptr_t end, void (*visit)(struct guard_cover *, void *),
				    void *arg)
{
	for (struct guard_record *record = guard_all; record; record = record->next)
		for (struct guard_cover *cover = record->covers; cover; cover = cover->record_next) {
			if (!touches(cover, start, end))
				continue;
			if (!visit)
				return cover;
			visit(cover, arg);
		}
	return NULL;
}

static struct guard_cover *scan(uintptr_t start, uintptr_t end, void (*visit)(struct guard_cover *, void *), void *arg)
{
	uintptr_t last = (end - 1) >> REGION_SHIFT;

	if (start >= end)
		return NULL;
	if (last - (start >> REGION_SHIFT) >= WIDE_REGIONS)
		return scan_all(start, end, visit, arg);
	for (uintptr_t region = start >> REGION_SHIFT; region <= last; region++)
		for (struct guard_cover *cover = *region_head(region << REGION_SHIFT); cover; cover = cover->next) {
			/* Another region may share the list; its covers have their turn there. */
			if (cover->start >> REGION_SHIFT != region || !touches(cover, start, end))
				continue;
			if (!visit)
				return cover;
			visit(cover, arg);
		}
	return NULL;
}

struct guard_cover *cover_find(uintptr_t start, uintptr_t end)
{
	return scan(start, end, NULL, NULL);
}

static void keep_lowest(struct guard_cover *cover, void *arg)
{
	struct guard_cover **lowest = arg;

	if (!*lowest || cover->start < (*lowest)->start)
		*lowest = cover;
}

struct guard_cover *cover_first(uintptr_t start, uintptr_t end)
{
	struct guard_cover *lowest = cover_find(start, end);

	/* Any cover that begins at or before `start` will do: most often the one found first. */
	if (lowest && lowest->start > start)
		scan(start, lowest->start, keep_lowest, &lowest);
	return lowest;
}

void cover_each(uintptr_t start, uintptr_t end, void (*visit)(struct guard_cover *cover, void *arg), void *arg)
{
	scan(start, end, visit, arg);
}

int cover_cut(struct guard_cover *cover, uintptr_t start, uintptr_t end, uintptr_t *lost_end)
{
	uintptr_t behind = cover->end;
	int rc = 0;

	if (start <= cover->start && end >= cover->end) {
		cover_remove(cover);
		return 0;
	}
	if (start <= cover->start) {
		cover->start = end;
		return 0;
	}
	if (end < behind && !cover_new(cover->record, end, behind)) {
		*lost_end = behind;
		rc = -ENOMEM;
	}
	cover->end = start;
	return rc;
}

void cover_move(uintptr_t from, uintptr_t to, size_t bytes)
{
	struct guard_cover *cover;

	while ((cover = cover_find(from, from + bytes))) {
		struct guard_record *record = cover->record;
		uintptr_t start = cover->start > from ? cover->start : from;
		uintptr_t end = cover->end < from + bytes ? cover->end : from + bytes;
		uintptr_t lost_end;

		/* Without memory the pages stay protected and uncovered; a write to them is a stray, which copies. */
		if (cover_add(record, start - from + to, end - from + to))
			record->run_next = 0;
		cover_cut(cover, start, end, &lost_end);
	}
}
