/* SPDX-License-Identifier: MIT */
/* Listening, connecting, and the settings of a connected socket. */
#ifndef ZC_TOOLS_NET_H
#define ZC_TOOLS_NET_H

#include <stdint.h>
#include <sys/socket.h>

#include "apps/tools/fault.h"
#include "apps/tools/option.h"

#define NET_ADDRESS_BYTES 80

/* Writes ADDR:PORT, IPv6 addresses in brackets. */
void net_address_text(const struct sockaddr_storage *address, char out[NET_ADDRESS_BYTES]);

/* Listens. Returns a descriptor and writes the address in use, or -errno. */
int net_listen(const char *address, uint64_t port, char out[NET_ADDRESS_BYTES], struct fault *fault);

/*
 * Connects to the first of the host's addresses that answers within the time. `socket_buffer` is set before, as TCP's
 * window scale is fixed by then. Returns a blocking descriptor or -errno.
 */
int net_connect(const char *host, uint64_t port, uint64_t timeout_s, uint64_t socket_buffer, struct fault *fault);

/* Sets what the options ask for on a connected socket. Returns 0 or -errno. */
int net_configure(int fd, const struct shared_options *shared, struct fault *fault);

#endif
