/* SPDX-License-Identifier: MIT */
/*
 * Sources (rdma/source.h) for the model checker spin: a sender announces bytes in its program's memory, a receiver fetches
 * them, and at any moment the sender may keep them (copy, change the word, let the program write) or take the last one back
 * and send it by the ring. Either end may die at any point. Checked: the receiver has every byte once, in order and as it
 * was when it was announced; nobody waits for the other's next step; what died with the sender ends in a reset, and
 * nothing else does.
 *
 * A source has 2 bytes. There is one buffer and one slot per source modulo SLOTS; the program writes DIRT wherever it may.
 * The sender's moves are its own threads' as well: `keeper` is a fault's handler.
 *
 * Each MUTANT_ definition breaks one rule, and tests/model/check expects the checker to find it.
 */
#undef BYTES
#define BYTES 5			/* of the stream, two sources and one by the ring */
#define SLOTS 2
#define SOURCES 3		/* announced: bounded so that the state space is; the third one uses a slot again */
#define PER 2			/* bytes of a source */
#define DIRT 99
#define ROOM 3			/* records in the ring */

mtype = { FREE, ANNOUNCED, KEPT, WITHDRAWN };
mtype = { DATA, SOURCE };

/* The word of a slot: all of it is changed in one step. */
typedef slot_t {
	mtype state = FREE;
	byte number;
	byte taken
};
slot_t slot[SLOTS];
byte program[4];		/* the program's memory: slot s has 2s and 2s + 1 */
byte area[4];			/* in the segment */
bool owned[SLOTS];		/* the program may not write: guarded */

chan ring = [ROOM] of { mtype, byte };	/* DATA value, SOURCE number */
byte passed = 0;		/* the head, counted in sources */
bool sender_dead = false;	/* its memory is gone */
bool sender_done = false;
bool receiver_dead = false;
byte next_number = 0;
byte keeping = 0;		/* the sender's threads copy one at a time */

inline write_program(s)
{
	program[2 * s] = DIRT;		/* a GET may read between the two */
	program[2 * s + 1] = DIRT
}

/* Copy, then the word, then the program writes. */
inline keep(s)
{
	atomic { keeping == 0 -> keeping = 1 };
	if
	:: slot[s].state == ANNOUNCED && slot[s].taken < PER && owned[s] ->
		number = slot[s].number;
#ifdef MUTANT_WRITE_BEFORE_WORD
		area[2 * s] = program[2 * s];
		area[2 * s + 1] = program[2 * s + 1];
		write_program(s);
#endif
#ifdef MUTANT_WORD_BEFORE_COPY
		if
		:: atomic { slot[s].number == number && slot[s].state == ANNOUNCED -> slot[s].state = KEPT }
		:: else -> skip
		fi;
#endif
#ifndef MUTANT_WRITE_BEFORE_WORD
		area[2 * s] = program[2 * s];
		area[2 * s + 1] = program[2 * s + 1];
#endif
#ifndef MUTANT_WORD_BEFORE_COPY
		if
#ifdef MUTANT_KEEP_BLIND
		:: atomic { true -> slot[s].state = KEPT; slot[s].taken = 0 }
#else
		:: atomic { slot[s].number == number && slot[s].state == ANNOUNCED -> slot[s].state = KEPT }
#endif
		:: else -> skip
		fi;
#endif
		atomic { owned[s] = false; number = 0 };
		write_program(s)
	:: else -> skip
	fi;
	keeping = 0
}

/* A thread that writes to guarded memory. */
active proctype keeper()
{
	byte number;

	do
	:: !sender_done && !sender_dead ->
		if
		:: keep(0)
		:: keep(1)
		fi
	:: sender_done || sender_dead -> break
	od
}

