/* SPDX-License-Identifier: MIT */
/*
 * The guard by mprotect and SIGSEGV. To take pages away, fresh pages with the same bytes are moved over them by mremap, which
 * no other thread can see half-done; the kernel or device that holds the old pages keeps them.
 *
 * Only memory that is exactly PROT_READ|PROT_WRITE is guarded, so what has to be restored is known, and a mapping that is not
 * exactly PROT_READ any more is not ours any more. Stacks are refused: the kernel can't deliver a signal on a stack that it
 * may not write to. The threads of pthread_create() and thrd_create() have told of theirs (guard_stacks.c); the first thread's
 * and the one that this runs on are known by their mappings.
 *
 * Replaced pages are mappings of their own for as long as the program keeps the memory, so there is a budget for them.
 */
#define _GNU_SOURCE
#include "rdma/guard_internal.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/auxv.h>

#include "common/log.h"

#define BUDGET_FIRST 1024
#define BUDGET_MOST 4096
#define SIGNAL_SET_BYTES 8
#define TAKE_TRIES 1000

static bool handler_installed;
static unsigned long budget = BUDGET_FIRST; /* how many runs may still be replaced before mappings are counted */

/* SIGSEGV where nobody else installs it for us ---------------------------------------------------------------------------- */

struct kernel_sigaction {
	void *handler;
	unsigned long flags;
	void *restorer;
	uint64_t mask;
};
static struct kernel_sigaction before;

#if defined(__x86_64__)
#define SA_RESTORER_FLAG 0x04000000
extern char guard_restorer[] __attribute__((visibility("hidden")));
__asm__(".text\n.globl guard_restorer\n.hidden guard_restorer\n.type guard_restorer,@function\n"
	"guard_restorer:\n\tmov $15, %eax\n\tsyscall\n");
#endif

static void pass_on(int signal, siginfo_t *info, void *context)
{
	struct kernel_sigaction standard = { 0 };

	if (before.handler == (void *)SIG_DFL || before.handler == (void *)SIG_IGN) {
		/* Returning runs into the same fault again, and then as the program would have it. */
		sys_call(SYS_rt_sigaction, signal, (long)&standard, 0, SIGNAL_SET_BYTES, 0, 0);
		return;
	}
	sys_call(SYS_rt_sigprocmask, SIG_BLOCK, (long)&before.mask, 0, SIGNAL_SET_BYTES, 0, 0);
	if (before.flags & SA_SIGINFO)
		((void (*)(int, siginfo_t *, void *))before.handler)(signal, info, context);
	else
		((void (*)(int))before.handler)(signal);
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
	if (!guard_handle_signal(signal, info, context))
		pass_on(signal, info, context);
}

static int install_own(void)
{
	struct kernel_sigaction ours = { .handler = (void *)on_fault, .flags = SA_SIGINFO | SA_ONSTACK };

#if defined(__x86_64__)
	ours.flags |= SA_RESTORER_FLAG;
	ours.restorer = guard_restorer;
#endif
	return (int)sys_call(SYS_rt_sigaction, SIGSEGV, (long)&ours, (long)&before, SIGNAL_SET_BYTES, 0, 0);
}

static int mprotect_available(void)
{
	return 0;
}

static int mprotect_start(void)
{
	int rc = memory_open();

	if (rc)
		return rc == -EMFILE || rc == -ENFILE ? rc : -ENOTSUP;
	if (handler_installed)
		return 0;
	rc = guard_install_handler ? guard_install_handler() : install_own();
	if (!rc)
		handler_installed = true;
	return rc;
}

static bool mprotect_ready(void)
{
	return true;
}

/* Which memory --------------------------------------------------------------------------------------------------------- */

static bool is_ours(const struct guard_mapping *mapping)
{
	return mapping->plain && mapping->protection == PROT_READ;
}

static bool all_ours(uintptr_t start, uintptr_t end)
{
	struct guard_mapping mapping;

	for (; start < end; start = mapping.end)
		if (memory_mapping(start, &mapping) || mapping.start > start || !is_ours(&mapping))
			return false;
	return true;
}

static bool changed; /* a part was no longer as it was found: under the lock */

/*
 * Calls work() for each part of [start, end) that is still as mprotect_protect() left it. The program may change mappings
 * meanwhile; then what is left is looked for again.
 */
static void each_of_ours(uintptr_t start, uintptr_t end, void (*work)(uintptr_t start, uintptr_t end))
{
	for (int tries = 0; tries < TAKE_TRIES; tries++) {
		struct guard_mapping mapping;

		changed = false;
		for (uintptr_t at = start; at < end && !memory_mapping(at, &mapping) && mapping.start < end;
		     at = mapping.end)
			if (is_ours(&mapping))
				work(mapping.start > at ? mapping.start : at, mapping.end < end ? mapping.end : end);
		if (!changed)
			return;
	}
	log_error("guard: the mapping changes too often to free a page");
}

/* Returns whether records cover all of [start, end). */
static bool is_covered(uintptr_t start, uintptr_t end)
{
	while (start < end) {
		struct guard_cover *cover = cover_find(start, start + GUARD_PAGE);

		if (!cover)
			return false;
		start = cover->end;
	}
	return true;
}

static bool is_stack(const struct guard_mapping *mapping)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);
	uintptr_t top = getauxval(AT_RANDOM); /* lies on the first thread's stack */

	return (mapping->start <= here && here < mapping->end) || (mapping->start <= top && top < mapping->end);
}

