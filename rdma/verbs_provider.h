/* SPDX-License-Identifier: MIT */
/*
 * The providers (drivers in user space) of the RDMA devices that are here, loaded before libibverbs looks for devices. It asks those that have
 * registered first, and only if a device is left without one does it load all that are installed, which is most of what the first
 * meeting of a process costs. So a provider that is not found here costs time, and nothing else.
 */
#ifndef ZC_RDMA_VERBS_PROVIDER_H
#define ZC_RDMA_VERBS_PROVIDER_H

#include <stdbool.h>

/* Returns the name that libibverbs has for a device's provider ("mlx5"), or NULL: not known. `devices`: /sys/class/infiniband. */
const char *verbs_provider_of(const char *devices, const char *device);

/*
 * Loads, for good, those of all devices in `devices` from the directory libibverbs/ beside `library`, the path of libibverbs. Where one is
 * not found, the others are loaded all the same.
 */
void verbs_providers_load(const char *devices, const char *library);

#endif