active proctype sender()
{
	byte next = 0;		/* byte of the stream */
	byte s, number, taken;

	do
	:: next < BYTES && nfull(ring) ->		/* by the ring */
		atomic { ring ! DATA, next; next++ }
	:: next + PER <= BYTES && nfull(ring) && next_number < SOURCES &&
#ifdef MUTANT_SLOT_EARLY
	   true ->
#else
	   next_number - passed < SLOTS ->
#endif
		s = next_number % SLOTS;
		/* The last one of this slot is over: its memory is the program's again. */
		atomic { keeping == 0 -> keeping = 1 };
		atomic {			/* nobody looks yet, but for who is late: the number tells him */
			program[2 * s] = next;
			program[2 * s + 1] = next + 1;
			owned[s] = true;
			slot[s].number = next_number;
			slot[s].taken = 0;
			slot[s].state = ANNOUNCED
		};
		keeping = 0;
		atomic { ring ! SOURCE, next_number; next_number++; next = next + PER };
		if
		:: true -> skip
		:: true ->				/* nothing is behind it: take it back */
			if
#ifdef MUTANT_WITHDRAW_BLIND
			:: true ->
				taken = slot[s].taken;
				atomic { slot[s].state = WITHDRAWN };
				next = next - (PER - taken);
				owned[s] = false
#else
			:: atomic { slot[s].state == ANNOUNCED && slot[s].taken < PER ->
				taken = slot[s].taken;
				slot[s].state = WITHDRAWN };
				next = next - (PER - taken);
				owned[s] = false
#endif
			:: else -> skip
			fi
		fi;
		atomic { s = 0; taken = 0 }
	:: atomic { slot[0].state == ANNOUNCED && slot[0].taken == PER && owned[0] && keeping == 0 ->
			owned[0] = false; program[0] = DIRT; program[1] = DIRT }
	:: atomic { slot[1].state == ANNOUNCED && slot[1].taken == PER && owned[1] && keeping == 0 ->
			owned[1] = false; program[2] = DIRT; program[3] = DIRT }
	:: next == BYTES -> break
	:: receiver_dead -> break
#ifdef CRASH
	:: true -> atomic { sender_dead = true; break }
#endif
	od;
	if
	:: sender_dead -> skip
	:: else ->
		/* Closing: what is left is kept, and outlives the process. */
#ifndef MUTANT_EXIT_WITHOUT_KEEPING
		keep(0);
		keep(1);
#endif
		atomic { sender_done = true; sender_dead = true }
	fi
}

/* In one step of the receiver's program a GET: two reads of memory, at any distance. */
active proctype receiver()
{
	byte expected = 0;
	byte value, s, number, taken, a, b;
	mtype kind, state;
	bool reset = false;

	do
	:: atomic { nempty(ring) -> ring ? <kind, value> };
		if
		:: kind == DATA ->
			atomic { assert(value == expected); expected++; ring ? kind, value }
		:: kind == SOURCE ->
			s = value % SLOTS;
			atomic { number = slot[s].number; state = slot[s].state; taken = slot[s].taken };
			assert(number == value);
			if
			:: taken == PER || state == WITHDRAWN ->
				atomic { ring ? kind, value; passed++ }
			:: else ->
				if
				:: state == KEPT ->
					atomic { a = area[2 * s + taken]; b = area[2 * s + 1] }
				:: state == ANNOUNCED && !sender_dead ->
					a = program[2 * s + taken];
					b = program[2 * s + 1]
				:: state == ANNOUNCED && sender_dead ->
					if
					:: slot[s].state != ANNOUNCED -> goto again
					:: else -> reset = true
					fi
				fi;
				if
				:: reset -> break
				:: else -> skip
				fi;
				/* Claim one byte, or all: only if the word is as it was. */
				if
#ifdef MUTANT_CLAIM_BLIND
				:: atomic { true -> slot[s].taken = PER };
#else
				:: atomic { slot[s].number == number && slot[s].state == state && slot[s].taken == taken ->
					slot[s].taken = PER };
#endif
					assert(a == expected);
					expected++;
					if
					:: taken == 0 -> assert(b == expected); expected++
					:: else -> skip
					fi
#ifndef MUTANT_CLAIM_BLIND
				:: atomic { slot[s].number == number && slot[s].state == state && slot[s].taken == taken ->
					slot[s].taken = taken + 1 };
					assert(a == expected);
					expected++
				:: else -> skip		/* look again */
#endif
				fi
			fi
		fi;
again:		atomic { a = 0; b = 0; taken = 0; number = 0; s = 0; value = 0; state = FREE; kind = DATA }
	:: sender_dead && empty(ring) -> break
#ifdef CRASH
	:: true -> atomic { receiver_dead = true; break }
#endif
	od;
	if
	:: receiver_dead -> skip
	:: reset -> assert(!sender_done)		/* one that ends well leaves nothing in its memory */
	:: else ->
		if
		:: sender_done -> assert(expected == BYTES)
		:: else -> skip
		fi
	fi;
	receiver_dead = true
}
