/* SPDX-License-Identifier: MIT */
#include "apps/tools/frame.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "apps/tools/option.h"
#include "apps/tools/stream.h"

#define MAGIC 0x7a637466u /* "zctf" */

struct header {
	uint32_t magic;
	uint16_t protocol;
	uint16_t kind;
	uint32_t bytes;
};

int frame_send(int fd, enum frame_kind kind, json_t *body, struct fault *fault)
{
	struct header header = { htonl(MAGIC), htons(FRAME_PROTOCOL), htons((uint16_t)kind), 0 };
	struct stream stream = { .fd = fd, .wait = WAIT_BLOCKING, .epoll = -1 };
	char *text = body ? json_dumps(body, JSON_COMPACT) : strdup("{}");
	struct iovec iov[2] = { { &header, sizeof(header) }, { text, text ? strlen(text) : 0 } };
	size_t done;
	int rc;

	json_decref(body);
	if (!text)
		return fault_errno(fault, ENOMEM, "no memory for a frame");
	header.bytes = htonl((uint32_t)iov[1].iov_len);
	rc = stream_push(&stream, CALL_SENDMSG, iov, 2, &done);
	free(text);
	return rc ? fault_errno(fault, -rc, "the peer is gone") : 0;
}

static int check_header(struct header *header, struct fault *fault)
{
	header->protocol = ntohs(header->protocol);
	header->kind = ntohs(header->kind);
	header->bytes = ntohl(header->bytes);
	if (header->magic != htonl(MAGIC))
		return fault_set(fault, EPROTO, "the peer is no tool of zc: it sent something else than a hello");
	if (header->protocol != FRAME_PROTOCOL)
		return fault_set(fault, EPROTONOSUPPORT,
				 "the peer speaks version %u of the tools' protocol, this end version %u",
				 header->protocol, FRAME_PROTOCOL);
	if (!header->kind || header->kind >= FRAME_KINDS || header->bytes > FRAME_BYTES_MAX)
		return fault_set(fault, EPROTO, "the peer sent a malformed frame (kind %u, %u bytes)", header->kind,
				 header->bytes);
	return 0;
}

static int receive_body(struct stream *stream, uint32_t bytes, json_t **body, struct fault *fault)
{
	char *text = malloc(bytes + 1u);
	size_t done;
	int rc;

	if (!text)
		return fault_errno(fault, ENOMEM, "no memory for a frame");
	rc = stream_receive(stream, CALL_RECV, text, bytes, &done);
	*body = rc ? NULL : json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
	free(text);
	if (rc)
		return fault_set(fault, rc > 0 ? EPIPE : -rc, "the peer closed within a frame, after %zu of %u bytes",
				 done, bytes);
	if (!json_is_object(*body)) {
		json_decref(*body);
		*body = NULL;
		return fault_set(fault, EPROTO, "the peer sent a frame that is no JSON object");
	}
	return 0;
}

int frame_receive(int fd, json_t **body, struct fault *fault)
{
	struct stream stream = { .fd = fd, .wait = WAIT_BLOCKING, .epoll = -1 };
	struct header header;
	size_t done;
	int rc = stream_receive(&stream, CALL_RECV, &header, sizeof(header), &done);

	*body = NULL;
	if (rc > 0 && !done)
		return 0;
	if (rc > 0)
		return fault_set(fault, EPIPE, "the peer closed within a frame, after %zu bytes", done);
	if (rc < 0)
		return fault_errno(fault, -rc, "the connection broke");
	rc = check_header(&header, fault);
	if (!rc)
		rc = receive_body(&stream, header.bytes, body, fault);
	return rc ? rc : header.kind;
}

int frame_expect(int fd, enum frame_kind kind, json_t **body, struct fault *fault)
{
	const char *why;
	int rc = frame_receive(fd, body, fault);

	if (rc == (int)kind)
		return 0;
	if (rc < 0)
		return rc;
	if (!rc)
		return fault_set(fault, EPIPE, "the server is gone");
	why = json_string_value(json_object_get(*body, "why"));
	if (rc == FRAME_REFUSED)
		fault_set(fault, ECONNREFUSED, "the server refuses: %.300s", why ? why : "without a reason");
	else
		fault_set(fault, EPROTO, "the server sent frame %d where %d was due", rc, kind);
	json_decref(*body);
	*body = NULL;
	return -fault->code;
}
