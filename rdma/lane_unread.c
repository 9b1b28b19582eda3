/* SPDX-License-Identifier: MIT */
/* What is unread in a lane, record by record. */
#include "rdma/avail.h"
#include "rdma/lane_record.h"
#include "rdma/source.h"

size_t lane_between(const struct lane *lane, uint64_t head, uint64_t tail, uint32_t taken)
{
	size_t bytes = 0;

	for (size_t left = tail - head;
	     left >= sizeof(struct record) && left <= lane->bytes && head % RECORD_ALIGN == 0; left = tail - head) {
		struct record record = record_read(lane, head);
		uint64_t length = record_length(record);

		if (length > left - sizeof(record) || (record.kind == RECORD_DATA && record.bytes < taken) ||
		    (record.kind == RECORD_AVAIL && avail_is_missing(lane, head)))
			break;
		bytes += record.kind == RECORD_DATA   ? record.bytes - taken :
			 record.kind == RECORD_SOURCE ? source_left(lane, record.bytes) :
			 record.kind == RECORD_AVAIL  ? avail_left(lane, head, taken) :
							0;
		taken = 0;
		head += sizeof(record) + length;
	}
	return bytes;
}
