/* SPDX-License-Identifier: MIT */
/* Makes the next included .def the fields of a struct. */
#define TOOL_NUMBER(flags, field, name, standard, min, max, word, help) uint64_t field;
#define TOOL_SIZE(flags, field, name, standard, min, max, word, help) uint64_t field;
#define TOOL_DECIMAL(flags, field, name, standard, min, max, word, help) double field;
#define TOOL_CHOICE(flags, field, name, standard, choices, help) unsigned int field;
#define TOOL_TEXT(flags, field, name, standard, word, help) const char *field;
#define TOOL_FLAG(flags, field, name, help) bool field;
