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
 *  - TAKEOVER (TCP to ring) only when the consumer has seen the last SWITCH and is in no receive of raw bytes, and with the position from which the ring goes
 *    on. Else one read of the TCP stream can return doorbells, or raw bytes that belong behind ring bytes. So the consumer sleeps
 *    in a peek, says that it will take raw bytes, looks at the ring, and takes them, none beyond a TAKEOVER that it has seen; the
 *    producer says that it will take over, and looks whether the consumer is at it.
 *  - A consumer arms, looks again, and then sleeps; a producer publishes, and then looks whether it must ring.
 * (Each MUTANT_ definition breaks one rule; tests/model/check expects the checker to find it.)
 *  - A SWITCH rings no doorbell of its own: it tells how many were sent before it, and raw bytes follow.
 *  - A consumer may leave the ring for good at any time: it says that it leaves, and looks where the ring ends; there it takes
 *    its bell away, and behind the doorbells that were rung until then raw bytes follow. A producer looks after each record
 *    whether the consumer leaves, decides the end if nobody has, takes back what is behind it, and rings for what is before it,
 *    since others may sleep for that. Before it takes the bell it says that it rings.
 *  - A doorbell that does not fit the TCP buffer may be left out: what fills the buffer wakes the consumer, who looks again.
 */
#ifndef BYTES
#define BYTES 5
#endif
#define TURNS 3		/* TAKEOVERs: bounded so that the state space is */
#define ROOM 2		/* DATA records in the ring; TAKEOVER and SWITCH have a place of their own */
#define BELL 255
#define END 254
#define NONE 253

mtype = { DATA, TAKEOVER, SWITCH };

chan ring = [ROOM + 2] of { mtype, byte };
chan tcp = [3] of { byte };

bool armed = false;	/* by the consumer, before it sleeps */
byte received = 0;	/* by the consumer: raw and ring bytes so far */
bool raw = false;	/* by the consumer: in a receive of raw bytes */
byte limit = NONE;	/* by the consumer: of raw bytes: a TAKEOVER has been seen, and waits for those before it */
bool from_ring = false;	/* by the consumer: the next byte is in the ring */
byte next = 0;		/* by the producer: the stream's position */
bool intent = false;	/* by the producer: about to take over */
byte bells = 0;		/* by the producer: doorbells sent */
bool ringing = false;	/* by the producer: a doorbell may be on its way */
byte puts = 0;		/* by the producer: records so far */
byte leave = 0;		/* by the consumer: 1 leaves, 2 has left */
byte end = 0;		/* by both, once: records that are for a consumer that leaves */
bool decided = false;
bool gone = false;	/* the producer's end, clean or not */

inline put(kind, value)
{
	atomic { ring ! kind, value; puts++ }
}

/* By whoever comes first. */
inline decide_end(records)
{
	atomic {
		if
		:: !decided -> end = records; decided = true
		:: else -> skip
		fi
	}
}

inline ring_bell()
{
	if
	:: armed ->
#ifndef MUTANT_RINGING_LATE
		ringing = true;
#endif
		if
		:: atomic { armed -> armed = false };
#ifdef MUTANT_RINGING_LATE
			ringing = true;
#endif
#ifdef CRASH
			if
			:: true -> skip
			:: true -> goto dead
			fi;
#endif
			if
			:: atomic { nfull(tcp) -> tcp ! BELL }; bells++
			:: full(tcp) -> skip
			fi
		:: !armed -> skip
		fi;
		ringing = false
	:: else -> skip
	fi
}

/* After a record with so many bytes: does the consumer have it? */
inline look_at_presence(bytes)
{
	if
#ifdef MUTANT_PRESENCE_BLIND
	:: true -> ring_bell()
#else
	:: leave == 0 -> ring_bell()
	:: leave != 0 ->
		decide_end(puts);
		on_ring = false;
		if
		:: puts > end -> next = next - bytes
		:: else -> ring_bell()		/* others may sleep for it */
		fi
#endif
	fi
}

active proctype producer()
{
	byte takeovers = 0;
	bool on_ring = false;
	bool waited = false;

	do
	:: next < BYTES && !on_ring ->			/* raw */
		tcp ! next;
		next++
#ifdef MUTANT_TAKEOVER_AGAIN
	:: next < BYTES && !on_ring && takeovers < TURNS ->
#else
	:: next < BYTES && !on_ring && empty(ring) && !from_ring && limit == NONE && takeovers < TURNS &&
	   leave == 0 ->
#endif
		intent = true;
		if
#ifdef CRASH
		:: true -> goto dead
#endif
#ifdef MUTANT_TAKEOVER_BLIND
		:: true ->
#else
		:: !raw ->
#endif
			takeovers++;
			on_ring = true;
			put(TAKEOVER, next);
			intent = false;
			look_at_presence(0)
#ifndef MUTANT_TAKEOVER_BLIND
		:: raw -> intent = false
#endif
		fi
	:: next < BYTES && on_ring && len(ring) < ROOM ->
		put(DATA, next);
		next++;
		look_at_presence(1)
	:: on_ring ->
		on_ring = false;
		put(SWITCH, bells)		/* no doorbell: the raw bytes that follow wake as well */
	:: next > 0 && !waited ->			/* a request: what was sent has to come without anything after it */
		received == next;
		waited = true
	:: next == BYTES -> break
#ifdef CRASH
	:: break					/* killed: the kernel ends the stream */
#endif
	od;
dead:
	tcp ! END;
	gone = true
}

