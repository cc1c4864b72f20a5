/* The stop of an App. The page: docs/internals/architecture.md#the-way-of-a-stop.
 *
 * The code: stop.go (ask, beginStop, skipWindow), signal.go (watchSignals), run.go (Run, start,
 * teardown), drain.go (drain, runDrainers), internal/drainwindow, serve.go (retire),
 * internal/httpdrain/listener.go (closeWhenQuiet), unit.go (watch, stopUnits), shutdown.go
 * (runUntil), exit.go (armWatchdog, die).
 *
 * Size: an App with one server, one drainer, one unit and two hooks; two requests of clients,
 * three signals, and a unit that may fail. Time is ticks since T0. The App computes in no time.
 * What is foreign (drainer, unit, hook, handler) returns at any time, or never.
 */
#include "states.pml"
#define WINDOW    2                  /* DrainInterval */
#define IN_FLIGHT 1                  /* the slices of ShutdownGrace */
#define UNIT      1
#define SLICE     1                  /* MinSlice: of one hook */
#define GRACE     (IN_FLIGHT + UNIT + 2 * SLICE)
#define BUDGET    (WINDOW + GRACE + 1)

mtype = { nothing, signal, unit };   /* the causes of a stop */
mtype phase = PhaseCreated;
mtype drainer = resultPending;
mtype hook[2] = resultPending; /* by their place in the stack */
byte now, due;                       /* ticks; the App acts at due at the latest */
byte ended;                          /* when the window has ended */
mtype cause = nothing, first = nothing; /* of the stop; and of the request that really came first */
bool watchdog, draining, requested, skipped, windowOver, cancelled; /* of the App */
bool listening, unitRuns, stuck, over;
byte inFlight, signals;

/* A change of phase goes along the table. It may block: a listener may hold the machine's lock. */
inline enter(p) {
	if
	:: true
	:: requested -> stuck = true; due = 255; printf("@ app -> app: is stuck\n"); false
	fi;
	atomic { assert(PhasesAllow(phase, p)); /* R32j */ event(0, p); phase = p; printf("@ app -> app: %e\n", p) }
}

inline step(id, life, to) { assert(StepsAllow(life, to)); event(id, to); life = to /* R18c */ }

/* The App waits for something, until a time. */
inline await(what, until) { due = until; if :: what :: now >= due fi }

inline ask(why) {                    /* stop.go, ask: the first request is the cause */
	atomic {
		printf("@ %e -> app: asks for the stop\n", why);
		if :: first == nothing -> first = why :: else fi;
		if
#ifdef MUTANT_first                  /* only the first request counts */
		:: why != cause -> cause = why
#else
		:: cause == nothing -> cause = why
#endif
		:: else -> goto asked
		fi
	};
	watchdog = true;                 /* stop.go, beginStop */
	draining = true;
	requested = true;
asked:
}

inline die() {                       /* exit.go: without any lock */
	atomic {
		if
		:: !over && phase != PhaseStopped && phase != PhaseFailed ->
			assert(PhasesAllow(phase, PhaseKilled)); /* R2b */
			event(0, PhaseKilled); phase = PhaseKilled; printf("@ app -> app: PhaseKilled\n")
		:: else                      /* Run has returned, or is about to */
		fi;
		over = true
	}
}

active proctype signalWatcher() {    /* at any time, also during the start */
	do
	:: signals == 0 && !over -> signals++; ask(signal)
	:: signals == 1 && !over -> signals++;
		atomic {
			printf("@ signal -> app: a further signal\n");
			if :: windowOver || skipped -> break :: else -> skipped = true fi
		}
	:: signals == 2 && !over -> signals++; printf("@ signal -> app: a further signal\n"); break
#ifdef MUTANT_force                  /* the first signal shortens nothing that another request began */
	:: signals == 0 && requested && !over -> signals++; skipped = true
#endif
	:: over -> goto gone
	od;
	die();
gone:
}

active proctype unitWatcher() {      /* unit.go, watch: the end of the unit is a reason to stop */
	if :: atomic { unitRuns && !cancelled -> unitRuns = false; ask(unit) } :: cancelled || over fi
}