/* Returns 0 when the whole range is memory that we can guard, -EINVAL otherwise. */
static int check_range(uintptr_t start, uintptr_t end)
{
	struct guard_mapping mapping;

	if (guard_stacks_touch(start, end, false))
		return -EINVAL;
	while (start < end) {
		uintptr_t until;

		if (memory_mapping(start, &mapping) || mapping.start > start || !mapping.plain || is_stack(&mapping))
			return -EINVAL;
		until = mapping.end < end ? mapping.end : end;
		if (mapping.protection != (PROT_READ | PROT_WRITE) &&
		    !(mapping.protection == PROT_READ && is_covered(start, until)))
			return -EINVAL;
		start = until;
	}
	return 0;
}

/* Returns whether there is room for more mappings; counts them when the budget is used up. */
static bool budget_left(void)
{
	unsigned long most, used;

	if (budget)
		return true;
	most = memory_mappings_max() / 2;
	used = memory_mappings();
	if (used >= most) {
		log_info("mprotect guard: %lu mappings already, no more of them", used);
		return false;
	}
	budget = (most - used) / 4 < BUDGET_MOST ? (most - used) / 4 : BUDGET_MOST;
	return budget > 0;
}

static int mprotect_protect(uintptr_t start, uintptr_t end)
{
	int rc = check_range(start, end);

	if (rc)
		return rc;
	if (!budget_left())
		return -ENOMEM;
	rc = (int)sys_call(SYS_mprotect, (long)start, (long)(end - start), PROT_READ, 0, 0, 0);
	if (rc)
		return rc;
	/* Now that nothing can slip in any more. */
	if (memory_pages_are(start, end, PAGEMAP_PRESENT | PAGEMAP_FILE, PAGEMAP_PRESENT))
		return 0;
	guard_free_uncovered(start, end);
	return -EINVAL;
}

static void take_part(uintptr_t start, uintptr_t end)
{
	int rc = 0;

	for (int tries = 0; tries < TAKE_TRIES; tries++) {
		rc = memory_replace(start, end, start, all_ours);
		if (rc != -ENOMEM)
			break;
		sys_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
	}
	if (!rc && budget)
		budget--;
	changed |= rc == -ECANCELED || rc == -EFAULT;
	if (rc == -ENOMEM)
		log_error("guard: no memory for pages that were taken");
}

static void free_part(uintptr_t start, uintptr_t end)
{
	if (sys_call(SYS_mprotect, (long)start, (long)(end - start), PROT_READ | PROT_WRITE, 0, 0, 0))
		take_part(start, end); /* too many mappings to split one more */
}

static void mprotect_unprotect(uintptr_t start, uintptr_t end)
{
	each_of_ours(start, end, free_part);
}

static void mprotect_take(uintptr_t start, uintptr_t end)
{
	each_of_ours(start, end, take_part);
}

/* What is protected for a moment and in no books, for the child of a fork in that moment. */
static _Atomic uintptr_t moment_start, moment_end;

/* Writers that meet the moment of protection wait for the lock and find the page writable again. */
static int mprotect_renew(uintptr_t start, uintptr_t end)
{
	struct guard_mapping mapping;
	uintptr_t at;
	int rc;

	if (guard_stacks_touch(start, end, false))
		return -EINVAL;
	for (at = start; at < end; at = mapping.end)
		if (memory_mapping(at, &mapping) || mapping.start > at || !mapping.plain || is_stack(&mapping) ||
		    mapping.protection != (PROT_READ | PROT_WRITE))
			return -EINVAL;
	atomic_store(&moment_start, start);
	atomic_store(&moment_end, end);
	rc = (int)sys_call(SYS_mprotect, (long)start, (long)(end - start), PROT_READ, 0, 0, 0);
	if (!rc)
		rc = memory_replace(start, end, start, all_ours);
	if (rc)
		mprotect_unprotect(start, end);
	atomic_store(&moment_end, 0);
	return rc;
}

static bool mprotect_stray(uintptr_t page)
{
	struct guard_mapping mapping;

	/* Another thread has freed the page between the fault and here: then it can be written to now. */
	return !memory_mapping(page, &mapping) && mapping.start <= page && (mapping.protection & PROT_WRITE);
}

static void mprotect_child(void)
{
	uintptr_t end = atomic_exchange(&moment_end, 0);

	if ((!end && atomic_load(&guard_forks)) || memory_open())
		return;
	if (end)
		mprotect_unprotect(atomic_load(&moment_start), end);
	if (atomic_load(&guard_forks))
		return;
	for (struct guard_record *record = guard_all; record; record = record->next)
		for (struct guard_cover *cover = record->covers; cover; cover = cover->record_next)
			mprotect_unprotect(cover->start, cover->end);
}

static int mprotect_descriptors(int *out, int count)
{
	return 0;
}

const struct guard_backend guard_backend_mprotect = {
	.name = "mprotect",
	.available = mprotect_available,
	.start = mprotect_start,
	.ready = mprotect_ready,
	.protect = mprotect_protect,
	.unprotect = mprotect_unprotect,
	.take = mprotect_take,
	.renew = mprotect_renew,
	.join = mprotect_renew,
	.stray = mprotect_stray,
	.child = mprotect_child,
	.descriptors = mprotect_descriptors,
};
