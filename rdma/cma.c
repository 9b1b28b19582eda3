/* SPDX-License-Identifier: MIT */
/*
 * The transport within one host: GET by process_vm_readv (cross memory attach).
 *
 * Tokens live in memory that the kernel wipes in the child of a fork, and an exec takes away: so a token is in one address
 * space alone, and a child finds out by itself that it keeps none. A GET reads the token in the same system call as the data.
 * The kernel looks the process up once for a call, so both are of one address space, whatever happens to process numbers.
 */
#define _GNU_SOURCE
#include "rdma/transport.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include "common/log.h"
#include "common/sys.h"

#define TOKENS 16384u /* 1 MB of addresses; memory only for those that are used */
#define WORDS (TOKENS / 64)
#define PARTS 32 /* of a receiver's iovec in one system call */
#define TOKEN_BYTES sizeof(struct transport_token)

/* In the place of token 0, which is never given away: whether the pool is this process's own. */
enum { POOL_WIPED, POOL_CLEARING, POOL_OWN };

struct pool_head {
	_Atomic uint32_t state;
	uint32_t process;
};

static struct transport_token *_Atomic pool;
static _Atomic uint64_t pool_used[WORDS];

static struct pool_head *head_of(struct transport_token *tokens)
{
	return (struct pool_head *)tokens;
}

static struct transport_token *pool_open(void)
{
	struct transport_token *tokens = atomic_load(&pool), *none = NULL;
	struct pool_head *head;
	uint32_t wiped = POOL_WIPED;

	if (!tokens) {
		tokens = sys_map(TOKENS * TOKEN_BYTES, MAP_PRIVATE | MAP_NORESERVE);
		if (!tokens)
			return NULL;
		if (sys_call(SYS_madvise, (long)tokens, (long)(TOKENS * TOKEN_BYTES), MADV_WIPEONFORK, 0, 0, 0) < 0 ||
		    !atomic_compare_exchange_strong(&pool, &none, tokens)) {
			sys_call(SYS_munmap, (long)tokens, (long)(TOKENS * TOKEN_BYTES), 0, 0, 0, 0);
			tokens = none;
		}
		if (!tokens)
			return NULL;
	}
	head = head_of(tokens);
	if (atomic_compare_exchange_strong(&head->state, &wiped, POOL_CLEARING)) {
		/* New, or the child of a fork: what the parent has used is not used here. */
		for (unsigned int i = 0; i < WORDS; i++)
			atomic_store(&pool_used[i], i ? 0 : 1);
		head->process = (uint32_t)sys_call(SYS_getpid, 0, 0, 0, 0, 0, 0);
		atomic_store(&head->state, POOL_OWN);
	}
	return atomic_load(&head->state) == POOL_OWN ? tokens : NULL;
}

/* Returns the index of a free token, which is used from now on; -1 if there is none. */
static int pool_take(void)
{
	for (unsigned int i = 0; i < WORDS; i++) {
		uint64_t used = atomic_load(&pool_used[i]);

		while (~used) {
			int bit = __builtin_ctzll(~used);

			if (atomic_compare_exchange_weak(&pool_used[i], &used, used | 1ull << bit))
				return (int)i * 64 + bit;
		}
	}
	return -1;
}

static int cma_keep(const struct transport_token *token, struct transport_place *out)
{
	struct transport_token *tokens = pool_open();
	int index = tokens ? pool_take() : -1;

	if (index < 0)
		return -ENOMEM;
	tokens[index] = *token;
	out->token = (uintptr_t)&tokens[index];
	out->number = head_of(tokens)->process;
	return 0;
}

/* Returns the token of a place that is this process's; NULL if it is another's, though at the same address. */
static struct transport_token *own_token(const struct transport_place *place)
{
	struct transport_token *tokens = atomic_load_explicit(&pool, memory_order_relaxed);
	uint64_t offset = tokens ? place->token - (uintptr_t)tokens : 0;

	if (!offset || offset >= TOKENS * TOKEN_BYTES || offset % TOKEN_BYTES ||
	    atomic_load(&head_of(tokens)->state) != POOL_OWN || place->number != head_of(tokens)->process)
		return NULL;
	return &tokens[offset / TOKEN_BYTES];
}

static int cma_keeps(const struct transport_place *place, const struct transport_token *token)
{
	struct transport_token *own = own_token(place);

	return own && !memcmp(own, token, TOKEN_BYTES);
}

static void cma_drop(const struct transport_place *place)
{
	struct transport_token *own = own_token(place);
	size_t index;

	if (!own)
		return;
	index = (size_t)(own - atomic_load(&pool));
	memset(own, 0, TOKEN_BYTES);
	atomic_fetch_and(&pool_used[index / 64], ~(1ull << index % 64));
}

/* Returns 0 with the owner of a process as /proc shows it: its user, and root for processes that are not dumpable. */
static int owner_of(pid_t process, uid_t *owner)
{
	struct stat info = { 0 };
	char path[32];
	long rc;

	*owner = 0;
	log_format(path, sizeof(path), "/proc/%d", process);
	rc = sys_call(SYS_newfstatat, AT_FDCWD, (long)path, (long)&info, 0, 0, 0);
	if (rc < 0)
		return (int)rc;
	*owner = info.st_uid;
	return 0;
}

static uid_t own_user(void)
{
	return (uid_t)sys_call(SYS_geteuid, 0, 0, 0, 0, 0, 0);
}

