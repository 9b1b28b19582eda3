/* SPDX-License-Identifier: MIT */
/*
 * Path choice: what a connection may use (rules file, then ZC_PATH), and what is remembered of destinations beyond the life
 * of one connection.
 */
#ifndef ZC_PRELOAD_CHOOSE_H
#define ZC_PRELOAD_CHOOSE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/settings.h"
#include "common/stats.h"

/* Reads the rules. Calls refused(message) when they can't be used; then none apply. */
void choose_start(void (*refused)(const char *message));

/* Whether there may be connections of this process whose events have to be looked at. Known from the start. */
extern bool choose_moves;

/* Returns the path for a new connection; address as rules.h says. */
enum zc_path choose_policy(enum stats_role role, const struct sockaddr *address);

/* Returns a hash of the address without its port, never 0. */
uint64_t choose_peer_key(const struct sockaddr *peer);

/* The kernel copies MSG_ZEROCOPY data on the way to this destination: remembered for CHOOSE_MEMORY_NS. */
#define CHOOSE_MEMORY_NS (60ull * NS_PER_SEC)
void choose_remember_copied(uint64_t peer_key);
bool choose_is_copied(uint64_t peer_key);

#endif
