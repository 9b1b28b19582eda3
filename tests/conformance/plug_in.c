/* SPDX-License-Identifier: MIT */
/* Variables that go away with the shared object that they are in. */
#include "plug_in.h"

extern char plug_in_data[PLUG_IN_BYTES];
__attribute__((visibility("default"), aligned(4096))) char plug_in_data[PLUG_IN_BYTES];
