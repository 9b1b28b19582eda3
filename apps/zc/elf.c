/* SPDX-License-Identifier: MIT */
#include "apps/zc/elf.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define HEADERS_MAX 128
#define NOTES_BYTES 4096

#if defined(__x86_64__)
#define OUR_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define OUR_MACHINE EM_AARCH64
#else
#error "name the ELF machine"
#endif

static int read_at(int fd, void *out, size_t bytes, uint64_t offset)
{
	ssize_t got = offset <= INT64_MAX ? pread(fd, out, bytes, (off_t)offset) : 0;

	return got < 0 ? -errno : (size_t)got == bytes ? 0 : -ENOEXEC;
}

static int read_header(int fd, const Elf64_Ehdr *elf, unsigned int number, Elf64_Phdr *out)
{
	return read_at(fd, out, sizeof(*out), elf->e_phoff + number * sizeof(*out));
}

/* The Go linker leaves a note with the owner "Go" (its build id). */
static bool has_go_note(int fd, const Elf64_Phdr *header)
{
	char notes[NOTES_BYTES];
	size_t bytes = header->p_filesz < sizeof(notes) ? header->p_filesz : sizeof(notes);
	size_t at = 0;

	if (read_at(fd, notes, bytes, header->p_offset))
		return false;
	while (bytes - at >= sizeof(Elf64_Nhdr)) {
		Elf64_Nhdr note;
		size_t step;

		memcpy(&note, notes + at, sizeof(note));
		at += sizeof(note);
		step = ((size_t)note.n_namesz + 3) / 4 * 4 + ((size_t)note.n_descsz + 3) / 4 * 4;
		if (note.n_namesz == 4 && bytes - at >= 4 && !memcmp(notes + at, "Go\0", 4))
			return true;
		if (step > bytes - at)
			return false;
		at += step;
	}
	return false;
}

static int read_loader(int fd, const Elf64_Phdr *header, struct elf_facts *out)
{
	int rc;

	if (!header->p_filesz || header->p_filesz >= sizeof(out->loader))
		return -ENOEXEC;
	rc = read_at(fd, out->loader, header->p_filesz, header->p_offset);
	out->loader[header->p_filesz] = '\0';
	return rc;
}

/* Only a program for our own machine is looked into: any other is out of reach anyhow. */
static int read_headers(int fd, const Elf64_Ehdr *elf, struct elf_facts *out)
{
	bool dynamic = false;

	if (elf->e_phentsize != sizeof(Elf64_Phdr) || elf->e_phnum > HEADERS_MAX)
		return -ENOEXEC;
	for (unsigned int i = 0; i < elf->e_phnum; i++) {
		Elf64_Phdr header;
		int rc = read_header(fd, elf, i, &header);

		if (!rc && header.p_type == PT_INTERP)
			rc = read_loader(fd, &header, out);
		if (rc)
			return rc;
		dynamic |= header.p_type == PT_DYNAMIC;
		if (header.p_type == PT_NOTE && has_go_note(fd, &header))
			out->is_go = true;
	}
	/* A loader, which loads the program that it is given; or a static program. reach.c tells them apart. */
	out->may_be_loader = dynamic && !*out->loader && elf->e_type == ET_DYN;
	return 0;
}

int elf_read(int fd, struct elf_facts *out)
{
	Elf64_Ehdr elf;
	int rc;

	memset(out, 0, sizeof(*out));
	rc = read_at(fd, &elf, sizeof(Elf32_Ehdr), 0);
	if (rc)
		return rc;
	if (memcmp(elf.e_ident, ELFMAG, SELFMAG))
		return -ENOEXEC;
	out->bits = elf.e_ident[EI_CLASS] == ELFCLASS64 ? 64 : 32;
	out->big_endian = elf.e_ident[EI_DATA] == ELFDATA2MSB;
	out->machine = out->big_endian ? __builtin_bswap16(elf.e_machine) : elf.e_machine;
	if (!elf_is_ours(out))
		return 0;
	rc = read_at(fd, &elf, sizeof(elf), 0);
	if (rc)
		return rc;
	if (elf.e_type != ET_EXEC && elf.e_type != ET_DYN)
		return -ENOEXEC;
	return read_headers(fd, &elf, out);
}

/* Where in the file the headers have what will be at an address. */
static int offset_of(int fd, const Elf64_Ehdr *elf, uint64_t address, uint64_t *out)
{
	for (unsigned int i = 0; i < elf->e_phnum; i++) {
		Elf64_Phdr header;
		int rc = read_header(fd, elf, i, &header);

		if (rc)
			return rc;
		if (header.p_type == PT_LOAD && address >= header.p_vaddr &&
		    address - header.p_vaddr < header.p_filesz) {
			*out = header.p_offset + (address - header.p_vaddr);
			return 0;
		}
	}
	return -ENOEXEC;
}

/* The entry of the dynamic section that has this tag. */
static int dynamic_value(int fd, const Elf64_Ehdr *elf, int64_t tag, uint64_t *out)
{
	for (unsigned int i = 0; i < elf->e_phnum; i++) {
		Elf64_Phdr header;
		int rc = read_header(fd, elf, i, &header);

		for (uint64_t at = 0; !rc && header.p_type == PT_DYNAMIC && at < header.p_filesz;
		     at += sizeof(Elf64_Dyn)) {
			Elf64_Dyn entry;

			rc = read_at(fd, &entry, sizeof(entry), header.p_offset + at);
			if (!rc && entry.d_tag == tag) {
				*out = entry.d_un.d_val;
				return 0;
			}
			if (!rc && entry.d_tag == DT_NULL)
				return -ENOENT;
		}
		if (rc)
			return rc;
	}
	return -ENOENT;
}

int elf_soname(int fd, char *out, size_t bytes)
{
	struct elf_facts facts;
	uint64_t strings = 0, at = 0, name = 0;
	Elf64_Ehdr elf;
	ssize_t got;
	int rc = elf_read(fd, &facts);

	if (!rc && !elf_is_ours(&facts))
		rc = -ENOEXEC;
	if (!rc)
		rc = read_at(fd, &elf, sizeof(elf), 0);
	if (!rc)
		rc = dynamic_value(fd, &elf, DT_SONAME, &name);
	if (!rc)
		rc = dynamic_value(fd, &elf, DT_STRTAB, &strings);
	if (!rc)
		rc = offset_of(fd, &elf, strings, &at);
	if (rc)
		return rc;
	got = at + name <= INT64_MAX ? pread(fd, out, bytes, (off_t)(at + name)) : 0;
	return got < 0 ? -errno : memchr(out, '\0', (size_t)got) ? 0 : -ENOENT;
}

bool elf_is_ours(const struct elf_facts *facts)
{
	return facts->bits == 64 && !facts->big_endian && facts->machine == OUR_MACHINE;
}

const char *elf_machine_name(const struct elf_facts *facts)
{
	switch (facts->machine) {
	case EM_386:
		return "32-bit x86";
	case EM_X86_64:
		return facts->bits == 64 ? "x86_64" : "x32";
	case EM_ARM:
		return "32-bit ARM";
	case EM_AARCH64:
		return "aarch64";
	case EM_RISCV:
		return "RISC-V";
	case EM_PPC64:
		return "POWER";
	case EM_S390:
		return "S/390";
	case EM_MIPS:
		return "MIPS";
	default:
		return "another";
	}
}
