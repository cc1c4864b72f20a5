/* The goodbye on one HTTP/2 connection. The page: docs/reference/guarantees/app.md#r45.
 *
 * The code: internal/httpdrain/http2conn.go (beginGoodbye, sendNow, writeFirstGoAway, writeWithGoodbye,
 * writeResponseEndWithGoAway, Read, clientHadTime, closeWithoutStreams), frames.go (mayInsert), http2wire.go
 * (speaks, sayGoodbyeHTTP2, insistHTTP2), goodbye.go (EndWindow).
 *
 * Size: a client that sends up to three requests, each frame in two pieces, and may say goodbye
 * itself; a connection that comes at any time. A Write is atomic, because it holds wmu.
 *
 * What the code trusts in: a client acts on the first GOAWAY, and what it sent before arrives,
 * within goAwayWait, or within settle after its acknowledgement. HAD_TIME says so. */
#include "states.pml"

#define REQUESTS 3

mtype = { piece, request, response, firstGoAway, lastGoAway, ping, ack, leaves };
mtype = { asks, answers, first, acknowledge, final }; /* what a record of the code has: what the client sends and reads */
chan up = [10] of { mtype, byte };    /* from the client */
chan down = [12] of { mtype, byte };  /* to the client */

mtype step = goodbye_notAsked;       /* http2Conn */
byte open, last;                     /* streams: how many are open, and the latest id */
bool inFrame, outFrame;              /* in the middle of a frame that is read, or written */
bool sentGoAway, pinged, acked, speaks, late, windowOver, closed;
bool told;                           /* the implementation has read a GOAWAY */
byte toldLast;                       /* the last stream that it had taken then */
byte sent, answered;                 /* of the client */
bool heard, gone;                    /* its program knows of the GOAWAY, and opens no stream */

#ifdef MUTANT_wait                   /* the second step waits for the client */
#define HAD_TIME true
#else
#ifdef MUTANT_settle                 /* the time after the acknowledgement, for clients whose program hears later */
#define HAD_TIME (acked || !pinged && heard && empty(up))
#else
#define HAD_TIME ((acked || !pinged) && heard && empty(up))
#endif
#endif

#ifdef MUTANT_frame                  /* a frame is inserted between two frames only */
#define mayInsert(inside) true
#else
#define mayInsert(inside) (!inside)
#endif

inline writeFirstGoAway() {          /* with a PING when the client has streams open */
	if
#ifndef MUTANT_once                  /* the implementation was faster: a later GOAWAY must not name a higher stream */
	:: sentGoAway -> step = goodbye_said
#endif
	:: else ->
		step = goodbye_waiting;
		down!firstGoAway(0);
		if :: open > 0 -> pinged = true; down!ping(0) :: else fi
	fi
}

inline write(kind, n) {              /* Write: also what is asked for, before and behind it */
	atomic {
		if
		:: step == goodbye_asked && mayInsert(outFrame) && !closed -> writeFirstGoAway()
		:: else
		fi;
		if
		:: !closed -> down!kind(n); outFrame = (kind == piece); sentGoAway = sentGoAway || kind == lastGoAway
		:: else
		fi;
		open = (kind == response -> open - 1 : open);
		if
		:: step == goodbye_whenQuiet && kind == response && open == 0 && !sentGoAway && !closed ->
			step = goodbye_waiting; down!firstGoAway(0)
		:: step == goodbye_asked && mayInsert(outFrame) && !closed -> writeFirstGoAway()
		:: else
		fi
	}
}

inline sendNow() {                   /* tryWriteFirstGoAway */
	atomic {
		if
		:: step == goodbye_notAsked || step == goodbye_whenQuiet ->
			step = goodbye_asked;
			if :: !closed && mayInsert(outFrame) -> writeFirstGoAway() :: else fi
		:: else
		fi
	}
}

