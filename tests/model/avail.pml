/* SPDX-License-Identifier: MIT */
/*
 * Sources between hosts (rdma/avail.h) for the model checker spin: a sender announces bytes in its program's memory, a receiver reads
 * them, and then the word, by requests that take their time; the sender may keep a source at any moment (copy, change the word, let the
 * program write), the lane may go back to TCP behind what is announced, and the queue pair may break at any moment: then the sender goes
 * on over TCP from what it knows to be passed. Checked: the receiver has every byte once, in order, as it was when it was announced.
 *
 * A source has 2 bytes, and byte k of the stream has the value k. Slots, and with them the program's memory and the area, are used
 * again. What the receiver has passed is told to the sender later.
 *
 * Each MUTANT_ definition breaks one rule, and tests/model/check expects the checker to find it.
 */
#define SLOTS 2
#define SOURCES 3
#define PER 2
#define BYTES 8			/* of the stream: three sources and what may follow them by TCP */
#define DIRT 99
#define SWITCH 77
#define RESUME 88		/* in the TCP stream; what follows is the position */
#define GO 66

mtype = { FREE, ANNOUNCED, KEPT };

mtype state[SLOTS] = FREE;	/* the slots' words */
byte number[SLOTS];
byte program[4], area[4];	/* of the sender; slot s has 2s and 2s + 1 */
byte here[4];			/* the receiver's area */
bool is_here[SLOTS];
bool up = true;
byte next = 0;			/* sources announced */
byte told = 0;			/* of them, those that the sender knows to be passed */
bool known = false;		/* the sender has the word that its SWITCH is known */
byte keeping = 0;

chan ring = [4] of { byte };
chan tcp = [12] of { byte };

inline copy_home(s)
{
	area[2 * s] = program[2 * s];
	area[2 * s + 1] = program[2 * s + 1]
}

inline change_word(s)
{
	state[s] = KEPT
}

inline write_program(s)
{
	program[2 * s] = DIRT;
	program[2 * s + 1] = DIRT
}

/* Whoever comes first copies; the other waits for that. */
inline keep(s)
{
	atomic { keeping == 0 -> keeping = 1 };
	if
	:: state[s] == ANNOUNCED ->
#ifdef MUTANT_WRITE_BEFORE_WORD
		copy_home(s);
		write_program(s);
		change_word(s)
#else
#ifdef MUTANT_WORD_BEFORE_COPY
		change_word(s);
		copy_home(s);
		write_program(s)
#else
		copy_home(s);
		change_word(s);
		write_program(s)
#endif
#endif
	:: else -> skip
	fi;
	keeping = 0
}

active proctype sender()
{
	byte at, s, outstanding;
	bool leaves = false;

	do
#ifdef MUTANT_SLOT_NOT_PASSED
	:: up && !leaves && next < SOURCES ->
#else
	:: up && !leaves && next < SOURCES && next - told < SLOTS ->
#endif
		s = next % SLOTS;
		atomic { keeping == 0 -> keeping = 1 };
		/* The program has it back, and fills it. */
		state[s] = FREE;
		program[2 * s] = PER * next;
		program[2 * s + 1] = PER * next + 1;
		atomic { number[s] = next; state[s] = ANNOUNCED };
		keeping = 0;
		ring ! next;
		next++
	:: up && !leaves -> leaves = true; ring ! SWITCH
	:: leaves && known -> tcp ! GO; at = PER * next; break
	:: !up && !known ->
#ifndef MUTANT_RESUME_WITHOUT_KEEPING
		outstanding = told;
		do
		:: outstanding < next -> s = outstanding % SLOTS; keep(s); outstanding++
		:: else -> break
		od;
#endif
		at = PER * told;
		tcp ! RESUME;
		tcp ! at;
		do
		:: at < PER * next ->
			s = (at / PER) % SLOTS;
#ifdef MUTANT_RESUME_WITHOUT_KEEPING
			tcp ! program[2 * s + at % PER];
#else
			tcp ! area[2 * s + at % PER];
#endif
			at++
		:: else -> break
		od;
		break
	od;
	do
	:: at < BYTES -> tcp ! at; at++
	:: else -> break
	od
}

/* The program writes to what it has sent. */
active proctype fault()
{
	byte s;

	do
	:: s = 0; keep(s)
	:: s = 1; keep(s)
	:: skip -> break
	od
}

active proctype breaks()
{
	up = false
}

byte b0, b1;			/* what was read of a source */
bool right;

/* Reads source n. `right` is false if the queue pair breaks first. */
inline fetch(n)
{
	right = false;
	do
	:: !up -> break
	:: up && is_here[n % SLOTS] -> b0 = here[2 * (n % SLOTS)]; b1 = here[2 * (n % SLOTS) + 1]; right = true; break
	:: up && !is_here[n % SLOTS] ->
#ifdef MUTANT_WORD_FIRST
		was = state[n % SLOTS];
#endif
		b0 = program[2 * (n % SLOTS)];
		b1 = program[2 * (n % SLOTS) + 1];
#ifndef MUTANT_WORD_FIRST
		was = state[n % SLOTS];
#endif
#ifdef MUTANT_NO_WORD
		was = ANNOUNCED;
#endif
		if
		:: was == KEPT -> b0 = area[2 * (n % SLOTS)]; b1 = area[2 * (n % SLOTS) + 1]
		:: else -> skip
		fi;
		right = true;
		break
	od
}

active proctype receiver()
{
	byte n, m, position = 0, from;
	byte got;
	mtype was;
	bool seen_switch = false, expects_go = false;

	do
	/* All that is announced comes here, then the peer has the word. */
	:: up && !seen_switch && ring ?? [SWITCH] ->
		seen_switch = true;
		right = true;
#ifndef MUTANT_WORD_WITHOUT_FETCHING
		m = position / PER;
		do
		:: m < next && right ->
			fetch(m);
			if
			:: right -> here[2 * (m % SLOTS)] = b0; here[2 * (m % SLOTS) + 1] = b1;
				is_here[m % SLOTS] = true
			:: else -> skip
			fi;
			m++
		:: else -> break
		od;
#endif
		if
		:: atomic { right && up -> known = true; expects_go = true }
		:: else -> break
		fi
	:: nempty(ring) && ring ? [SWITCH] && (seen_switch || !up) -> ring ? n; break
	:: nempty(ring) && !(ring ? [SWITCH]) ->
		ring ? <n>;
		if
		:: is_here[n % SLOTS] -> b0 = here[2 * (n % SLOTS)]; b1 = here[2 * (n % SLOTS) + 1]; right = true
		:: else -> fetch(n)
		fi;
		if
		:: right ->
			assert(b0 == position && b1 == position + 1);
			ring ? n;
			is_here[n % SLOTS] = false;
			position = position + PER;
			if
			:: atomic { up -> told = position / PER }
			:: skip	/* told with a later one, or never */
			fi
		:: else -> break
		fi
	:: !up && empty(ring) && !expects_go -> break
	:: atomic { up && empty(ring) && told < position / PER -> told = position / PER }
	od;
	tcp ? got;
	if
	:: got == GO -> assert(expects_go)
	:: else ->
		assert(got == RESUME && !expects_go);
		tcp ? from;
		assert(from <= position);
		do
		:: from < position -> tcp ? got; from++
		:: else -> break
		od
	fi;
	do
	:: position < BYTES -> tcp ? got; assert(got == position); position++
	:: else -> break
	od
}
