/* SPDX-License-Identifier: MIT */
#include "rdma/lane_record.h"

struct lane_move lane_find_move(const struct lane *lane, uint64_t from, uint64_t to)
{
	struct lane_move move = { LANE_NO_MOVE, 0, from };

	for (size_t left = to - from; left >= sizeof(struct record) && left <= lane->bytes && from % RECORD_ALIGN == 0;
	     left = to - from) {
		struct record record = *(volatile struct record *)record_at(lane, from);
		uint64_t length = record_length(record);

		if (length > left - sizeof(record))
			break;
		from += sizeof(record) + length;
		if (record.kind == RECORD_TAKEOVER)
			move = (struct lane_move){ LANE_TAKEOVER, 0, from };
		else if (record.kind == RECORD_SWITCH)
			move = (struct lane_move){ LANE_SWITCH, record.bytes, from };
	}
	return move;
}
