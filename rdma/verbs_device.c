/* SPDX-License-Identifier: MIT */
/* Devices, and the memory that is registered with them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/capability.h"
#include "common/clock.h"
#include "common/cost.h"
#include "common/sys.h"
#include "rdma/verbs_internal.h"
#include "rdma/verbs_provider.h"

#define BUDGET_BYTES (1ul << 30) /* where nothing limits it */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the domains and their caches */
static struct domain *domains;
/* Of devices. librdmacm may free a context with the last id of it, so what is needed behind that is kept here. */
static struct use {
	struct use *next;
	const struct ibv_context *context;
	const struct ibv_device *device;
	int fds[2];
	uint32_t count;
} * uses, *gone; /* gone: their numbers are something else now, and librdmacm is to close them */
static struct verbs_budget budget;

#define TROUBLE_TEXT(name, text) text,
const char *verbs_tell(enum verbs_trouble trouble)
{
	static const char *const texts[] = { VERBS_TROUBLES(TROUBLE_TEXT) };

	return (unsigned int)trouble < VERBS_TROUBLE_COUNT ? texts[trouble] : "unknown trouble";
}

static size_t memlock_bytes(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY ||
	    capability_everywhere(CAP_IPC_LOCK))
		return SIZE_MAX;
	return limit.rlim_cur;
}

static uint32_t gids_of(struct ibv_context *context, uint8_t port, const struct ibv_port_attr *attributes)
{
	static const union ibv_gid none;
	uint32_t count = 0;
	union ibv_gid gid;

	for (int i = 0; i < attributes->gid_tbl_len; i++)
		count += !ibv_query_gid(context, port, i, &gid) && memcmp(&gid, &none, sizeof(gid));
	return count;
}

bool device_is_iwarp(const struct ibv_device *device)
{
	return device->transport_type == IBV_TRANSPORT_IWARP;
}

static enum verbs_trouble look_at(struct ibv_device *device, struct verbs_device *out)
{
	struct ibv_device_attr_ex more = { 0 };
	struct ibv_context *context;

	*out = (struct verbs_device){ 0 };
	strncpy(out->name, ibv_get_device_name(device), sizeof(out->name) - 1);
	if (device_is_iwarp(device))
		return VERBS_IWARP;
	context = ibv_open_device(device);
	if (!context)
		return errno == EACCES || errno == EPERM ? VERBS_NO_RIGHT : VERBS_FAILED;
	if (!ibv_query_device_ex(context, NULL, &more)) {
		out->ports = more.orig_attr.phys_port_cnt;
		out->queue_pairs = (uint32_t)more.orig_attr.max_qp;
		out->reads_out = (uint32_t)more.orig_attr.max_qp_init_rd_atom;
		out->reads_in = (uint32_t)more.orig_attr.max_qp_rd_atom;
		out->on_demand = more.odp_caps.general_caps & IBV_ODP_SUPPORT;
	}
	for (uint32_t port = 1; port <= out->ports && port <= UINT8_MAX; port++) {
		struct ibv_port_attr attributes;

		if (ibv_query_port(context, (uint8_t)port, &attributes) || attributes.state != IBV_PORT_ACTIVE)
			continue;
		out->ports_active++;
		out->gids += gids_of(context, (uint8_t)port, &attributes);
	}
	ibv_close_device(context);
	return !out->ports_active ? VERBS_NO_PORT : !out->gids ? VERBS_NO_GID : VERBS_FINE;
}

int verbs_devices(struct verbs_device *out, int max, enum verbs_trouble *trouble, size_t *memlock)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	bool any = false;

	*memlock = memlock_bytes();
	*trouble = VERBS_NO_DEVICE;
	for (int i = 0; list && i < count; i++) {
		struct verbs_device device;
		enum verbs_trouble found = look_at(list[i], &device);

		if (i < max)
			out[i] = device;
		any |= found == VERBS_FINE;
		*trouble = any ? VERBS_FINE : found;
	}
	if (list)
		ibv_free_device_list(list);
	return list ? count : 0;
}

void verbs_set_budget(size_t bytes)
{
	int held = verbs_take(&lock);

	budget.bytes_max = bytes;
	verbs_give(&lock, held);
}

/* Rings and the queues themselves are counted by the kernel, too. */
static size_t default_budget(void)
{
	size_t limit = memlock_bytes();

	return limit / 2 < BUDGET_BYTES ? limit / 2 : BUDGET_BYTES;
}

static bool has(uint32_t rights, uint32_t right)
{
	return (rights & right) == right;
}

