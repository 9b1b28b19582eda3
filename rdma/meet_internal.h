/* SPDX-License-Identifier: MIT */
/* What the parts of the rendezvous share: addresses as the kernel's own tables have them. */
#ifndef ZC_RDMA_MEET_INTERNAL_H
#define ZC_RDMA_MEET_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct meet_names;

/* What is compared and hashed of an address: v4-mapped addresses are IPv4. */
struct meet_place {
	sa_family_t family;
	uint16_t port; /* network order */
	uint8_t address[16];
};

struct meet_place meet_place_of(const struct sockaddr_storage *from);

/* Returns whether both ends are IPv4 or IPv6. */
bool meet_is_inet(const struct meet_names *names);

#endif
