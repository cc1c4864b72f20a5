/* A write of a workflow, and its journal. The page: docs/reference/guarantees/workflow.md#d2, #d19, #d24.
 *
 * The code: fleet/workflow/operation.go (persist, consider, attempt), publish.go (publish, resolve), idempotency.go (addKey,
 * landed), journal.go (pendingAfter); publish.go (find). hook.pml has what is behind the journal.
 *
 * Size: one entity in a bucket that keeps its last two writes, and two writers. The first moves it with a key; it may crash, or
 * lose the answer, and then another process asks again. The second moves it once and updates it twice. A request may be carried
 * out late, and its answer lost. The server copies the bucket into the journal at any time.
 */
#include "states.pml"
#define KEPT 2
#define MOST 4                       /* revisions */
#define OPS  5
#define bit(r) (1 << (r))

mtype = { transits, updates };           /* what a record of the code has, of a writer */

byte seq, copied;                    /* the newest revision of the bucket, and of the journal */
byte op[MOST + 1], on[MOST + 1], change[MOST + 1], pending[MOST + 1]; /* of each: the headers */
bool key[MOST + 1];
byte moves, journal;                 /* revisions that moved the entity, and that the journal has */
byte ops, landed[OPS + 2], keyed;

chan send[3] = [1] of { byte, byte, bool, bool, byte, byte }; /* op, on, moves, key, change, pending */
byte answer[3];                      /* to the newest message: the revision, or REFUSED */
byte asked[3];                       /* its op */
#define REFUSED 255

inline write(me, o, expected, move, k, c, p) {
	if
#ifdef MUTANT_expected               /* a write names the revision that it follows */
	:: seq < MOST ->
#else
	:: expected == seq && seq < MOST ->
#endif
		printf("@ writer%d -> bucket: write %d behind revision %d\n", me, o, expected);
		seq++; landed[o]++; op[seq] = o; on[seq] = expected; key[seq] = k; change[seq] = c; pending[seq] = p;
		assert(landed[o] == 1); /* D2: no second transition */
		if :: move && me == 1 -> keyed++; assert(keyed == 1) /* D24: a write with a key happens once */ :: else fi;
		if :: move -> moves = moves | bit(seq); event(me, transits) :: else -> event(me, updates) fi;
		if
		:: seq > KEPT -> assert(!(moves & bit(seq - KEPT)) || journal & bit(seq - KEPT)) /* D19: it is pushed out of the bucket */
		:: else
		fi;
		if :: o == asked[me] -> answer[me] = seq :: true fi /* or it is lost */
	:: expected != seq || seq == MOST -> if :: o == asked[me] -> answer[me] = REFUSED :: true fi
	fi
}

active proctype bucket() {
	byte o, expected, c, p; bool move, k;
end:
	do
	:: atomic { send[1]?o, expected, move, k, c, p -> write(1, o, expected, move, k, c, p); o = 0; expected = 0; c = 0; p = 0; move = false; k = false }
	:: atomic { send[2]?o, expected, move, k, c, p -> write(2, o, expected, move, k, c, p); o = 0; expected = 0; c = 0; p = 0; move = false; k = false }
	:: atomic { copied < seq -> copied++; printf("@ bucket -> journal: revision %d\n", copied);
		if :: copied + KEPT > seq -> journal = journal | bit(copied) :: else fi }
	od
}

proctype writer(byte me; byte times) {
	byte cur, n, p; bool move, sent, fresh;
	do
	:: n == times -> break
	:: n < times && ops >= OPS -> break /* the model's end */
	:: n < times && ops < OPS ->
		move = (n == 0); sent = false;
		atomic { if :: cur = seq :: !fresh && seq -> cur = seq - 1 fi }; /* consider: the view may be behind */
		if
#ifndef MUTANT_key                   /* a record carries the keys of the writes before it */
		:: me == 1 && key[cur] -> n++; cur = 0; fresh = false; goto next /* it has happened */
#else
		:: me == 1 && key[cur] && op[cur] == asked[1] -> n++; cur = 0; fresh = false; goto next
#endif
		:: else
		fi;
		if                           /* pendingAfter */
		:: !pending[cur] && change[cur] != cur -> p = 0
		:: (pending[cur] || change[cur] == cur) && cur && pending[cur] + 1 < KEPT -> p = pending[cur] + 1
		:: cur == 0 -> p = 0
#ifdef MUTANT_pending                /* a write that would push a change out of the bucket waits for the journal */
		:: (pending[cur] || change[cur] == cur) && cur && pending[cur] + 1 >= KEPT -> p = 0
#else
		:: (pending[cur] || change[cur] == cur) && cur && pending[cur] + 1 >= KEPT && copied >= change[cur] -> p = 0
#endif
		fi;
		atomic { nfull(send[me]) -> ops++; asked[me] = ops; answer[me] = 0;
			send[me]!ops, cur, move, (me == 1 || key[cur]), (move -> seq + 1 : change[cur]), p };
again:	if                           /* resolve */
		:: answer[me] && answer[me] != REFUSED -> goto done
		:: answer[me] == REFUSED && !sent -> goto conflict
		:: answer[me] == REFUSED && sent -> skip
		:: answer[me] == 0 -> sent = true /* it is late, or lost */
		:: me == 1 && ops < OPS -> goto next /* the caller crashes */
		fi;
		atomic {                     /* outcome.Find: the successor of cur, or the oldest that is kept behind it */
			if
			:: seq == cur && nfull(send[me]) -> answer[me] = 0; send[me]!asked[me], cur, move, (me == 1 || key[cur]), (move -> seq + 1 : change[cur]), p; goto again
			:: seq > cur && seq < cur + 1 + KEPT && op[cur + 1] == asked[me] -> goto done
			:: seq > cur && seq < cur + 1 + KEPT && op[cur + 1] != asked[me] -> goto conflict
			:: seq >= cur + 1 + KEPT && op[seq - 1] == asked[me] -> goto done
			:: seq >= cur + 1 + KEPT && op[seq - 1] != asked[me] ->
#ifdef MUTANT_untraceable            /* when later writes hide the outcome, it is unknown */
				goto conflict
#else
				goto unknown
#endif
			fi
		};
conflict: printf("@ bucket -> writer%d: a conflict\n", me);
		assert(landed[asked[me]] == 0); /* D2: no false refusal */
		fresh = true; goto next;
unknown: if :: me == 1 -> goto next :: me == 2 -> n++; goto next fi; /* D2c: the caller with a key asks again */
done:	assert(landed[asked[me]] == 1); /* D2 */
		n++; fresh = false;
next:	skip
	od
}

init { atomic { run writer(1, 1); run writer(2, 3) } }
