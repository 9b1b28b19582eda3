/* SPDX-License-Identifier: MIT */
/*
 * Memory that a receive offers to its peer's device (rdma/verbs_sink.c, preload/far_sink.c) for the model checker spin: receives that wait, and
 * end by a signal at any time; a program that sends, and fills what is offered; and the devices, which carry what each end posts in order, whenever they
 * like. Checked: nothing is written to memory that its program has back, and no receive waits for ever for one that does not come.
 *
 * With -DCRASH the sender stops anywhere, and the receive gives the queue pair up.
 *
 * Each MUTANT_ definition breaks one rule, and tests/model/check expects the checker to find it.
 */
#define RECEIVES 3
#define RECORDS 2

mtype = { OFFER, REVOKE, ASK, FILL, RECORD };

/* What is posted, and not carried out yet: by the receiving end, by the sending one. */
chan by_receiver = [4] of { mtype, byte, byte };
chan by_sender = [4] of { mtype, byte };

/* The sender's memory: what is offered and for which place of the ring, what was revoked, what it claims. */
byte offered = 0, place = 0, revoked = 0, claimed = 0;
byte put = 0;			/* records */

/* The receiver's. */
byte came = 0;			/* records */
bool asks = false;		/* a READ is under way */
bool answered = false;		/* it has come back: with this */
byte answer = 0;
bool has_it_back[RECEIVES + 1];	/* the program, its memory */
bool broken = false;		/* the queue pair */
bool has_stopped = false;		/* the sender */

proctype receivers_device()
{
	byte number, at;

	do
	:: atomic { by_receiver?OFFER(number, at) -> offered = number; place = at }
	:: atomic { by_receiver?REVOKE(number, at) -> revoked = number }
	:: atomic { by_receiver?ASK(number, at) -> answer = claimed; answered = true; asks = false }
	:: timeout -> break
	od
}

proctype senders_device()
{
	byte number;

	do
	:: atomic {
		by_sender?FILL(number) ->
		assert(broken || !has_it_back[number])
	   }
	:: atomic { by_sender?RECORD(number) -> came = (broken -> came : came + 1) }
	:: timeout -> break
	od
}

proctype receiver()
{
	byte i = 1, seen;

	do
	:: i <= RECEIVES && !broken ->
#ifndef MUTANT_OFFERS_BEFORE_THE_ANSWER
		!asks;				/* of the offer before: its answer would be taken for this one's */
#endif
		seen = came;			/* nothing is there */
		by_receiver!OFFER(i, seen);
		if
		:: came != seen			/* whatever it is, the offer is over */
		:: true ->			/* a signal */
			if
			:: came != seen
			:: else ->
				answered = false;
				asks = true;
#ifdef MUTANT_ASKS_FIRST
				by_receiver!ASK(i, 0);
				by_receiver!REVOKE(i, 0);
#else
				by_receiver!REVOKE(i, 0);
				by_receiver!ASK(i, 0);
#endif
				if
				:: answered -> skip
				:: came != seen -> skip
#ifdef CRASH
				:: broken = true
#endif
				fi;
#ifndef MUTANT_DOES_NOT_WAIT
				if
				:: !broken && came == seen && answer == i ->
					if
					:: came != seen
#ifdef CRASH
					:: has_stopped -> broken = true
#endif
					fi
				:: broken || came != seen || answer != i -> skip
				fi
#endif
			fi
		fi;
		has_it_back[i] = true;
		i++
	:: else -> break
	od
}

proctype sender()
{
	byte number, filled = 0;
	bool fills;

	do
	:: put < RECORDS ->
#ifdef CRASH
		if
		:: has_stopped = true; break
		:: true
		fi;
#endif
		fills = false;
		atomic { number = offered; fills = (number != 0 && number != filled && revoked != number
#ifndef MUTANT_ANY_PLACE
			&& place == put
#endif
			) };
		if
		:: fills ->
			claimed = number;
#ifndef MUTANT_LOOKS_ONCE
			atomic {
				if
				:: revoked == number || offered != number -> fills = false
				:: else
				fi
			};
			if
			:: !fills -> claimed = 0
			:: else
			fi
#endif
		:: else
		fi;
#ifdef CRASH
		if
		:: has_stopped = true; break
		:: true
		fi;
#endif
		if
		:: fills -> filled = number; by_sender!FILL(number)
		:: else
		fi;
		by_sender!RECORD(0);
		put++
	:: else -> break
	od
}

init
{
	atomic {
		run receivers_device();
		run senders_device();
		run receiver();
		run sender()
	}
}
