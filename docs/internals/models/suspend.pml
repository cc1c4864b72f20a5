/* Suspend and resume of a function, and the handover from one instance of a child to the next. The page:
 * docs/reference/guarantees/worker.md#w12, #w33, #w10.
 *
 * The code, in worker: suspend.go (suspend, inTurn, suspendNow, proceed, resume), pause.go (Pause, ask, withdraw, quiesce,
 * proceed); child_start.go (start, instanceMade, putInPlace, startOverdue, startEnded), supervisor_suspend.go (holdStarts,
 * releaseStarts).
 *
 * Size: a function that two callers suspend, one of which may give up at any time, and that one resumes and another stops. And a
 * supervisor with one child, which may fail, and may be abandoned because it does not return; the supervisor is suspended and
 * resumed once, and a factory takes any time.
 */
#include "states.pml"

mtype status = StatusRunning;        /* of the function */
bool turn, unsure;                   /* suspender: one Suspend or Resume takes effect; the worker may be paused though it is Running */
bool request, paused, works, ended;  /* pauses: the function is asked to pause, and has answered; what it does */
byte left = 4;                       /* callers that have not returned */

inline to(next) { assert(StatusesAllow(status, next)); /* W1 */ event(0, next); status = next; printf("@ worker -> worker: %e\n", next) }

inline proceed() {                   /* Running first, so that nothing works while the worker is Suspended */
	unsure = true;
#ifdef MUTANT_order                  /* the worker is Running before its function goes on */
	request = false;
	atomic { if :: status == StatusSuspended -> to(StatusRunning) :: else fi };
#else
	atomic { if :: status == StatusSuspended -> to(StatusRunning) :: else fi };
	request = false;
#endif
	unsure = false
}

#ifdef MUTANT_turn                   /* suspends and resumes take effect one after the other */
#define take   true
#else
#define take   !turn -> turn = true
#endif

active [2] proctype suspending() {
	bool gaveUp;
	atomic { take };
	if
	:: atomic { status == StatusSuspended && !unsure -> goto over }
	:: atomic { status != StatusSuspended && status != StatusRunning -> goto over }
	:: atomic { status == StatusRunning || unsure -> unsure = true }
	fi;
	atomic { if :: !request -> request = true; paused = false; printf("@ worker -> function: asks it to pause\n") :: else fi };
	if                               /* quiesce */
	:: paused
	:: status == StatusStopping || ended -> gaveUp = true
	:: gaveUp = true                 /* its context ends, or a Resume comes */
	fi;
	atomic {
		if
		:: !gaveUp && status == StatusRunning -> to(StatusSuspended); unsure = false; assert(!works); goto over /* W12 */
		:: !gaveUp && status == StatusSuspended -> unsure = false; goto over
		:: else
		fi
	};
#ifdef MUTANT_withdraw               /* a Suspend that fails leaves everything running */
	unsure = false;
#else
	proceed();
#endif
over:	turn = false; left--
}

active proctype resuming() {
	atomic { take };
	if
	:: atomic { status == StatusRunning && !unsure }
	:: atomic { status != StatusRunning && status != StatusSuspended }
	:: (status == StatusSuspended || unsure) && !ended -> proceed()
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
	:: atomic { !request && status != StatusStopping -> works = true; printf("@ function -> function: works\n");
		assert(status != StatusSuspended) /* W12: it is quiescent */ }
	:: atomic { request && !paused -> works = false; paused = true; printf("@ function -> worker: pauses\n") } /* Pause */
	od
}

/* The supervisor. */
byte instances;                      /* that run, or may run: abandoned ones too */
byte fails;
bool making, made, waits, live, held, abandoned;

active proctype supervisor() {
end:
	do
#ifdef MUTANT_abandoned              /* no start beside an instance that was abandoned */
	:: atomic { !live && !making && !held -> making = true; made = false }
#else
	:: atomic { !live && !making && !held && !abandoned -> making = true; made = false }
#endif
	:: atomic { making && made && !waits ->
		if
#ifndef MUTANT_held                  /* an instance whose factory returns under a suspended supervisor waits */
		:: held -> waits = true
#endif
		:: else -> making = false; made = false; live = true; instances++; printf("@ supervisor -> child: starts an instance\n");
			assert(instances == 1); /* W10: never two of a name */
			assert(!held) /* W33 */
		fi }
	:: atomic { waits && !held -> waits = false }
	:: atomic { live && fails < 3 -> live = false; fails++; /* it fails, or is stopped and does not return in time */
		if :: instances-- :: abandoned = true; printf("@ supervisor -> child: abandons an instance\n") fi }
	od
}

active proctype child() {
end:
	do
	:: atomic { making && !made -> made = true } /* its factory returns */
	:: atomic { abandoned -> abandoned = false; instances-- } /* it returns after all */
	od
}

active proctype operator() {
	held = true;                     /* Suspend: holdStarts */
	held = false                     /* Resume: releaseStarts */
}

init {
	timeout -> assert(left > 0 || ended || status == StatusSuspended && request && paused || status == StatusRunning && !request) /* W12a */
}
