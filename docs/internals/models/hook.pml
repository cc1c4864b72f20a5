/* The hooks of a workflow. The page: docs/reference/guarantees/workflow.md#d20.
 *
 * The code: fleet/workflow/hookrun.go (once, read, accept, handle, done, save), hookprogress.go (load, save, begin).
 * workflow.pml has what is before it: that the journal has each transition.
 *
 * Size: one entity with three transitions, and two processes. One of them should run the hook; while the lease changes hands
 * both do. A process may be killed, or stand still for any time, at any step.
 */
#include "states.pml"
#define MOST 3                       /* transitions, and their revisions */
#define bit(r) (1 << (r))

mtype = { reacts };                  /* what a record of the code has */

byte journal;                        /* its newest revision */
byte effects;                        /* the revisions whose effect there is, by the ID of the reaction */
byte saved, revision;                /* the stored progress, and the revision of its key */

active proctype server() {
end:
	do
	:: journal < MOST -> journal++
	od
}

proctype hook(byte me) {
	byte done, calls, loaded; bool runs, kills;
end:
	do
	:: atomic { !runs -> runs = true; done = saved; loaded = revision; printf("@ store -> process%d: the progress is %d\n", me, saved) }
	:: atomic { runs && !calls && done < journal -> calls = done + 1; printf("@ process%d -> hook: calls it for revision %d\n", me, calls);
#ifdef MUTANT_done                   /* a reaction is done when its call has returned */
		done = calls
#endif
		}
	:: atomic { calls ->
		if
		:: true -> skip              /* it fails, and is tried again */
		:: true ->
			assert((effects & (bit(calls) - 2)) == bit(calls) - 2); /* D20: in the order of the writes */
			if :: !(effects & bit(calls)) -> event(calls, reacts) :: else fi;
			effects = effects | bit(calls);
			if :: true -> done = (done < calls -> calls : done) :: true fi; /* or it fails behind its effect */
			calls = 0
		fi }
	:: atomic { runs && done != saved ->
		if
#ifdef MUTANT_superseded             /* the progress is written with the revision that was read */
		:: true ->
#else
		:: loaded == revision ->
#endif
			printf("@ process%d -> store: the progress is %d\n", me, done);
			assert(done >= saved); /* D20: the progress is never set back */
			assert((effects & (bit(done + 1) - 2)) == bit(done + 1) - 2); /* D20: what is done has had its effect */
			saved = done; revision++; loaded = revision
		:: else -> runs = false; calls = 0; done = 0; loaded = 0 /* errSuperseded: it begins again */
		fi }
	:: atomic { runs && !kills -> kills = true; runs = false; calls = 0; done = 0; loaded = 0 }
	od
}

init {
	atomic { run hook(1); run hook(2) };
	timeout -> assert(saved < journal || effects == bit(MOST + 1) - 2) /* D20: each transition has its effect */
}