/* Whether the process is of our own user. */
static int is_same_user(pid_t process)
{
	uid_t owner;
	int rc = owner_of(process, &owner);

	return rc < 0 ? rc : owner == own_user() ? 0 : -EACCES;
}

/* The kernel says the same of another user's process and of one that is not dumpable, which looks like root's. */
static int why_refused(pid_t process)
{
	uid_t owner;

	return !owner_of(process, &owner) && owner && owner != own_user() ? -EACCES : -EPERM;
}

static long read_vm(pid_t process, const struct iovec *local, int locals, const struct iovec *remote, int remotes)
{
	return sys_call(SYS_process_vm_readv, process, (long)local, locals, (long)remote, remotes, 0);
}

static int check_token(long got, const struct transport_token *found, const struct transport_token *token)
{
	if (got < 0)
		return got == -EFAULT ? -ESTALE : (int)got;
	return got < (long)TOKEN_BYTES || memcmp(found, token, TOKEN_BYTES) ? -ESTALE : 0;
}

static int prove_process(pid_t process, const struct transport_place *place, const struct transport_token *token)
{
	struct transport_token found;
	struct iovec local = { &found, TOKEN_BYTES }, remote = { (void *)(uintptr_t)place->token, TOKEN_BYTES };
	int rc;

	if (process <= 0)
		return -ESRCH;
	rc = check_token(read_vm(process, &local, 1, &remote, 1), &found, token);
	return rc < 0 ? rc : is_same_user(process);
}

static int cma_prove(struct transport_reach *reach, const struct transport_place *place,
		     const struct transport_token *token)
{
	pid_t process = (pid_t)place->number;
	int rc;

	reach->process = 0;
	/* A sender in another pid namespace has another number there; the kernel's own word at the rendezvous was ours. */
	rc = prove_process(process, place, token);
	if (rc < 0 && rc != -EACCES && reach->hint && reach->hint != process) {
		int by_hint = prove_process(reach->hint, place, token);

		if (!by_hint || rc == -ESRCH || rc == -ESTALE)
			rc = by_hint;
		process = reach->hint;
	}
	if (rc == -EPERM)
		rc = why_refused(process);
	if (rc < 0)
		return rc;
	reach->process = process;
	reach->proved = *place;
	return 0;
}

/* Lists up to `bytes` of iov from byte `skip` on, at most PARTS pieces. Returns how many pieces; *listed their bytes. */
static int list_parts(const struct transport_get *get, size_t skip, struct iovec *out, size_t *listed)
{
	size_t left = get->bytes - (skip - get->skip);
	int used = 0;

	*listed = 0;
	for (int i = 0; i < get->count && used < PARTS && left; i++) {
		size_t part;

		if (skip >= get->iov[i].iov_len) {
			skip -= get->iov[i].iov_len;
			continue;
		}
		part = get->iov[i].iov_len - skip;
		part = part < left ? part : left;
		out[used++] = (struct iovec){ (char *)get->iov[i].iov_base + skip, part };
		*listed += part;
		left -= part;
		skip = 0;
	}
	return used;
}

/* One system call of a GET. Returns bytes, also 0, or -errno. */
static ssize_t get_once(pid_t process, const struct transport_place *place, const struct transport_token *token,
			const struct transport_get *get, size_t done)
{
	struct transport_token found;
	struct iovec local[PARTS + 1] = { { &found, TOKEN_BYTES } };
	struct iovec remote[2] = { { (void *)(uintptr_t)place->token, TOKEN_BYTES } };
	size_t bytes;
	int parts = list_parts(get, get->skip + done, local + 1, &bytes), rc;
	long got;

	remote[1] = (struct iovec){ (void *)(uintptr_t)(get->address + done), bytes };
	got = read_vm(process, local, parts + 1, remote, 2);
	rc = check_token(got, &found, token);
	return rc < 0 ? rc : got - (long)TOKEN_BYTES;
}

/* Nothing has come: whose memory was it? */
static int whose_fault(pid_t process, const struct transport_place *place, const struct transport_token *token,
		       uint64_t address)
{
	char byte;
	struct iovec iov = { &byte, 1 };
	struct transport_get one = { address, 1, &iov, 1, 0 };
	ssize_t got = get_once(process, place, token, &one, 0);

	return got < 0 ? (int)got : got ? -EFAULT : -ENXIO;
}

static ssize_t cma_get(struct transport_reach *reach, const struct transport_place *place,
		       const struct transport_token *token, const struct transport_get *get)
{
	size_t done = 0;
	ssize_t got = 1;

	if (!reach->process || reach->proved.token != place->token || reach->proved.number != place->number) {
		int rc = cma_prove(reach, place, token);

		if (rc < 0)
			return rc;
	}
	while (done < get->bytes && got > 0) {
		got = get_once(reach->process, place, token, get, done);
		if (got > 0)
			done += (size_t)got;
	}
	if (done)
		return (ssize_t)done;
	return got < 0 ? got : whose_fault(reach->process, place, token, get->address);
}

static ssize_t cma_poll(struct transport_reach *reach)
{
	(void)reach;
	return -EINVAL; /* get() has always come to its end */
}

const struct transport_ops transport_cma = {
	.name = "cma",
	.keep = cma_keep,
	.keeps = cma_keeps,
	.drop = cma_drop,
	.prove = cma_prove,
	.get = cma_get,
	.poll = cma_poll,
};
