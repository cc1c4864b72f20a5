/* Suspend and resume of a function. The page: docs/reference/guarantees/worker.md#w12.
 *
 * The code, in worker: suspend.go (suspend, inTurn, proceed, resume), pause.go (Pause, ask, withdraw, quiesce,
 * proceed). handover.pml has what a supervisor does.
 *
 * Size: a function that two callers suspend, one of which may give up at any time, and that one resumes and another stops.
 */
#include "states.pml"

mtype = { turns };                   /* of the function: what a record of the code has beside the statuses */
mtype status = StatusRunning;        /* of the function */
bool turn;                           /* one Suspend or Resume takes effect */
bool request, paused, works, ended;  /* pauses: the function is asked to pause, and has answered; what it does */
byte left = 4;                       /* callers that have not returned */

inline to(next) { assert(StatusesAllow(status, next)); /* W1 */ event(0, next); status = next; printf("@ worker -> worker: %e\n", next) }

inline proceed() {                   /* Running first, so that nothing works while the worker is Suspended */
#ifdef MUTANT_order                  /* the worker is Running before its function goes on */
	request = false;
	atomic { if :: status == StatusSuspended -> to(StatusRunning) :: else fi }
#else
	atomic { if :: status == StatusSuspended -> to(StatusRunning) :: else fi };
	request = false
#endif
}

#ifdef MUTANT_turn                   /* suspends and resumes take effect one after the other */
#define take   true
#else
#define take   !turn -> turn = true
#endif

active [2] proctype suspending() {
	bool gaveUp, wasSuspended;
	atomic { take };
	if
	:: atomic { status != StatusSuspended && status != StatusRunning -> goto over }
	:: atomic { status == StatusRunning }
	:: atomic { status == StatusSuspended -> wasSuspended = true }
	fi;
	atomic { if :: !request -> request = true; paused = false; printf("@ worker -> function: asks it to pause\n") :: else fi };
	if                               /* quiesce */
	:: paused
	:: status == StatusStopping || ended -> gaveUp = true
	:: gaveUp = true                 /* its context ends */
	fi;
	atomic {
		if
		:: !gaveUp && status == StatusRunning -> to(StatusSuspended); assert(!works); goto over /* W12 */
		:: wasSuspended || !gaveUp && status == StatusSuspended -> goto over
		:: else
		fi
	};
#ifndef MUTANT_withdraw              /* a Suspend that fails leaves everything running */
	proceed();
#endif
over:	turn = false; left--
}

active proctype resuming() {
	atomic { take };
	if
	:: atomic { status != StatusRunning && status != StatusSuspended }
	:: (status == StatusRunning || status == StatusSuspended) && !ended -> proceed()
	fi;
	turn = false; left--
}

active proctype stopping() {         /* or it never comes */
	if
	:: atomic { status == StatusRunning || status == StatusSuspended -> to(StatusStopping) }
	:: true
	fi;
	left--
}

active proctype function() {
end:
	do
	:: atomic { status == StatusStopping -> works = false; ended = true; to(StatusStopped); break }
	:: atomic { !request && status != StatusStopping -> works = true; event(1, turns); printf("@ function -> function: works\n");
		assert(status != StatusSuspended) /* W12: it is quiescent */ }
	:: atomic { request && !paused -> works = false; paused = true; printf("@ function -> worker: pauses\n") } /* Pause */
	od
}

init {
	timeout -> assert(left > 0 || ended || status == StatusSuspended && request && paused || status == StatusRunning && !request) /* W12a */
}
