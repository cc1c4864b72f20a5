/* The upgrade of a process to a new one. The page: docs/reference/guarantees/app.md#r47.
 *
 * The code: upgrade.go (replace, handOverTo, takeAll, awaitTakeover), internal/handover (Start, Await, End, awaitEnd),
 * stop.go (askAfter), exit.go (die).
 *
 * Size: one upgrade, and one thing that only one process can have (App.Exclusive). The new process may fail or be killed at any
 * step before the old one says go, and the old one at any step. The old one may be asked to stop, and then be ended by force. The
 * system closes the pipe of a process that dies before it frees its locks. A time that runs out is a failure at that step.
 */
#include "states.pml"

mtype = { none, ready, take, taken, go };
chan toNew = [2] of { mtype };
chan toOld = [2] of { mtype };

bool oldPipe = true, oldLives = true, oldOpen = true, oldHas = true; /* its end of the pipe, its process, its sockets; the exclusive */
bool newLives, newOpen, newHas, newServes, newReady;
bool started, saidGo, stopAsked, asked, oldKilled, forced, newFailed; /* asked: the stop was asked for before go */

inline get(mine, others) { atomic { mine = true; assert(!others) /* R63 */ } }

inline newEnds() { atomic { newOpen = false; newHas = false; newServes = false; newFailed = true; newLives = false } }

inline oldEnds() { atomic { oldLives = false; oldOpen = false; oldHas = false } }

active proctype old() {
	bool given;
	{
		atomic { started = true; newLives = true; newOpen = true; printf("@ old -> new: starts it\n") };
#ifndef MUTANT_ready                 /* the old process waits until the new one is ready */
		if :: toOld?ready :: stopAsked || !newLives && empty(toOld) -> goto failed :: goto failed fi;
#endif
		if :: given = true; oldHas = false; printf("@ old -> exclusive: gives it\n") :: goto failed fi;
		toNew!take; printf("@ old -> new: take\n");
#ifndef MUTANT_ready
		if :: toOld?taken :: stopAsked || !newLives && empty(toOld) -> goto failed :: goto failed fi;
#endif
		atomic {                     /* askAfter: it is the first request to stop, or it is none */
#ifndef MUTANT_first                 /* a process that was asked to stop says go to no other */
			if :: stopAsked -> goto failed :: else fi;
#endif
			if :: newLives -> skip :: !newLives -> goto failed fi;
			saidGo = true; asked = stopAsked; toNew!go; printf("@ old -> new: go\n")
		};
		atomic { oldOpen = false; printf("@ old -> old: closes its sockets\n") };
		atomic { oldPipe = false; oldEnds(); goto over };
failed:
#ifdef MUTANT_back                   /* what was given is taken back when the new process has ended */
		if :: given -> get(oldHas, newHas) :: !given fi;
		newEnds();
#else
		atomic { newEnds(); printf("@ old -> new: kills it\n") };
		atomic { if :: given -> get(oldHas, newHas); printf("@ old -> exclusive: takes it back\n") :: !given fi };
#endif
endServes:
		stopAsked;                   /* it serves on, until it is asked to stop */
		asked = true;
		oldPipe = false; oldEnds();
		goto over
	} unless { oldKilled || forced };
	oldPipe = false;
	oldEnds();                       /* a little later */
over:
}

active proctype operator() {         /* asks the old process to stop, or ends it by force then, or kills it at any time */
	do
	:: atomic { !stopAsked && oldPipe -> stopAsked = true; asked = !saidGo; printf("@ operator -> old: asks it to stop\n") }
	:: atomic { stopAsked && oldPipe && !forced && !saidGo -> forced = true; asked = true; printf("@ operator -> old: ends it by force\n");
#ifndef MUTANT_force                 /* a process that ends by force ends the new one too */
		newEnds();
#endif
		skip }
	:: atomic { !stopAsked && oldPipe && !oldKilled -> oldKilled = true; printf("@ operator -> old: kills it\n") }
	:: break
	od
}

#ifdef MUTANT_end                    /* a process that goes on alone waits until the old one has ended */
#define gone (!oldPipe)
#else
#define gone (!oldLives)
#endif

active proctype new() {
	mtype word;
endNone:
	newLives;
	{
		if                           /* it starts */
		:: atomic { newReady = true; if :: oldPipe -> toOld!ready; printf("@ new -> old: ready\n") :: else fi }
		:: atomic { printf("@ new -> new: its start fails\n"); newEnds() }
		fi;
#ifndef MUTANT_given                 /* the new process takes what the old one has given */
		if
		:: toNew?take
		:: !oldPipe && empty(toNew) && gone
#ifdef MUTANT_alone                  /* a process whose old one has ended goes on */
			-> atomic { newOpen = false; newLives = false }
#endif
		fi;
#endif
		atomic { get(newHas, oldHas); printf("@ new -> exclusive: takes it\n") };
		atomic { if :: oldPipe -> toOld!taken; printf("@ new -> old: taken\n") :: else fi };
		do
		:: toNew?word -> if :: word == go -> break :: word != go fi
		:: !oldPipe && empty(toNew) -> break
		od;
		atomic { newServes = true; printf("@ new -> new: serves\n") }
	} unless { !newLives }
}

active proctype fault() {            /* the new process is killed, once, before the old one has said go */
	if :: atomic { newLives && !saidGo && !newFailed -> newEnds(); printf("@ fault -> new: kills it\n") } :: true fi
}

/* Nothing has failed twice: of a stop that was asked for, and of two processes that were both ended, nothing is expected. */
#define expected (!asked && !(oldKilled && (newFailed || !started)))

active proctype client() {           /* at any time */
end:
	atomic { !(oldOpen || newOpen) && expected -> assert(false) /* R47, R61, R62: it would be refused */ }
}

init {
	timeout -> assert(!expected || oldOpen && oldHas || newServes && newHas); /* R47, R61, R62: one serves, and has it */
	assert(!asked || oldKilled || !newLives) /* R62: a stop ends both */
}
