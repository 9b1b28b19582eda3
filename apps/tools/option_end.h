/* SPDX-License-Identifier: MIT */
/* Every .def ends with this, so that the next user can define the rows anew. */
#undef TOOL_NUMBER
#undef TOOL_SIZE
#undef TOOL_DECIMAL
#undef TOOL_CHOICE
#undef TOOL_TEXT
#undef TOOL_FLAG
