/* Hosted workers: one slot, from a message to its output. The pages: docs/reference/guarantees/host.md#h9, #h13.
 *
 * The code, in fleet/host: partition.go (claim, replay, stage, holds), chain.go (append, outcome), log.go (open, read, trim),
 * commit.go (next, write, tidy, superfluous), state_cache.go (flush), feed.go (reset, enqueue, arrivals), admit.go (handleOne),
 * run.go (giveUp), ack.go (done, storeDeadLetter). relay.pml has what is behind it: that an output is published once.
 *
 * Size: two hosts that claim the slot once each or one of them twice, two messages with one key, each of which raises a counter
 * and has an output; the first may be rejected. A host may be killed, or stand still for any time, before each of its steps. A
 * request may be carried out late, and its answer lost.
 */
#include "states.pml"
#define bit(m) (1 << ((m) - 1))
#define CLAIMS 2

mtype = { idle, opening, resetting, running };
mtype state[3];                      /* of a host's runner */
mtype = { claims, commits };         /* what a record of the code has */

byte claimed, token, fence;          /* the subject of the tokens: the newest token, and the newest sequence */
byte seq, writer;                    /* the log of the slot: its newest sequence, and whose it is */
byte counter, counterAt, outAt[3];   /* the counter in the log, its entry, and the entry of each output; 0 for none */
byte logDone, logDecided, logSent;   /* what the newest commit knows */
byte stored;                         /* the counter on its own subject */
byte cursor = 1, acked, out_, again; /* the consumer: out_ are not answered, again is to be delivered again */
bool got[3], gap[3];                 /* what its sequence tells: a host has had deliveries, and others have had some since */
byte letters;
byte effects;                        /* messages whose effects were committed; only properties look at it */

chan append[3] = [1] of { byte, byte, byte, byte, byte, byte, byte }; /* token, expected, done, decided, sent, counter, outputs */
chan flush[3] = [1] of { byte, byte };                               /* expected, counter */
byte answer[3];                      /* to an append: the sequence, 0 for none yet */

active proctype server() {
	byte me, by, expected, done, decided, sent, n, o;
end:
	do
	:: atomic {                      /* the log takes an entry that follows the newest one */
		if
		:: append[1]?by, expected, done, decided, sent, n, o -> me = 1
		:: append[2]?by, expected, done, decided, sent, n, o -> me = 2
		fi;
		if
#ifndef MUTANT_expected              /* a link names the one before it */
		:: expected != seq           /* a refusal says no more than no answer: the host looks */
#endif
		:: else ->
			seq++; writer = by;
			if :: n -> counter = n; counterAt = seq :: else fi;
			if
			:: done == 255 -> printf("@ host%d -> log: claims the slot\n", me); event(0, claims) /* a claim knows nothing */
			:: else -> printf("@ host%d -> log: commits the effects of %d\n", me, o);
				assert(!(o & effects) && !(o & letters)); /* H9, H7: once, and not beside a letter */
				effects = effects | o;
				assert(!(done & 2) || done & 1); /* H13 */
				assert(n == 0 || n == (effects & 1) + (effects >> 1)); /* H9, H6: the counter has each message once */
				if :: o & 1 -> outAt[1] = seq :: else fi;
				if :: o & 2 -> outAt[2] = seq :: else fi;
				event(o, commits); logDone = done; logDecided = decided; logSent = sent
			fi;
			if :: answer[me] = seq :: true fi /* or the answer is lost */
		fi;
		me = 0; by = 0; expected = 0; done = 0; decided = 0; sent = 0; n = 0; o = 0 }
	:: atomic {                      /* the values: the last message of the batch is a link behind the token */
		if :: flush[1]?expected, n :: flush[2]?expected, n fi;
		if
#ifndef MUTANT_fence                 /* a batch of values is a link behind its holder's token */
		:: expected != fence
#endif
		:: else ->
			assert(n >= stored); /* H6: no stale write */
			printf("@ host -> state: the counter is %d\n", n); fence++; stored = n
		fi;
		expected = 0; n = 0 }
	:: atomic { out_ & ~again -> if :: out_ & 1 -> again = again | 1 :: out_ & 2 -> again = again | 2 fi } /* AckWait */
	od
}