active proctype foreign() {          /* what never returns is never chosen */
end:
	do
	:: atomic { drainer == ResultRunning -> step(1, drainer, ResultOK) }
	:: atomic { hook[1] == ResultRunning -> step(2, hook[1], ResultOK) }
	:: atomic { hook[0] == ResultRunning -> step(3, hook[0], ResultOK) }
	:: atomic { unitRuns && cancelled -> unitRuns = false }
	:: atomic { inFlight > 0 -> inFlight-- }
	od
}

active proctype client() {           /* two connections, at any time from the start on */
	byte n;
	if :: listening :: over fi;
	do
	:: atomic { n < 2 && !over -> n++;
		if
		:: listening -> inFlight++; printf("@ client -> app: a request\n")
		:: else -> printf("@ app -> client: refused\n"); assert(windowOver) /* R13 */
		fi }
	:: break
	od
}

active proctype clock() {
	do
	:: atomic { requested && !over && now < due && now < BUDGET -> now++; printf("@ clock -> app: %d ticks\n", now) }
#ifndef MUTANT_watchdog              /* the timer that ends the process */
	:: watchdog && now == BUDGET && !over -> assert(stuck); /* R18e, R17 */ die()
#else
	:: now == BUDGET && !over && now < due -> assert(false) /* R19 */
#endif
	:: over -> break
	od
}

inline call(id, life, until) {       /* internal/call: bounded, and abandoned behind its time */
	atomic { step(id, life, ResultRunning); printf("@ app -> foreign: call %d\n", id) };
#ifdef MUTANT_abandon                /* a call has a bound */
	await(life != ResultRunning, 255);
#else
	await(life != ResultRunning, until);
#endif
	atomic { if :: life == ResultRunning -> step(id, life, ResultAbandoned) :: else fi }
}

active proctype app() {
	{
		if :: goto refused :: enter(PhaseStarting) fi; /* registrations may be refused */
		listening = true;
		if :: requested :: unitRuns = true fi;
		if
		:: requested
		:: !requested -> enter(PhaseRunning); requested; enter(PhaseDraining)
		fi;
		/* drain.go */
		if
		:: atomic { phase == PhaseDraining -> step(1, drainer, ResultRunning) }
#ifdef MUTANT_wait                   /* the App waits for the window although its drainers have returned */
			await(drainer != ResultRunning, WINDOW)
#else
			await(skipped, WINDOW)
#endif
		:: atomic { phase != PhaseDraining && unitRuns -> step(1, drainer, ResultRunning) }
			await(drainer != ResultRunning || skipped, WINDOW)
		:: atomic { phase != PhaseDraining && !unitRuns -> step(1, drainer, ResultSkipped) }
		fi;
		atomic {
			assert(now >= WINDOW || signals > 1 || phase == PhaseStarting); /* R2, R13 */
			windowOver = true; ended = now
		};
		atomic { if :: drainer == ResultRunning -> step(1, drainer, ResultAbandoned) :: else fi };
		/* run.go, teardown */
		if :: phase == PhaseStarting -> enter(PhaseStopping) :: else fi;
		listening = false;           /* serve.go, retire: at the earliest now */
#ifdef MUTANT_reserve                /* the slices of units and hooks are reserved */
		await(inFlight == 0, ended + GRACE);
#else
		await(inFlight == 0, ended + IN_FLIGHT);
#endif
		inFlight = 0;                /* cut */
		if :: phase != PhaseStopping -> enter(PhaseStopping) :: else fi;
		cancelled = true;
		assert(phase == PhaseStopping && draining); /* R3, R13 */
		await(!unitRuns, ended + IN_FLIGHT + UNIT);
		unitRuns = false;            /* abandoned */
hooks:	assert(now < ended + GRACE - SLICE); /* R18d */
		call(2, hook[1], ended + GRACE - SLICE);
		assert(now < ended + GRACE && hook[1] != ResultRunning); /* R18c */
		call(3, hook[0], ended + GRACE);
		if
		:: phase == PhaseCreated -> enter(PhaseFailed)
		:: phase != PhaseCreated && cause == signal -> enter(PhaseStopped)
		:: phase != PhaseCreated && cause != signal -> enter(PhaseFailed)
		fi;
		atomic { assert(cause == first); /* R4 */ over = true; goto done };
refused:
		ask(unit);
		atomic { step(1, drainer, ResultSkipped); ended = now };
		goto hooks
	} unless { over };
done:
}
