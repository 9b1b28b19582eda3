/* SPDX-License-Identifier: MIT */
/* What case_memory.c wants of the shared object that it loads and unloads. */
#ifndef ZC_CONFORMANCE_PLUG_IN_H
#define ZC_CONFORMANCE_PLUG_IN_H

#define PLUG_IN_DATA "plug_in_data"
#define PLUG_IN_BYTES (256 * 1024) /* more than a send takes, wherever it begins in a page */

#endif
