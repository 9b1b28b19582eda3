/* SPDX-License-Identifier: MIT */
/*
 * What the two ends say to each other beside the measured bytes. Each run of a client is a session: one control
 * connection, over which it tells its options (HELLO, answered by WELCOME or REFUSED), when the measured part begins
 * (START, answered by STARTED) and ends (STOP, answered by RESULT); and the data connections, which begin with a frame
 * DATA that names the session and then carry nothing but the tool's bytes, until the server's verdict at their end.
 * A frame is a header in network byte order and up to FRAME_BYTES_MAX bytes of JSON. Everything read here is checked:
 * whoever can connect can write anything.
 */
#ifndef ZC_TOOLS_FRAME_H
#define ZC_TOOLS_FRAME_H

#include <jansson.h>
#include <stdint.h>

#include "apps/tools/fault.h"

#define FRAME_PROTOCOL 1
#define FRAME_BYTES_MAX 65536u

enum frame_kind {
	FRAME_HELLO = 1,
	FRAME_WELCOME,
	FRAME_REFUSED,
	FRAME_START,
	FRAME_STARTED,
	FRAME_STOP,
	FRAME_RESULT,
	FRAME_DATA,
	FRAME_KINDS,
};

/* Sends a frame; takes `body` over (NULL: an empty object). Returns 0 or -errno. */
int frame_send(int fd, enum frame_kind kind, json_t *body, struct fault *fault);

/*
 * Receives a frame. Returns its kind (*body is the caller's), 0 at the peer's end of file between frames, or -errno:
 * -EPROTO for what is no frame, -EPROTONOSUPPORT for one of another version, which `fault` then names.
 */
int frame_receive(int fd, json_t **body, struct fault *fault);

/* Receives a frame that has to be of this kind. Returns 0 or -errno; a REFUSED is told with the peer's reason. */
int frame_expect(int fd, enum frame_kind kind, json_t **body, struct fault *fault);

#endif
