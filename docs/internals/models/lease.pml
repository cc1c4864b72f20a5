/* A leader lease. The pages: docs/reference/guarantees/workflow.md#d15, app.md#r49, app.md#r33.
 *
 * The code: fleet/lease/lease.go (Acquire, look, write, Release), kube/lease.go (Acquire, look,
 * observe, write, Release), worker/leader.go (attempt, release). The store is NATS, whose entries
 * expire, or the API server of Kubernetes, whose objects do not.
 *
 * Size: two processes with three and two requests; time has four ticks. A process may stand still for
 * any time before each of its steps. A request may be carried out long after its process has
 * given it up, and an answer may be lost. An operator may delete the entry once.
 */
#include "states.pml"

#define TTL  2
#define LAST 4
#define REQUESTS (4 - self)           /* of process 1 and 2: 3 and 2 */

mtype = { create, update, delete, done, conflict };
mtype = { takes, releases, granted }; /* what a record of the code has, of a process */

bool kube, deleted;
byte now = 1;
byte seq, rev, holder, token, expires, renewed; /* the store: what it counts, and the entry */
chan net[3] = [2] of { mtype, byte, byte, byte }; /* of each process: what, expected, token, number */
chan answer[3] = [1] of { mtype, byte };
byte number[3];                      /* of the request whose answer a process awaits */
byte trust[3], mine[3];               /* until when a process trusts, and its token */
byte greatest, owner;                /* of all terms that the store has seen */

inline grant(me, tok, until) {
	atomic {
		printf("@ store -> process%d: granted until %d with token %d, at %d\n", me, until, tok, now);
		if
		:: now < until -> event(me, granted);
			assert(deleted || now >= trust[3 - me]); /* D15, R49: never two */
			assert(deleted || now >= trust[me] || tok == mine[me]); /* D15a: it stays the same */
			trust[me] = until; mine[me] = tok
		:: else                      /* it comes too late, and the process does not trust in it */
		fi
	}
}

inline send(me, what, expected, tok) {
	number[me]++; net[me]!what(expected, tok, number[me])
}

proctype store() {                   /* compares the revision, as JetStream and Kubernetes do */
	mtype what; byte expected, tok, n, me; bool fits;
end:
	do
	:: atomic {
		if
		:: net[1]?what(expected, tok, n) -> me = 1
		:: net[2]?what(expected, tok, n) -> me = 2
		fi;
#ifdef MUTANT_compare                /* a write names the revision that it replaces */
		fits = true;
#else
		fits = (expected == rev);
#endif
#ifdef MUTANT_release                /* a release names it too */
		fits = fits || what == delete;
#endif
		if
		:: fits ->
			seq++;
#ifdef MUTANT_clock
			renewed = now;
#endif
			expires = (kube -> 0 : now + TTL);
			if
			:: what == delete -> event(me, releases); holder = 0; rev = (kube -> seq : 0); printf("@ process%d -> store: releases, at %d\n", me, now)
			:: else -> event(me, takes); holder = me; rev = seq; printf("@ process%d -> store: takes it, at %d\n", me, now);
				token = (tok == 0 && !kube -> seq : tok);
				assert(token + kube > greatest || me == owner && token + kube == greatest || kube && deleted); /* D15a */
				greatest = token + kube; owner = me
			fi
		:: else
		fi;
		if :: n == number[me] -> answer[me]!(fits -> done : conflict)(seq) :: else fi;
		what = 0; expected = 0; tok = 0; n = 0; me = 0; fits = false
		}
	od
}

proctype process(byte self) {
	byte began, r, t, until;         /* fleet/lease: revision, token, until */
	byte seenRev, seenAt, seenHolder, seenToken; /* kube */
	byte value; mtype got; bool leaving, again;
end:
	do
	:: atomic { number[self] < REQUESTS && now < LAST -> began = now; /* Acquire, or Release */
		if :: true :: leaving = true; trust[self] = 0 fi }; /* its function has returned, or did not begin */
look:	atomic {
		if
		:: !kube && r != 0           /* the write tells */
		:: !kube && r == 0 && holder == self -> r = rev; t = token /* an answer was lost */
		:: !kube && r == 0 && holder == 0 -> t = 0
		:: !kube && r == 0 && holder != 0 && holder != self -> goto other
		:: kube && r != 0 && seenHolder == self
		:: kube && !(r != 0 && seenHolder == self) ->
			r = rev;
			if
			:: rev != 0 && rev != seenRev -> seenRev = rev; seenAt = now; seenHolder = holder; seenToken = token
			:: else
			fi;
			if
#ifdef MUTANT_clock                  /* no clock of another machine counts: here the holder's is one behind */
			:: seenHolder != 0 && seenHolder != self && now < renewed - 1 + TTL -> goto other
#else
			:: seenHolder != 0 && seenHolder != self && now < seenAt + TTL -> goto other
#endif
			:: else
			fi
		fi;
		if
		:: leaving && (r == 0 || kube && seenHolder != self) -> goto ended
		:: leaving && !(r == 0 || kube && seenHolder != self) -> send(self, delete, r, seenToken)
		:: !leaving && !kube -> send(self, update, r, (r != 0 && now >= until -> 0 : t))
		:: !leaving && kube ->
			t = (seenAt == 0 || seenHolder == self && now < until -> seenToken : seenToken + 1);
			send(self, update, r, t)
		fi };
		if                           /* the answer; or the process gives up, and does not know the outcome */
		:: atomic { answer[self]?got(value) -> if :: leaving -> goto ended :: else fi }
		:: atomic { number[self]++; got = create; if :: answer[self]?_, _ :: empty(answer[self]) fi;
			if :: leaving -> goto ended :: else fi }
		fi;
		atomic {
		if
		:: got == done ->
			t = (!kube && (t == 0 || r != 0 && now >= until) -> value : t);
			r = value;
			if :: kube -> seenRev = r; seenAt = now; seenHolder = self; seenToken = t :: else fi;
#ifdef MUTANT_began                  /* the trust counts from the start of the attempt */
			until = now + TTL;
#else
			until = began + TTL;
#endif
			grant(self, t + kube, until)
		:: got == conflict ->        /* once more: it may change between look and write */
			r = 0;
			if :: !kube -> t = 0; until = 0 :: else fi;
			if :: !again && number[self] < REQUESTS -> again = true; goto look :: else fi
		:: got == create -> r = 0;   /* look next time */
#ifdef MUTANT_lost                   /* without an answer nothing is granted */
			until = began + TTL; grant(self, t + kube, until)
#endif
		fi;
		goto next;
ended:	leaving = false; seenRev = 0; seenAt = 0; seenHolder = 0; seenToken = 0; /* another campaign begins */
other:	r = 0; t = 0; until = 0; trust[self] = 0;
next:	again = false; value = 0; got = 0; began = 0
		}
	od
}

proctype operator() {
end:
	if
	:: atomic { rev != 0 && !deleted -> deleted = true; seq++; rev = 0; holder = 0; token = 0; printf("@ operator -> store: deletes it, at %d\n", now) }
	fi
}

inline ends(me) {                    /* what is over need not be told apart */
	if :: now >= trust[me] -> trust[me] = 0; mine[me] = 0 :: else fi
}

proctype clock() {
end:
	do
	:: atomic { now < LAST -> now++; ends(1); ends(2);
		if :: !kube && holder != 0 && now >= expires -> holder = 0; rev = 0; token = 0; expires = 0 :: else fi }
	od
}

init {
	if :: kube = true :: true fi;
	atomic { run store(); run process(1); run process(2); run operator(); run clock() }
}
