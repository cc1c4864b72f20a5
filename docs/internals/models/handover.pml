/* The handover from one instance of a child to the next. The page: docs/reference/guarantees/worker.md#w10, #w33.
 *
 * The code, in worker: child_start.go (start, instanceMade, startOverdue, startEnded), supervisor_suspend.go
 * (holdStarts, releaseStarts).
 *
 * Size: a supervisor with one child, which may fail, and may be abandoned because it does not return; the supervisor is suspended
 * and resumed once, and a factory takes any time.
 */
#include "states.pml"

mtype = { runs, ends };              /* what a record of the code has */

byte instances;                      /* that run, or may run: abandoned ones too */
byte fails;
bool making, made, live, held, quiet, abandoned; /* held: no start begins; quiet: Suspend has returned */

active proctype supervisor() {
end:
	do
#ifdef MUTANT_abandoned              /* no start beside an instance that was abandoned */
#define mayStart !held
#else
#ifdef MUTANT_held                   /* a supervisor that is suspended starts nothing */
#define mayStart !abandoned
#else
#define mayStart !held && !abandoned
#endif
#endif
	:: atomic { !live && !making && mayStart -> making = true; made = false }
	:: atomic { making && made -> making = false; made = false; live = true; instances++;
		printf("@ supervisor -> child: starts an instance\n");
		assert(instances == 1); /* W10: never two of a name */
		assert(!quiet) /* W33 */ }
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
	atomic { !making -> quiet = true }; /* it waits for a start that is under way: answerSettled */
	quiet = false;
	held = false                     /* Resume: releaseStarts */
}