static struct cost registering, forgetting;

static int region_add(void *context, uintptr_t start, size_t bytes, uint32_t rights, void **handle)
{
	struct domain *domain = context;
	int access = (rights & RIGHT_WRITE ? IBV_ACCESS_LOCAL_WRITE : 0) |
		     (has(rights, RIGHT_PEER_READS) ? IBV_ACCESS_REMOTE_READ : 0) |
		     (has(rights, RIGHT_PEER_WRITES) ? IBV_ACCESS_REMOTE_WRITE : 0);
	uint64_t began = clock_now();

	*handle = ibv_reg_mr(domain->pd, (void *)start, bytes, access);
	if (!*handle)
		return -errno;
	cost_add(&registering, bytes, clock_now() - began);
	return 0;
}

static void region_drop(void *context, void *handle)
{
	size_t bytes = ((struct ibv_mr *)handle)->length;
	uint64_t began = clock_now();

	ibv_dereg_mr(handle);
	cost_add(&forgetting, bytes, clock_now() - began);
}

static const struct verbs_cache_ops region_ops = { region_add, region_drop, may_allocate };

struct verbs_owner verbs_owner;

/* Who names drivers of his own in the environment gets those. */
static void load_providers(void)
{
	Dl_info libibverbs;

	if (!getenv("RDMAV_DRIVERS") && !getenv("IBV_DRIVERS") && dladdr((void *)ibv_get_device_list, &libibverbs) &&
	    libibverbs.dli_fname)
		verbs_providers_load(VERBS_DEVICES, libibverbs.dli_fname);
}

void verbs_set_owner(const struct verbs_owner *owner)
{
	verbs_owner = *owner;
	verbs_environment_use(owner);
	load_providers();
}

int own_keep(int fd)
{
	return verbs_owner.keep ? verbs_owner.keep(fd) : sys_fd_raise(fd);
}

static void own_put(int fd, int number)
{
	if (verbs_owner.put)
		verbs_owner.put(fd, number);
	else
		dup3(fd, number, O_CLOEXEC);
}

void own_drop(int fd)
{
	if (verbs_owner.drop)
		verbs_owner.drop(fd);
}

void own_close(int fd)
{
	own_drop(fd);
	close(fd);
}

void events_close(struct rdma_event_channel *events)
{
	own_drop(events->fd);
	rdma_destroy_event_channel(events);
}

static struct use *use_of(const struct ibv_context *context)
{
	struct use *use = uses;

	while (use && use->context != context)
		use = use->next;
	return use;
}

void device_use(struct ibv_context **used, struct ibv_context *context)
{
	struct use *use;
	int held;

	if (*used || !context)
		return;
	context->cmd_fd = own_keep(context->cmd_fd);
	context->async_fd = own_keep(context->async_fd);
	held = verbs_take(&lock);
	use = use_of(context);
	if (!use) {
		use = calloc(1, sizeof(*use));
		if (use) {
			use->context = context;
			use->next = uses;
			uses = use;
		}
	}
	if (use) {
		use->count++;
		use->device = context->device;
		use->fds[0] = context->cmd_fd;
		use->fds[1] = context->async_fd;
	}
	verbs_give(&lock, held);
	*used = context;
}

void device_unuse(struct ibv_context *context)
{
	int held = verbs_take(&lock);
	struct use *use = context ? use_of(context) : NULL;

	if (use)
		use->count--;
	verbs_give(&lock, held);
}

static bool is_listed(struct ibv_device **list, int count, const struct ibv_device *device)
{
	for (int i = 0; i < count; i++) {
		if (list[i] == device)
			return true;
	}
	return false;
}

/*
 * librdmacm closes such a device when it comes to a new one, which a driver that waits does not let come: so the kernel is
 * told by their numbers' being something else.
 */
static void let_go(const struct use *use)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0)
		return;
	own_put(null, use->fds[0]);
	own_put(null, use->fds[1]);
	close(null);
}

/* The numbers that librdmacm has closed are the program's again. Under the lock. */
static void forget_gone(void)
{
	for (struct use **at = &gone; *at;) {
		struct use *use = *at;

		if (fcntl(use->fds[0], F_GETFD) >= 0 || fcntl(use->fds[1], F_GETFD) >= 0) {
			at = &use->next;
			continue;
		}
		own_drop(use->fds[0]);
		own_drop(use->fds[1]);
		*at = use->next;
		free(use);
	}
}

void device_forget_gone(void)
{
	int held = verbs_take(&lock);

	forget_gone();
	verbs_give(&lock, held);
}

