/* SPDX-License-Identifier: MIT */
#include "fire.h"

#include <string.h>

uint64_t fire_mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

uint64_t fire_draw(uint64_t *random)
{
	uint64_t drawn = fire_mix(*random);

	*random += 0x9e3779b97f4a7c15u;
	return drawn;
}

uint64_t fire_below(uint64_t *random, uint64_t bound)
{
	return fire_draw(random) % bound;
}

size_t fire_size(uint64_t *random, size_t most)
{
	unsigned int bits = 0;
	size_t size;

	while (bits < 40 && most >> bits)
		bits++;
	size = 1 + fire_below(random, (uint64_t)1 << fire_below(random, bits + 1));
	return size < most ? size : most;
}

/* Any piece of the stream can be made or checked by itself, by whoever goes on with it. */
void stream_fill(uint64_t key, uint64_t position, uint8_t *data, size_t bytes)
{
	while (bytes) {
		uint64_t word = fire_mix(key + position / 8);
		size_t from = position % 8, part = 8 - from < bytes ? 8 - from : bytes;

		memcpy(data, (uint8_t *)&word + from, part);
		data += part;
		position += part;
		bytes -= part;
	}
}

ssize_t stream_compare(uint64_t key, uint64_t position, const uint8_t *data, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		uint64_t word = fire_mix(key + (position + done) / 8);
		size_t from = (position + done) % 8, part = 8 - from < bytes - done ? 8 - from : bytes - done;

		if (memcmp(data + done, (uint8_t *)&word + from, part)) {
			while (data[done] == ((uint8_t *)&word)[from]) {
				done++;
				from++;
			}
			return (ssize_t)done;
		}
		done += part;
	}
	return -1;
}
