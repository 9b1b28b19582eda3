/* SPDX-License-Identifier: MIT */
/* Reads from an ELF file what decides whether the dynamic loader will put a library into it. The file is not trusted. */
#ifndef ZC_APPS_ZC_ELF_H
#define ZC_APPS_ZC_ELF_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct elf_facts {
	uint8_t bits; /* 32 or 64 */
	bool big_endian;
	uint16_t machine;      /* EM_* */
	bool may_be_loader;    /* a dynamic loader, or position-independent and static */
	bool is_go;	       /* built by the Go toolchain */
	char loader[PATH_MAX]; /* the dynamic loader it names; empty: static */
};

/* Returns 0, -ENOEXEC (no ELF program, or a malformed one) or another -errno. */
int elf_read(int fd, struct elf_facts *out);

/*
 * Tells the name that a library gives itself (DT_SONAME). Returns 0 with `bytes` at most in `out`, -ENOEXEC (no library for this machine, or
 * malformed), -ENOENT (it has none, or a longer one) or another -errno.
 */
int elf_soname(int fd, char *out, size_t bytes);

/* Returns whether this command itself is for the same machine. */
bool elf_is_ours(const struct elf_facts *facts);

/* Returns a name for the machine, such as "32-bit x86". */
const char *elf_machine_name(const struct elf_facts *facts);

#endif
