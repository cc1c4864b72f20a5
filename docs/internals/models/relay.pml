/* Hosted workers: from a commit to its outputs. The page: docs/reference/guarantees/host.md#h9.
 *
 * The code: fleet/host/relay.go (publish, isPublished, read), partition.go (claim, replay, holds). host.pml has what is
 * before it: that a message is committed once.
 *
 * Size: two hosts that claim the slot three times; one of them commits one output. A host may be killed, or stand still for any
 * time, with one exception, in which the code trusts: from its look whether it may publish to the publish at the server half of
 * the duplicate window passes at most, which is two ticks. Ages are 1 at first, and 0 where they play no part.
 */
#include "states.pml"
#define CLAIMS 3
#define WINDOW 4                     /* the duplicate window of the outputs' stream, in ticks */
#define HALF   2
#define HOLD   1

mtype = { idle, opening, running };  /* a host's runner */
mtype = { claims, commits, publishes };

byte claimed, holder, link;          /* the log: whose newest link it is, and its number */
bool committed, published;
byte since, drops;                   /* the age of the commit; how long the stream drops a repetition */
mtype state[3];
bool flies[3];                       /* a publish on its way; its answer may be lost */
byte looked[3], confirmed[3], read[3]; /* the age of the look, of the newest write that was answered, of what was read */

inline crash() {
	state[me] = idle; mine = 0; unsent = false; maybe = false; trying = false; there = false; read[me] = 0; confirmed[me] = 0
}

proctype host(byte me) {
	byte mine; bool unsent, maybe, trying, there; /* maybe: an earlier attempt may have published it */
end:
	do
	:: atomic { state[me] != idle && claimed < CLAIMS -> crash() } /* killed; or it is replaced, and notices */
	:: atomic { state[me] == idle && claimed < CLAIMS -> claimed++; link++; holder = me; mine = link;
		confirmed[me] = 1; state[me] = opening; printf("@ host%d -> log: claims the slot\n", me); unsent = committed; maybe = committed; event(0, claims) }
	:: atomic { state[me] == opening -> state[me] = running } /* the answer */
	:: atomic { state[me] == running && !committed && link == mine -> /* the effects of a message */
		committed = true; since = 1; confirmed[me] = 1; unsent = true; printf("@ host%d -> log: commits an output\n", me); event(1, commits) }
	:: atomic { state[me] == running && unsent && confirmed[me] > HOLD + 1 -> /* holds: a write to the log */
		if
		:: link != mine -> crash()
		:: link == mine -> confirmed[me] = 1
		:: link == mine -> confirmed[me] = 2 /* it took a while */
		fi }
	:: atomic { state[me] == running && unsent && maybe && since > HALF && !read[me] -> read[me] = 1; there = published;
		printf("@ host%d -> stream: looks for the output\n", me) } /* target.read */
	:: atomic { state[me] == running && unsent && read[me] && there -> unsent = false }
	:: atomic { read[me] > HALF -> 
#ifdef MUTANT_age                    /* what was read in the stream is of use for half of the window */
		read[me] = 1
#else
		read[me] = 0; there = false
#endif
		}
#ifdef MUTANT_hold                   /* a holder publishes only for a while after it last knew that it has the slot */
	:: atomic { state[me] == running && unsent && !trying && !flies[me] &&
#else
	:: atomic { state[me] == running && unsent && !trying && !flies[me] && confirmed[me] <= HOLD + 1 &&
#endif
#ifdef MUTANT_half                   /* a holder looks in the stream from half of the window on */
		(!maybe || since <= WINDOW || read[me] && !there) ->
#else
#ifdef MUTANT_look                   /* a holder looks in the stream for an output that may have been published */
		true ->
#else
		(!maybe || since <= HALF || read[me] && read[me] <= HALF && !there) ->
#endif
#endif
		trying = true; flies[me] = true; looked[me] = 1 }
	:: atomic { trying && !flies[me] -> trying = false;
		if
		:: unsent = false            /* the answer */
		:: maybe = true
		fi }
	od
}

active proctype stream() {           /* of the outputs' topic; a publish may also get lost */
	byte me;
end:
	do
	:: atomic { if :: flies[1] -> me = 1 :: flies[2] -> me = 2 fi;
		if
		:: drops
		:: true                      /* no stream takes the topic now */
		:: !drops ->
			assert(committed); /* H9: no output of an attempt that did not commit */
			assert(!published); /* H9: once */
			printf("@ host%d -> stream: publishes the output\n", me); published = true; drops = WINDOW; event(1, publishes)
		fi;
		flies[me] = false; looked[me] = 0; me = 0 }
	od
}

inline older(age, most) { if :: age && age < most -> age++ :: else fi }

active proctype clock() {
end:
	do
	:: atomic { looked[1] <= HALF && looked[2] <= HALF ->
		older(since, WINDOW + 1); older(looked[1], HALF + 1); older(looked[2], HALF + 1);
		older(confirmed[1], HOLD + 2); older(confirmed[2], HOLD + 2); older(read[1], HALF + 1); older(read[2], HALF + 1);
		printf("@ clock -> stream: a quarter of the window passes\n");
		if :: drops -> drops-- :: else fi }
	od
}

init { atomic { state[1] = idle; state[2] = idle; run host(1); run host(2) } }
