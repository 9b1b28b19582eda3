/* SPDX-License-Identifier: MIT */
/* The queue pair of far.h: whether there can be one, the plug-in, and what is asked of it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/sys.h"
#include "preload/apart.h"
#include "preload/evict.h"
#include "preload/far_compare.h"
#include "preload/far_internal.h"
#include "preload/guest.h"
#include "preload/signals.h"

#define DEVICES_AGAIN_NS NS_PER_SEC
#define SETTLE_NS NS_PER_SEC

const struct verbs_table *far_verbs;

extern char **environ;

static bool devices_are_there(void)
{
	char entries[1024];
	long fd = sys_call(SYS_openat, AT_FDCWD, (long)VERBS_DEVICES, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0, 0, 0);
	long got;

	if (fd < 0)
		return false;
	got = sys_call(SYS_getdents64, fd, (long)entries, sizeof(entries), 0, 0, 0);
	sys_call(SYS_close, fd, 0, 0, 0, 0, 0);
	return got > 64; /* more than . and .. */
}

bool far_possible(void)
{
	static _Atomic uint64_t looked;
	static _Atomic bool there;
	uint64_t before = atomic_load(&looked), now;

	if (settings.transport == TRANSPORT_CMA || settings.transport == TRANSPORT_NONE || guest_sandboxed() ||
	    far_failed())
		return false;
	now = clock_now();
	if ((!before || now - before > DEVICES_AGAIN_NS) && atomic_compare_exchange_strong(&looked, &before, now))
		atomic_store(&there, devices_are_there());
	return atomic_load(&there);
}

/*
 * What librdmacm, libibverbs and the drivers know of an open device is the process's that has opened it, and they can't be told that they are
 * in a child. So that gets libraries of its own: a namespace of the loader, with a libc that they share with nobody. The
 * loader has room for a few of them: a child's child's child, and so on, goes by TCP in the end.
 */
static bool anew;

bool far_loads_anew(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	return !far_verbs; /* one run-time library of a sanitizer for a process */
#else
	anew |= far_verbs != NULL;
	return true;
#endif
}

/* Its own calls are libc's, not ours; a sanitizer's run-time library takes them, and ends a process that keeps them from it. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PAST_US 0
#else
#define PAST_US RTLD_DEEPBIND
#endif

static void *open_by_loader(const char *path)
{
	const int how = RTLD_NOW | RTLD_LOCAL;

	return anew ? dlmopen(LM_ID_NEWLM, path, how) : dlopen(path, how | PAST_US);
}

/* The parent's devices are to end with the parent. */
static void close_inherited(void)
{
	static const char *const kinds[] = { "/dev/infiniband/", "anon_inode:[infinibandevent]" };
	char name[32], what[64];

	for (int fd = table_own_next(0); fd >= 0; fd = table_own_next(fd + 1)) {
		bool device = false;
		long bytes;

		snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
		bytes = sys_call(SYS_readlinkat, AT_FDCWD, (long)name, (long)what, sizeof(what) - 1, 0, 0);
		what[bytes > 0 ? bytes : 0] = 0;
		for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
			device |= !strncmp(what, kinds[i], strlen(kinds[i]));
		if (!device)
			continue;
		table_own_close(fd);
	}
}

/* Looks for the plug-in where this library is, and where it was built; then where the loader looks. */
static void *open_plug_in(void)
{
	static const char *const places[] = { "", "../rdma/" };
	char path[4096];
	void *found = NULL;
	Dl_info self;
	const char *slash;

	if (dladdr((void *)devices_are_there, &self) && self.dli_fname && (slash = strrchr(self.dli_fname, '/'))) {
		for (size_t i = 0; i < 2 && !found; i++) {
			snprintf(path, sizeof(path), "%.*s/%s" VERBS_LIBRARY, (int)(slash - self.dli_fname),
				 self.dli_fname, places[i]);
			found = open_by_loader(path);
		}
	}
	return found ? found : open_by_loader(VERBS_LIBRARY);
}

static void enter_plug_in(void)
{
	lock_deeper();
}

static void leave_plug_in(void)
{
	lock_less_deep();
}

static struct verbs_owner owner = {
	.program_environment = &environ,
	.keep = apart_keep, /* they outlive closefrom() and the like */
	.drop = apart_drop,
	.put = apart_put,
	.enter = enter_plug_in,
	.leave = leave_plug_in,
	.interrupts = signals_interrupt,
};

void far_keep_environment(void)
{
	size_t count = 0, bytes = sizeof(char *);
	char **copy, *text;

	if (settings.transport == TRANSPORT_CMA || settings.transport == TRANSPORT_NONE || !environ)
		return;
	for (; environ[count]; count++)
		bytes += sizeof(char *) + strlen(environ[count]) + 1;
	copy = sys_map(bytes, MAP_PRIVATE);
	if (!copy)
		return;
	owner.environment = copy;
	text = (char *)(copy + count + 1);
	for (size_t i = 0; i < count; i++) {
		copy[i] = text;
		text = stpcpy(text, environ[i]) + 1;
	}
}

