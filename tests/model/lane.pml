/* SPDX-License-Identifier: MIT */
/*
 * A lane's protocol of switch, arm and doorbell, for the model checker spin.
 *
 * One producer, one consumer, a ring, a TCP stream. The producer moves the lane between TCP and the ring at will, within the
 * rules; the consumer sleeps in the kernel (a read of the TCP stream) whenever it finds nothing. Checked: every byte arrives
 * once and in order, also when the producer ends or dies at any point; the consumer never sleeps while bytes wait for it
 * (an end state with bytes left is invalid); TCP bytes are never taken for doorbells or the other way round.
 *
 * Rules that the checker was needed for:
 *  - TAKEOVER (TCP to ring) only when the consumer has received every raw byte and is in no receive of raw bytes. Else one read
 *    of the TCP stream can return doorbells, or raw bytes that belong behind ring bytes. So the consumer sleeps in a peek, says
 *    that it will take raw bytes, looks at the ring, and takes them; the producer says that it will take over, and looks whether
 *    the consumer is at it.
 *  - A consumer arms, looks again, and then sleeps; a producer publishes, and then looks whether it must ring.
 * (Each MUTANT_ definition breaks one rule; tests/model/check expects the checker to find it.)
 *  - A SWITCH rings no doorbell of its own: it tells how many were sent before it, and raw bytes follow.
 *  - A doorbell that does not fit the TCP buffer may be left out: what fills the buffer wakes the consumer, who looks again.
 */
#ifndef BYTES
#define BYTES 5
#endif
#define TURNS 4		/* TAKEOVERs: bounded so that the state space is */
#define ROOM 2		/* DATA records in the ring; TAKEOVER and SWITCH have a place of their own */
#define BELL 255
#define END 254

mtype = { DATA, TAKEOVER, SWITCH };

chan ring = [ROOM + 2] of { mtype, byte };
chan tcp = [3] of { byte };

bool armed = false;	/* by the consumer, before it sleeps */
byte received = 0;	/* by the consumer: raw and ring bytes so far */
bool raw = false;	/* by the consumer: in a receive of raw bytes */
bool intent = false;	/* by the producer: about to take over */
byte bells = 0;		/* by the producer: doorbells sent */
bool gone = false;	/* the producer's end, clean or not */

inline ring_bell()
{
	if
	:: atomic { armed -> armed = false };
		if
		:: atomic { nfull(tcp) -> tcp ! BELL; bells++ }
		:: full(tcp) -> skip
		fi
	:: else -> skip
	fi
}

active proctype producer()
{
	byte next = 0;
	byte takeovers = 0;
	bool on_ring = false;

	do
	:: next < BYTES && !on_ring ->			/* raw */
		tcp ! next;
		next++
#ifdef MUTANT_TAKEOVER_EARLY
	:: next < BYTES && !on_ring && takeovers < TURNS ->
#else
	:: next < BYTES && !on_ring && received == next && takeovers < TURNS ->
#endif
		intent = true;
		if
#ifdef MUTANT_TAKEOVER_BLIND
		:: true ->
#else
		:: !raw ->
#endif
			takeovers++;
			on_ring = true;
			ring ! TAKEOVER, 0;
			intent = false;
			ring_bell()
#ifndef MUTANT_TAKEOVER_BLIND
		:: raw -> intent = false
#endif
		fi
	:: next < BYTES && on_ring && len(ring) < ROOM ->
		ring ! DATA, next;
		next++;
		ring_bell()
	:: on_ring ->
		on_ring = false;
		ring ! SWITCH, bells		/* no doorbell: the raw bytes that follow wake as well */
	:: next == BYTES -> break
#ifdef CRASH
	:: break					/* killed: the kernel ends the stream */
#endif
	od;
	tcp ! END;
	gone = true
}

active proctype consumer()
{
	byte expected = 0;
	byte seen = 0;		/* doorbells */
	byte skip_bells = 0;
	byte value;
	mtype kind;
	bool on_ring = false;
	bool ended = false;

	do
	:: ended && empty(ring) -> break
	:: nempty(ring) ->
		ring ? kind, value;
		if
		:: kind == DATA ->
			assert(on_ring);
			assert(value == expected);
			expected++;
			received = expected
		:: kind == TAKEOVER ->
			assert(!on_ring);		/* and so nothing raw is on its way */
			on_ring = true;
			skip_bells = 0		/* still in the stream: counted as seen when they are met */
		:: kind == SWITCH ->
			assert(on_ring);
			on_ring = false;
			skip_bells = value - seen
		fi
	:: empty(ring) && !ended ->			/* arm, look again, sleep */
#ifndef MUTANT_NEVER_ARMED
		armed = true;
#endif
		if
#ifndef MUTANT_NO_SECOND_LOOK
		:: nempty(ring) -> skip
#endif
#ifdef MUTANT_NO_SECOND_LOOK
		:: true ->
#else
		:: empty(ring) ->
#endif
			nempty(tcp);				/* in a peek */
			if
			:: on_ring ->
				/* Takes no more than the doorbells sent. */
				if
				:: bells > seen && tcp ? [BELL] -> tcp ? BELL; seen++
				:: tcp ? [END] -> tcp ? END; ended = true
				:: else -> assert(nempty(ring))
				fi
			:: else ->
				raw = true;
				if
#ifdef MUTANT_RAW_BLIND
				:: true ->
#else
				:: intent || nempty(ring) -> raw = false
				:: !intent && empty(ring) ->
#endif
					do
					:: tcp ? value;
						if
						:: value == END -> ended = true; break
						:: value == BELL ->
							seen++;
							assert(skip_bells > 0);
							skip_bells--
						:: else ->
							assert(skip_bells == 0);
							assert(value == expected);
							expected++;
							received = expected
						fi;
						if
						:: nempty(tcp) -> skip
						:: true -> break
						fi
					od;
					raw = false
				fi
			fi
		fi
	od;
	assert(ended);
#ifndef CRASH
	assert(expected == BYTES)
#endif
}
