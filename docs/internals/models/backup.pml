/* The backup of a workflow's bucket and its restore. The page: docs/reference/guarantees/workflow.md#d28, #d36.
 *
 * The code: fleet/workflow/backup.go (Backup, save, RestoreBackup, look, clear, restore, undo).
 *
 * Size: three streams: the progress of the hooks, the journal, and the bucket, which goes on while it is backed up and keeps all
 * that the journal lacks (see workflow.pml). A backup or a restore may be killed or fail at any step. Then it is called again.
 */
#include "states.pml"
#define MOST 3                       /* revisions */
#define HOOKS   0
#define JOURNAL 1
#define BUCKET  2
#ifdef MUTANT_order                  /* the bucket is saved last */
#define saves(n) (2 - (n))
#else
#define saves(n) (n)
#endif
#ifdef MUTANT_last                   /* the bucket is restored last */
#define restores(n) (2 - (n))
#else
#define restores(n) (n)
#endif
#ifdef MUTANT_undo                   /* the undo begins with the bucket */
#define undoes(i) (3 - (i))
#else
#define undoes(i) ((i) - 1)
#endif

mtype = { begins, creates };         /* what a record of the code has: of a restore, and of a stream */

byte live[3];                        /* of each stream: its newest revision */
byte saved[3];
bool exists[3], manifest, wiped, whole;

#define hasAll (exists[HOOKS] && exists[JOURNAL] && exists[BUCKET])

active proctype service() {          /* until the disaster: the server copies, and hooks react */
	exists[HOOKS] = true; exists[JOURNAL] = true; exists[BUCKET] = true;
	do
	:: atomic { !wiped && live[BUCKET] < MOST -> live[BUCKET]++ }
	:: atomic { !wiped && live[JOURNAL] < live[BUCKET] -> live[JOURNAL]++ }
	:: atomic { !wiped && live[HOOKS] < live[JOURNAL] -> live[HOOKS]++ }
	:: atomic { !wiped && manifest -> wiped = true; exists[BUCKET] = false; exists[JOURNAL] = false; exists[HOOKS] = false;
		live[0] = 0; live[1] = 0; live[2] = 0; break }
	od
}

active proctype backup() {
	byte n;
	do
	:: n < 3 -> saved[saves(n)] = live[saves(n)]; printf("@ backup -> folder: stream %d up to revision %d\n", saves(n), live[saves(n)]); n++
	:: n == 3 -> manifest = true; break
#ifdef MUTANT_manifest               /* a backup is complete with its manifest, which is written last */
	:: n > 0 && n < 3 -> manifest = true; break
#endif
	:: n < 3 -> n = 0; saved[0] = 0; saved[1] = 0; saved[2] = 0 /* killed, and begun anew */
	od
}

inline look() { assert(!exists[BUCKET] || hasAll) /* D36: no bucket lives without its journal and its hooks' progress */ }

active proctype restore() {
	byte n, i, began, kills;         /* began: the streams that this call has created, as bits */
	wiped;
	event(3, begins);
	do
	:: n < 3 && exists[restores(n)] && live[restores(n)] == saved[restores(n)] -> n++ /* look */
	:: atomic { n < 3 && !exists[restores(n)] -> began = began | (1 << restores(n));
		exists[restores(n)] = true; live[restores(n)] = saved[restores(n)];
		printf("@ restore -> server: creates stream %d\n", restores(n)); event(restores(n), creates); look(); n++ }
	:: atomic { kills < 2 && n < 3 -> kills++; n = 0; began = 0; event(3, begins) } /* killed */
	:: atomic { kills < 2 && began -> kills++ }; /* it fails, also at its last answer, and its undo may be killed or fail too */
		i = 3;
		do
		:: i > 0 && began & (1 << undoes(i)) ->
			if
			:: true -> printf("@ restore -> server: deletes stream %d\n", undoes(i)); exists[undoes(i)] = false; live[undoes(i)] = 0; look(); i--
			:: true -> break
			fi
		:: i > 0 && !(began & (1 << undoes(i))) -> i--
		:: i == 0 -> break
		od;
		n = 0; began = 0; i = 0; event(3, begins)
	:: n == 3 -> break
	od;
	assert(hasAll); /* D36 */
	assert(live[HOOKS] <= live[JOURNAL] && live[JOURNAL] <= live[BUCKET]); /* D28: hooks repeat reactions, and miss none */
	whole = true
}

init { timeout -> assert(whole || !manifest) /* D36: it can be called again */ }
