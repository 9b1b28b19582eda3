/* SPDX-License-Identifier: MIT */
#include "preload/away.h"

#define SPELL_FIRST 64
#define SPELL_MAX 4096
#define SHORT_PUTS 16 /* a stay on the ring that is not worth its beginning and end */
#define SHORT_MAX 4
#define LONG_PUTS 256 /* one that is */

static void go(struct away *away)
{
	away->spell = away->spell ? away->spell * 2 : SPELL_FIRST;
	if (away->spell > SPELL_MAX)
		away->spell = SPELL_MAX;
	away->left = away->spell;
	away->answered = 0;
	away->interrupted = 0;
}

void away_ends(struct away *away)
{
	away->puts = 0;
}

bool away_at_put(struct away *away)
{
	uint32_t came = atomic_load_explicit(&away->came, memory_order_relaxed);

	if (came)
		came = atomic_exchange_explicit(&away->came, 0, memory_order_relaxed);
	if (away->puts < LONG_PUTS && ++away->puts == LONG_PUTS)
		away->spell = 0;
	if (came & AWAY_CAME_BY_RING)
		away->answered = 0;
	else if (came)
		away->answered += AWAY_ANSWERED_RAW;
	else if (away->answered)
		away->answered--;
	if (away->answered < AWAY_ANSWERED_MAX)
		return false;
	go(away);
	return true;
}

void away_interrupted(struct away *away)
{
	if (away->puts >= SHORT_PUTS)
		away->interrupted = 0;
	else if (++away->interrupted >= SHORT_MAX)
		go(away);
}