active proctype client() {
	byte n; bool middle, read, stays;
	if :: stays = true :: true fi;   /* it may say goodbye by itself */
	speaks;
	do
	:: sent < REQUESTS && !heard && !closed -> sent++;
		printf("@ client -> server: request %d\n", sent); event(sent, asks); up!piece(sent); up!request(sent)
	:: !heard && !stays && !closed -> heard = true;
		printf("@ client -> server: GOAWAY of its own\n"); up!leaves(0)
	:: atomic { down?piece(_) -> assert(!middle); middle = true /* R45 */ }
	:: atomic { down?response(n) -> middle = false; answered++; event(0, answers); printf("@ server -> client: response %d\n", n) }
	:: atomic { down?firstGoAway(_) -> event(0, first); printf("@ server -> client: GOAWAY, no stream is refused\n");
		assert(!middle && !read && !gone); read = true /* R45, R14a: one goodbye, and ids never rise */ }
	:: read && !heard -> heard = true /* Node acknowledges before its program hears of it */
	:: atomic { down?ping(_) -> event(0, acknowledge); up!ack(0); printf("@ client -> server: acknowledges\n") }
	:: atomic { down?lastGoAway(n) -> event(n, final); printf("@ server -> client: GOAWAY, the last stream is %d\n", n);
		assert(!middle && !gone && sent <= n); gone = true; heard = true /* R45, R14a */ }
	:: closed && empty(down) -> break
	od
}

active proctype reader() {           /* Read and followRead; the implementation reads from it */
	byte n;
#ifdef MUTANT_late                   /* speaks: first it is known, then it looks whether the window is over */
	late = windowOver; speaks = true;
#else
	speaks = true; late = windowOver;
#endif
	do
	:: atomic { up?piece(_) -> inFrame = true }
	:: atomic { up?request(n) -> inFrame = false; last = n; assert(!told) /* R45: it would be dropped */; open++ }
	:: atomic { up?ack(_) -> acked = true }
	:: atomic { up?leaves(_) -> if :: !told -> told = true; toldLast = last :: else fi }
	:: atomic { step == goodbye_ending && mayInsert(inFrame) && !closed ->
		assert(!inFrame); /* R45 */
		step = goodbye_said;
		if :: !told -> told = true; toldLast = last :: else fi }
	:: closed && empty(up) -> break
	od
}

active proctype implementation() {   /* net/http: answers, and closes behind the last stream */
	bool said;
	do
	:: open > 0 -> write(piece, 0); write(response, 0)
	:: told && !said -> said = true; write(lastGoAway, toldLast)
	:: told && said && open == 0 -> atomic { closed = true; break }
	:: closed -> break
	od
}

active proctype timer() {            /* checkUnused, clientHadTime */
	do
	:: atomic { open == 0 && (step == goodbye_whenQuiet || late && step == goodbye_notAsked) -> sendNow() }
	:: atomic { step == goodbye_waiting && HAD_TIME && !closed -> step = goodbye_ending };
		atomic {                     /* closeWithoutStreams; otherwise wakeReader */
			if
			:: open == 0 && mayInsert(outFrame) && !sentGoAway && !closed ->
				down!lastGoAway(last); sentGoAway = true; closed = true
			:: else
			fi
		}
	:: closed -> break
	od
}

active proctype app() {              /* EndWindow, and insistHTTP2 in the middle of Linger */
	windowOver = true;
#ifdef MUTANT_steps                  /* two steps: with one, the implementation says goodbye at once */
	atomic { if :: speaks && !told -> told = true; toldLast = last :: else fi };
#endif
	atomic { if :: speaks && step == goodbye_notAsked -> step = goodbye_whenQuiet :: else fi };
	atomic {
		if
		:: speaks && step == goodbye_notAsked -> step = goodbye_whenQuiet
		:: speaks && step == goodbye_whenQuiet -> sendNow()
		:: else
		fi
	}
}

active proctype atTheEnd() {
	timeout -> assert(closed && answered == sent) /* R14a, R45 */
}
