/* SPDX-License-Identifier: MIT */
/* Who of several processes that hold a connection holds bytes of it, and uses zerocopy (conn.h, "Sharing"). */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "common/sys.h"
#include "preload/conn.h"

#define TOKENS 65536
#define TOKEN(holder, number) ((uint64_t)(number) << 32 | (uint32_t)(holder))
#define TOKEN_SHARED UINT64_MAX

/* Each has its holder's process, 0 for none, and of one that is free the number that the next notice of the kernel's will have. */
static _Atomic uint64_t *tokens;
static uint32_t tokens_used = TOKENS;

bool conn_take_token(struct conn *conn)
{
	_Atomic uint64_t *token = conn->token;
	uint32_t self = (uint32_t)conn_process();
	uint64_t is_free = TOKEN(0, conn->zerocopy.next);

	if (!token || (uint32_t)atomic_load_explicit(token, memory_order_relaxed) == self)
		return true;
	if (atomic_compare_exchange_strong(token, &is_free, TOKEN(self, 0)) || (uint32_t)is_free == self)
		return true;
	atomic_store(token, TOKEN_SHARED);
	conn_detach(conn, REASON_SHARED);
	return false;
}

void conn_share(struct conn *conn)
{
	if (conn->token)
		atomic_store(conn->token, TOKEN_SHARED);
	conn_detach(conn, REASON_SHARED);
}

void conn_give_token(struct conn *conn)
{
	uint64_t self = TOKEN(conn_process(), 0);

	if (conn->token) {
		atomic_compare_exchange_strong(conn->token, &self, TOKEN(0, conn->zerocopy.next));
		return;
	}
	if (tokens_used == TOKENS) {
		_Atomic uint64_t *fresh = sys_map(TOKENS * sizeof(*tokens), MAP_SHARED | MAP_NORESERVE);

		/* The old ones stay mapped: connections that live on use them. */
		if (!fresh) {
			atomic_store(&conn->mode, CONN_PLAIN);
			stats_reason(conn->slot, REASON_NO_MEMORY);
			return;
		}
		tokens = fresh;
		tokens_used = 0;
	}
	conn->token = &tokens[tokens_used++];
	atomic_store(conn->token, TOKEN(0, conn->zerocopy.next));
}
