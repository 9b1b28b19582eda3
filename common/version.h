/* SPDX-License-Identifier: MIT */
/* The version, once; CMakeLists.txt reads it from here. */
#ifndef ZC_COMMON_VERSION_H
#define ZC_COMMON_VERSION_H

#define ZC_VERSION "0.1.0"

#endif
