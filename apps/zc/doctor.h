/* SPDX-License-Identifier: MIT */
/* The checks of doctor.def: each tries one thing for real and fills in what it found. */
#ifndef ZC_APPS_ZC_DOCTOR_H
#define ZC_APPS_ZC_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>

enum health { HEALTH_OK, HEALTH_LIMITED, HEALTH_MISSING };

struct finding {
	enum health health;
	char value[256];  /* what was found */
	char means[320];  /* what that means for zc; empty where it is what zc wants */
	char remedy[256]; /* empty: the one of doctor.def */
};

#define ZC_CHECK(id, name, needed, purpose, remedy) void doctor_##id(struct finding *out);
#include "apps/zc/doctor.def"
#undef ZC_CHECK

/* Sets health and value. */
void finding_is(struct finding *out, enum health health, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Sets what it means. */
void finding_means(struct finding *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Sets what helps here. */
void finding_remedy(struct finding *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Reads the first line of a file, without its end. Returns 0 or -errno. */
int doctor_read_line(const char *file, char *out, unsigned long bytes);

/* Connects two TCP sockets over loopback. Returns 0 or -errno. Ownership: the caller closes both. */
int doctor_connect(int fds[2]);

/* What the program of the checks `library` and `zerocopy_path` does, under libzc.so. Returns its exit status. */
int doctor_probe(void);

/*
 * Runs a part of a check in a child, which writes a line to `out` and ends; one that hangs is killed. Returns 0 with the line in
 * `said`, or -EIO with the line, or with how the child ended.
 */
int doctor_in_child(void (*run)(const char *argument, int out), const char *argument, char *said, size_t bytes);

/* Opens the devices of these names by the plug-in, and says so or why not. Returns whether it could. */
bool doctor_opens_devices(const char *plug_in, const char *names, struct finding *out);

#endif