inline crash() {                     /* killed; or it was replaced, and its runner ends */
	do :: queue?_ :: empty(queue) -> break od;
	state[me] = idle; mine = 0; last = 0; waits = false; lastFence = 0; flushing = false; flushed = 0; own = false;
	done = 0; decided = 0; sent = 0; unsent = 0; hand = 0; staged = 0; stagedOut = 0; deciding = 0; rejected = 0; n = 0; committed = 0;
	got[me] = false; gap[me] = false; answer[me] = 0; eDone = 0; eDecided = 0; eN = 0; eOut = 0; coming = 0; wasDone = false
}

inline send() { answer[me] = 0; append[me]!mine, last, eDone, eDecided, sent, eN, eOut; waits = true }

inline ack(m) { if :: acked = acked | bit(m); out_ = out_ & ~bit(m); again = again & ~bit(m) :: true fi } /* or it is lost */

proctype host(byte me) {
	byte mine, last, lastFence, m; /* its token; of the log; of the tokens' subject */
	byte done, decided, sent, unsent, n, committed, flushed; /* what it knows */
	byte coming, hand, staged, stagedOut, deciding, rejected, eDone, eDecided, eN, eOut;
	bool waits, flushing, own, wasDone;
	chan queue = [2] of { byte };
end:
	do
	:: atomic { state[me] != idle && claimed < CLAIMS -> printf("@ host%d -> host%d: is killed\n", me, me); crash() } /* killed */
	:: atomic { state[me] == idle && claimed < CLAIMS && (claimed || me == 1) ->
		claimed++; fence++; token = fence; mine = fence; lastFence = fence; state[me] = opening }
	:: atomic { state[me] == opening && !waits && nfull(append[me]) -> /* log.go, open */
		if
		:: writer > mine -> crash()  /* stale */
		:: else -> last = seq; eDone = 255; send()
		fi }
	:: atomic { waits && (answer[me] || seq != last || nfull(append[me])) -> /* chain.go, outcome */
		if
		:: answer[me] -> last = answer[me]
		:: !answer[me] && seq == last -> send(); goto stay /* not added, or not yet */
		:: !answer[me] && seq != last && writer == mine -> last = seq;
#ifdef MUTANT_look                   /* without an answer the host looks whether its link was added */
			nfull(append[me]) -> send(); goto stay
#endif
		:: !answer[me] && seq != last && writer != mine && eDone != 255 -> crash(); goto stay
		:: !answer[me] && seq != last && writer != mine && eDone == 255 -> waits = false; goto stay
		fi;
		waits = false; answer[me] = 0;
		if
		:: state[me] == opening ->       /* partition.go, replay: the entries before the claim */
			done = logDone; decided = logDecided; sent = logSent; n = stored; state[me] = resetting;
			if :: counter -> n = counter :: else fi;
			unsent = ((outAt[1] && outAt[1] < last -> 1 : 0) | (outAt[2] && outAt[2] < last -> 2 : 0)) & ~sent;
			committed = n
		:: else ->                   /* commit.go, committed: only now messages are answered */
			done = eDone; decided = eDecided; own = true; hand = hand & ~done;
			unsent = unsent | eOut; committed = (eN -> eN : committed);
			if :: done & 1 & ~acked -> ack(1) :: else fi;
			if :: done & 2 & ~acked -> ack(2) :: else fi;
			rejected = (rejected && done & bit(rejected) -> 0 : rejected)
		fi;
		eDone = 0; eDecided = 0; eN = 0; eOut = 0;
stay:	skip }
	:: atomic { state[me] == resetting -> state[me] = running; /* feed.go, reset: back to the first message that was not answered */
		if :: acked == 2 -> acked = 0 :: else fi;
		gap[me] = false;
#ifndef MUTANT_reset                 /* a new holder begins with the first message that was not answered */
		cursor = (acked == 3 -> 3 : acked + 1); out_ = 0; again = 0; gap[3 - me] = got[3 - me]
#endif
		}
	:: atomic { state[me] == running && !coming && (again || cursor <= 2) -> /* a delivery */
		if
		:: again & 1 -> m = 1
		:: !(again & 1) && again & 2 -> m = 2
		:: !again -> m = cursor; cursor++
		fi;
		printf("@ consumer -> host%d: message %d\n", me, m); again = again & ~bit(m); out_ = out_ | bit(m); got[me] = true; gap[3 - me] = true;
		if
#ifndef MUTANT_gap                   /* a runner that misses a delivery begins again */
		:: gap[me] -> crash()
#endif
		:: else -> coming = m; wasDone = (done & bit(m)) != 0
		fi;
		m = 0;
#ifdef MUTANT_hand                   /* a message that comes again is looked for in hand, and only then among those that are done */
		skip }
	:: atomic { coming ->
#endif
		if
		:: coming == 0 || hand & bit(coming)
		:: coming && !(hand & bit(coming)) && wasDone -> ack(coming)
		:: coming && !(hand & bit(coming)) && !wasDone -> hand = hand | bit(coming); queue!coming
		fi;
		coming = 0; wasDone = false }
	:: atomic { state[me] == running && !rejected && nempty(queue) -> queue?m; /* a handler */
		if
		:: decided & bit(m) -> rejected = m
		:: !(decided & bit(m)) && m == 1 -> rejected = 1; deciding = 1 /* run.go, giveUp */
		:: !(decided & bit(m)) -> n++; staged = staged | bit(m); stagedOut = stagedOut | bit(m)
		fi;
		m = 0 }
	:: atomic { state[me] == running && rejected && !(staged & bit(rejected)) &&
#ifndef MUTANT_decided               /* the decision is committed before the letter is stored */
		decided & bit(rejected) &&
#endif
		!(done & bit(rejected)) ->
		assert(!(effects & bit(rejected))); /* H7: a message that became a dead letter has published nothing */
		printf("@ host%d -> letters: message %d\n", me, rejected);
		letters = letters | bit(rejected); staged = staged | bit(rejected); deciding = 0 }
	:: atomic { state[me] == running && !waits && nfull(append[me]) && (staged || deciding || !own && seq > 1) -> /* commit.go, write */
		eDone = done | staged; eDecided = decided | deciding; eOut = stagedOut; eN = (stagedOut -> n : 0);
		staged = 0; stagedOut = 0; deciding = 0; send() }
	:: atomic { state[me] == running && committed > flushed && !flushing && nfull(flush[me]) ->
		flushing = true; flush[me]!lastFence, committed; flushed = committed }
	:: atomic { flushing && empty(flush[me]) -> flushing = false;
		if :: token != mine -> crash() :: else -> lastFence = fence fi }
#ifdef MUTANT_newest                 /* the newest entry stays: it has all that is known */
	:: atomic { state[me] == running && !waits && !flushing && flushed == committed && !unsent && seq == last && own && logDone ->
		logDone = 0; logDecided = 0; logSent = 0 }
#endif
	:: atomic { state[me] == running && own && !waits && !flushing && flushed == committed && !unsent -> /* log.go, trim */
		counter = (counterAt < last -> 0 : counter); counterAt = (counterAt < last -> 0 : counterAt);
		outAt[1] = (outAt[1] < last -> 0 : outAt[1]); outAt[2] = (outAt[2] < last -> 0 : outAt[2]) }
	:: atomic { state[me] == running && unsent -> sent = sent | unsent; unsent = 0 } /* relay.pml */
	od
}

init {
	atomic { state[1] = idle; state[2] = idle; run host(1); run host(2) };
	timeout -> assert(state[1] != running && state[2] != running || (effects | letters) == 3) /* H10: no message is lost */
}