/* To the consumer. */
#define SOMETHING ((leave == 2 && taken < end) || (leave != 2 && len(ring) > 0))

active proctype consumer()
{
	byte taken = 0;		/* records */
	byte expected = 0;
	byte seen = 0;		/* doorbells */
	byte skip_bells = 0;
	byte value;
	byte most;
	bool announced;
	mtype kind;
	bool ended = false;

	do
	:: ended && !SOMETHING -> break
	:: atomic { limit == expected -> limit = NONE; from_ring = true; skip_bells = 0 }
	:: SOMETHING && limit == NONE ->
		atomic {			/* seen by the producer when it is done */
		ring ? kind, value;
		taken++;
		if
		:: kind == DATA ->
			assert(from_ring);
			assert(value == expected);
			expected++;
			received = expected
		:: kind == TAKEOVER ->
			assert(!from_ring);
#ifdef MUTANT_TAKEOVER_AT_ONCE
			from_ring = true;
			skip_bells = 0
#else
			limit = value
#endif
		:: kind == SWITCH ->
			assert(from_ring);
			from_ring = false;
			skip_bells = value - seen
		fi
		}
	:: leave == 0 && !ended ->
#ifdef MUTANT_LEAVE_LATE
		most = puts;
		leave = 1;
#else
		leave = 1;
		most = puts;
#endif
#ifdef MUTANT_LEAVE_ALONE
		end = most;
#else
		decide_end(most);
#endif
		atomic { leave = 2; most = 0 }
#ifndef MUTANT_LEAVE_ARMED
	:: leave == 2 && taken == end && from_ring && armed -> armed = false
#endif
#ifdef MUTANT_LEAVE_BLIND
	:: leave == 2 && taken == end && from_ring && !armed ->
#elif defined(MUTANT_LEAVE_ARMED)
	:: leave == 2 && taken == end && from_ring && !ringing ->
#else
	:: leave == 2 && taken == end && from_ring && !armed && !ringing ->
#endif
		from_ring = false;
#ifndef MUTANT_LEAVE_UNSTRIPPED
		skip_bells = bells - seen
#endif
	:: limit != expected && (!SOMETHING || limit != NONE) && !ended ->	/* arm, look again, sleep */
#ifndef MUTANT_NEVER_ARMED
		if
		:: leave == 0 -> armed = true
		:: else -> skip			/* the stream itself wakes */
		fi;
#endif
		if
#ifndef MUTANT_NO_SECOND_LOOK
		:: limit == expected || (SOMETHING && limit == NONE) -> skip
#endif
#ifdef MUTANT_NO_SECOND_LOOK
		:: true ->
#else
		:: limit != expected && (!SOMETHING || limit != NONE) ->
#endif
			nempty(tcp);				/* in a peek */
			if
			:: from_ring ->
				/* Takes no more than the doorbells sent. */
				if
				:: bells > seen -> tcp ? value; assert(value == BELL); seen++
				:: bells <= seen && ringing && tcp ? [BELL] -> tcp ? BELL; seen++
				:: bells <= seen && tcp ? [END] -> tcp ? END; ended = true
				:: else -> assert(len(ring) > 0 || leave == 2)
				fi
			:: else ->
				raw = true;
#ifndef MUTANT_SENT_LATE
				most = next;		/* before the looks: what is certain to be raw if a TAKEOVER comes */
#endif
#ifdef MUTANT_INTENT_BLIND
				announced = false;
#else
				announced = leave == 0 && intent;
#endif
				if
#ifdef MUTANT_RAW_BLIND
				:: true ->
#else
				:: limit == NONE && SOMETHING -> most = expected
				:: limit != NONE || !SOMETHING ->
#endif
#ifdef MUTANT_SENT_LATE
					most = next;
#endif
					if
					:: limit == NONE && announced -> skip
					:: else -> most = NONE
					fi
				fi;
				if
				:: most <= expected ->		/* nothing is certain, but the end */
					raw = false;
					if
					:: tcp ? [END] && !SOMETHING -> ended = true
					:: else -> skip
					fi
				:: else ->
					do
					:: most == expected -> break
#ifndef MUTANT_RAW_BEYOND
					:: limit == expected -> break
#endif
					:: limit != expected && most != expected -> tcp ? value;
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
				fi;
				atomic { most = 0; announced = false }
			fi
		fi
	od;
	assert(ended);
#ifndef CRASH
	assert(expected == BYTES)
#endif
}