bool far_load(void)
{
	const struct verbs_table *found;
	void *plug_in;

	if (anew)
		close_inherited();
	plug_in = open_plug_in();
	found = plug_in ? dlsym(plug_in, VERBS_SYMBOL) : NULL;
	if (!found || found->version != VERBS_TABLE_VERSION || found->bytes != sizeof(*found)) {
		log_info("no transport between hosts: %s", plug_in ? "another version of " VERBS_LIBRARY : dlerror());
		far_verbs = NULL; /* in a child it was its parent's, whose locks are as they were at the fork */
		return false;
	}
	found->set_owner(&owner);
	far_verbs = found;
	return true;
}

void far_poll_there(struct conn *conn, const struct engine *engine)
{
	struct verbs_conn *link;

	if (atomic_load_explicit(&engine->far.state, memory_order_relaxed) != FAR_UP)
		return;
	link = far_hold(conn->far);
	/* Of a broken one the last word has been taken: what comes later would not be in its count. */
	if (link && atomic_load(&engine->far.state) == FAR_UP)
		far_verbs->poll(link);
	far_release(conn->far);
}

/* Waits until what was under way has come or has failed to. Returns false if it does neither. */
static bool settles(struct verbs_conn *link)
{
	struct verbs_positions at = { .settled = false };
	uint64_t until = clock_now() + SETTLE_NS;

	for (far_verbs->positions(link, &at); !at.settled && clock_now() < until; far_verbs->positions(link, &at))
		sys_call(SYS_poll, 0, 0, 1, 0, 0, 0); /* a broken one's descriptor is readable for ever */
	return at.settled;
}

/* The state first: who finds it up, and then no queue pair, has no lock and comes late, and it is broken by now. */
bool far_is_up(struct conn *conn, struct engine *engine)
{
	bool was_up = atomic_load(&engine->far.state) == FAR_UP;
	struct verbs_conn *link = far_link(conn);
	int up = FAR_UP;
	enum verbs_trouble why = VERBS_PEER_GONE;

	if (!was_up || (conn->far && !link))
		return false;
	if (link && far_verbs->state(link, &why) == VERBS_UP)
		return true;
	/* A device that may write yet could add to what is counted as here: nobody could tell what is missing. */
	if (link && !settles(link) && !atomic_exchange(&engine->far.nonsense, true))
		evict_reset(conn, conn_fd(conn));
	atomic_store(&engine->channel.sources_in.gone, true);
	if (atomic_compare_exchange_strong(&engine->far.state, &up, FAR_BROKEN)) {
		far_has_broken(conn, engine, why);
		far_kick();
	}
	return false;
}

void far_wait(struct conn *conn, int fd)
{
	uint64_t until = clock_now() + (uint64_t)settings.rdma_wait_ms * NS_PER_MS;
	struct engine *engine = engine_enter(conn, fd);
	struct pollfd look = { .fd = fd, .events = POLLOUT };

	if (!engine)
		return;
	if (far_compares(conn)) { /* that begins over TCP */
		engine_leave(conn);
		return;
	}
	/* Under way: there is no peer yet. */
	while (sys_call(SYS_poll, (long)&look, 1, 0, 0, 0, 0) == 1 && atomic_load(&engine->state) == ENGINE_APART &&
	       (!engine->names.peer.ss_family || !meet_is_local(&engine->names)) && clock_now() < until) {
		engine->next_try = 0;
		engine_step(conn, engine, fd);
		sys_call(SYS_poll, 0, 0, 1, 0, 0, 0);
	}
	engine_leave(conn);
}

void far_sleep(struct conn *conn, int ms)
{
	struct far *far = conn->far;
	struct verbs_conn *link = far ? far_hold(far) : NULL;
	struct pollfd look = { .events = POLLIN };
	bool sleeps = true;

	if (link) {
		look.fd = far_verbs->fd(link);
		sleeps = far_verbs->arm(link, VERBS_IN | VERBS_OUT | VERBS_SENT);
		if (!sleeps) {
			far_poll(conn, atomic_load(&conn->engine)); /* what was found keeps from sleeping until then */
			far_took_notices(conn, atomic_load(&conn->engine), false);
		}
	}
	if (sleeps && sys_call(SYS_poll, (long)&look, link ? 1 : 0, ms, 0, 0, 0) > 0) {
		far_verbs->woke(link);
		far_took_event(conn, atomic_load(&conn->engine));
		far_took_notices(conn, atomic_load(&conn->engine), false);
	}
	if (far)
		far_release(far);
}

void far_give_up(struct conn *conn, struct engine *engine)
{
	struct far *far = conn->far;
	struct verbs_conn *link = far ? far_hold(far) : NULL;

	if (link && atomic_load(&engine->far.state) == FAR_UP)
		far_verbs->give_up(link);
	far_is_up(conn, engine);
	if (far)
		far_release(far);
}
