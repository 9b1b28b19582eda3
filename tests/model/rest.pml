/* SPDX-License-Identifier: MIT */
/*
 * Sleeping by a device (preload/far_rest.c) for the model checker spin: a peer whose notices come as completions, some of which want
 * an answer; a thread of the program that takes what has come, rests, and goes elsewhere in the end; another one that takes
 * completions, and sometimes events, as a send does; and the agent, who answers for a program that is elsewhere, and leaves the
 * connection to one that rests again and again. Checked: nobody sleeps for ever while there is something for him, and each wish is answered.
 *
 * A device tells once for each time that it is asked. `armed` is what the library knows of that.
 *
 * Each MUTANT_ definition breaks one rule, and tests/model/check expects the checker to find it.
 */
#define NOTICES 4
#define WISH 2			/* this one wants an answer: a move of the lane, or a doorbell */

mtype = { NO, SOLICITED, ANY };

mtype asked = SOLICITED;	/* the device: by the agent, at first */
bool armed = false;		/* for ANY, and its event was not taken */
byte came = 0;			/* notices */
byte known = 0;			/* of them, those whose completions were taken */
byte taken = 0;			/* by the program */
bool answered = false;
byte events = 0;

bool resting = false, used = false, left = false, ticks = false;
bool watched = true;		/* the agent hears of events */
bool kick = false;
bool elsewhere = false;		/* the program receives no more */

inline take_completions()
{
	known = came
}

/* What the thread does that looks at the ring: the moves in it are answered there. */
inline look()
{
	take_completions();
	if
	:: known >= WISH -> answered = true
	:: else
	fi
}

/* Behind an event that was taken. */
inline took_event()
{
	used = true;
#ifndef MUTANT_SILENT_TAKER
	if
	:: !left -> kick = true
	:: else
	fi
#endif
}

inline took_notices()
{
	if
	:: left && known >= WISH && !answered -> kick = true
	:: else
	fi
}

proctype peer()
{
	byte i = 0;

	do
	:: i < NOTICES ->
		i++;
		atomic {
			came++;
			if
			:: asked == ANY || (asked == SOLICITED && came == WISH) ->
				events++;
				asked = NO
			:: else
			fi
		}
	:: else -> break
	od
}

proctype receiver()
{
	bool told;

	do
	:: taken < NOTICES ->
		atomic { look() };
		if
		:: taken < known -> taken++; goto next
		:: else
		fi;
		/* rest() and what is found behind it, under one lock */
		atomic {
			resting = true;
			used = true;
			if
			:: !armed -> asked = ANY; armed = true
			:: else
			fi
		}
#ifndef MUTANT_NO_SECOND_LOOK
		atomic { look() };
#endif
		told = false;
		if
		:: taken < known
		:: else -> events > 0; told = true
		fi;
		atomic {
			if
			:: told -> events--; armed = false
			:: else
			fi
		}
		resting = false;
		if
		:: told -> atomic { took_event() }
		:: else -> used = true
		fi;
#ifndef MUTANT_NO_TICK
		if
		:: left && !ticks -> kick = true
		:: else
		fi;
#endif
next:		skip
	:: elsewhere = true -> break
	:: taken == NOTICES -> elsewhere = true; break
	od
}

/* A send: takes completions, or waits for a moment and takes an event. */
proctype sender()
{
	byte i = 0;

	do
	:: i < 2 ->
		i++;
		if
		:: atomic { take_completions(); took_notices() }
		:: atomic {
			if
			:: !armed -> asked = ANY; armed = true
			:: else
			fi;
			take_completions()
		   };
		   if
#ifdef MUTANT_TAKES_ANOTHERS_EVENT
		   :: atomic { events > 0 -> events--; armed = false }; atomic { took_event(); took_notices() }
#else
		   :: atomic { events > 0 && !resting -> events--; armed = false }; atomic { took_event(); took_notices() }
#endif
		   :: true	/* its time is over */
		   fi
		fi
	:: else -> break
	od
}

proctype agent()
{
	bool again;
end:
	do
	:: atomic { kick -> kick = false } -> goto serve
	:: atomic { events > 0 && watched -> watched = false } -> goto serve
	:: atomic { ticks && left && !resting ->
		if
		:: used -> used = false; goto decide
		:: else -> goto serve
		fi
	   }
serve:
		if
		:: resting || used -> left = true; goto decide
		:: else
		fi;
#ifndef MUTANT_LEFT_UNTIL_ARMED
		left = false;
#endif
		atomic {
			if
			:: events > 0 && !resting -> events = 0; armed = false
			:: else
			fi
		};
		atomic { look() };
		atomic {
			if
			:: !armed && asked == NO -> asked = SOLICITED
			:: else
			fi
		};
		/* What came before there was an event to come. */
		atomic { look() };
#ifdef MUTANT_LEFT_UNTIL_ARMED
		left = false;
#endif
		watched = true;
decide:
		again = left && !resting;
		ticks = again;
#ifndef MUTANT_TICKS_DECIDED_ONCE
		if
		:: !again -> again = left && !resting; ticks = again
		:: else
		fi;
#endif
		again = false
	od
}

init
{
	atomic {
		run peer();
		run receiver();
		run sender();
		run agent()
	}
	/* All is over: nobody may be asleep for what is there. */
	timeout ->
	assert(elsewhere);
	assert(answered || came < WISH)
}
