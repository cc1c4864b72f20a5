/* The handover from one instance of a child to the next. The page: docs/reference/guarantees/worker.md#w10, #w33.
 *
 * The code, in worker: child_start.go (start, instanceMade, putInPlace, startOverdue, startEnded), supervisor_suspend.go
 * (holdStarts, releaseStarts).
 *
 * Size: a supervisor with one child, which may fail, and may be abandoned because it does not return; the supervisor is suspended
 * and resumed once, and a factory takes any time.
 */
#include "states.pml"

mtype = { runs, ends };              /* what a record of the code has */

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