void device_sweep(void)
{
	int held = verbs_take(&lock), count = 0;
	struct ibv_device **list = NULL;

	for (struct use **at = &uses; *at;) {
		struct use *use = *at;

		if (!use->count && !list)
			list = ibv_get_device_list(&count);
		if (use->count || !list || is_listed(list, count, use->device)) {
			at = &use->next;
			continue;
		}
		let_go(use);
		*at = use->next;
		use->next = gone;
		gone = use;
	}
	if (list)
		ibv_free_device_list(list);
	verbs_give(&lock, held);
}

int domain_open(struct ibv_context *context, const uint8_t address[16], struct domain **out)
{
	struct domain *domain;
	int rc = 0;
	int held = verbs_take(&lock);

	if (!budget.bytes_max)
		budget.bytes_max = default_budget();
	for (domain = domains; domain; domain = domain->next) {
		if (domain->context == context && !memcmp(domain->address, address, 16))
			break;
	}
	if (!domain) {
		domain = calloc(1, sizeof(*domain));
		if (domain)
			domain->pd = ibv_alloc_pd(context);
		if (!domain || !domain->pd) {
			rc = domain ? -errno : -ENOMEM;
			free(domain);
			goto unlock;
		}
		domain->context = context;
		memcpy(domain->address, address, 16);
		verbs_cache_open(&domain->cache, &region_ops, domain, &budget);
		domain->next = domains;
		domains = domain;
	}
	domain->users++;
	*out = domain;
unlock:
	verbs_give(&lock, held);
	return rc;
}

void domain_close(struct domain *domain)
{
	int held = verbs_take(&lock);

	if (!--domain->users) {
		struct domain **at = &domains;

		while (*at != domain)
			at = &(*at)->next;
		*at = domain->next;
		verbs_cache_close(&domain->cache);
		ibv_dealloc_pd(domain->pd);
		free(domain);
	}
	verbs_give(&lock, held);
}

int domain_get(struct domain *domain, const void *address, size_t bytes, uint32_t rights, struct verbs_region **out)
{
	struct domain *other;
	int rc;
	int held = verbs_take(&lock);

	rc = verbs_cache_get(&domain->cache, (uintptr_t)address, bytes, rights, out);
	/* What other hosts' connections have kept is in the way of the same limit. */
	for (other = domains; rc == -ENOMEM && other;) {
		if (other == domain || !verbs_cache_shrink(&other->cache))
			other = other->next;
		else
			rc = verbs_cache_get(&domain->cache, (uintptr_t)address, bytes, rights, out);
	}
	verbs_give(&lock, held);
	return rc;
}

void domain_share(struct domain *domain, struct verbs_region *region)
{
	int held = verbs_take(&lock);

	region->users++;
	verbs_give(&lock, held);
}

void domain_put(struct domain *domain, struct verbs_region *region)
{
	int held = verbs_take(&lock);

	verbs_cache_put(&domain->cache, region);
	verbs_give(&lock, held);
}

int verbs_expose(struct verbs_conn *conn, const void *address, size_t bytes, struct verbs_remote *remote,
		 struct verbs_region **out)
{
	int rc = conn->domain ? domain_get(conn->domain, address, bytes, RIGHT_PEER_READS, out) : -ENOTCONN;

	if (rc < 0)
		return rc;
	remote->address = (uintptr_t)address;
	remote->key = ((struct ibv_mr *)(*out)->handle)->rkey;
	return 0;
}

int verbs_reserve(struct verbs_conn *conn, const void *address, size_t bytes, bool spares, struct verbs_region **out)
{
	bool may;
	int held = verbs_take(&lock);

	may = !spares || verbs_budget_spares(&budget, bytes);
	verbs_give(&lock, held);
	if (!may)
		return -ENOMEM;
	return conn->domain ? domain_get(conn->domain, address, bytes, RIGHT_WRITE, out) : -ENOTCONN;
}

void verbs_hide(struct verbs_conn *conn, struct verbs_region *region)
{
	domain_put(conn->domain, region);
}

uint64_t verbs_registration_ns(size_t bytes)
{
	return cost_of(&registering, bytes) + cost_of(&forgetting, bytes);
}

unsigned int verbs_invalidate(const void *address, size_t bytes)
{
	unsigned int used = 0;
	int held = verbs_take(&lock);

	for (struct domain *domain = domains; domain; domain = domain->next)
		used += verbs_cache_invalidate(&domain->cache, (uintptr_t)address, bytes);
	verbs_give(&lock, held);
	return used;
}
