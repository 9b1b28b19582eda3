/* SPDX-License-Identifier: MIT */
#ifndef ZC_TESTS_FAR_SIGNALS_H
#define ZC_TESTS_FAR_SIGNALS_H

#include "far_stream.h"

extern int to_server[2]; /* a pipe */

void handler_server(struct stream *stream);
void handler_client(struct stream *stream, char *self);
void interrupted_server(struct stream *stream);
void interrupted_client(struct stream *stream, char *self);
void allocating_client(struct stream *stream, char *self);

#endif
