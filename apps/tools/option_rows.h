/* SPDX-License-Identifier: MIT */
/* Makes the next included .def rows of an option table. OPTION_FIELD(field) has to give a field's offset. */
#define TOOL_NUMBER(flags, field, name, standard, min, max, word, help)                                                \
	{ OPTION_NUMBER, flags, OPTION_FIELD(field), name, standard, min, max, word, NULL, help },
#define TOOL_SIZE(flags, field, name, standard, min, max, word, help)                                                  \
	{ OPTION_SIZE, flags, OPTION_FIELD(field), name, standard, min, max, word, NULL, help },
#define TOOL_DECIMAL(flags, field, name, standard, min, max, word, help)                                               \
	{ OPTION_DECIMAL, flags, OPTION_FIELD(field), name, standard, min, max, word, NULL, help },
#define TOOL_CHOICE(flags, field, name, standard, choices, help)                                                       \
	{ OPTION_CHOICE, flags, OPTION_FIELD(field), name, standard, 0, 0, choices, NULL, help },
#define TOOL_TEXT(flags, field, name, standard, word, help)                                                            \
	{ OPTION_TEXT, flags, OPTION_FIELD(field), name, 0, 0, 0, word, standard, help },
#define TOOL_FLAG(flags, field, name, help)                                                                            \
	{ OPTION_FLAG, flags, OPTION_FIELD(field), name, 0, 0, 0, NULL, NULL, help },
