/* How a term is given back: package quorumhold, whenAnswered, giveBack and Release, and the tombstones of redishold's release.lua.
   Nodes, which do not know of each other, and one caller. He asks them for a term under one nonce, some of them more than once, and
   then gives up, or releases what he has had. When all nodes have confirmed that he gave up, he may use the nonce again. Requests
   overtake each other, arrive after nobody waits for them any more, or never. A successor gets a node whenever it is free.

   The rule: what ends a term at a node is sent after the answer to what started it. If one of the requests that may start it was
   never answered, it is sent as an undo with a tombstone, by which the node refuses the nonce from then on. What was not confirmed
   is sent again, an undo then with a tombstone in any case.

   What must hold:
     (A) Once a node has taken what ends a use of the nonce, or the caller has seen that there is nothing to end, no request of that
         use is granted there: neither before a successor nor after it.
     (B) What ends one use never ends a later one.
     (C) A term that nobody holds stands for no longer than its TTL, counted from the arrival of what was sent for it before its end.

   check holds   -DNODES=1 -DASKS=2               one node, asked up to twice in a use
   check holds   -DTICKS=0                        two nodes
   check holds   -DNODES=1 -DASKS=2 -DATONCE      the end is sent at once, and always with a tombstone: as safe, and dearer
   check refuted -DNODES=1 -DNOWAIT               the end is sent at once, and without one
   check refuted -DNODES=1 -DNOTOMB               without an answer the end is sent like any other
   check refuted -DNODES=1 -DASKS=2 -DLAST        only the answer to the last request counts
   check refuted -DNODES=1 -DASKS=2 -DFOUND       what a release finds standing is taken for all that may come to stand
   check refuted -DEARLY                          the nonce is used again when one node has confirmed
   check refuted -DNODES=1 -DALIKE                an undo that was not confirmed is repeated without a tombstone
   check refuted -DNODES=1 -DRENEWS               the term is renewed on after its end
   check refuted -DNODES=1 -DDROPS                the end is dropped while a request is on its way

   Assumed, and the last one shows what for: a request arrives while its end is owed (a TTL) and its tombstone kept (some minutes), or
   never. Not modelled: a node that loses its data, for which see quorum_abstain.pml, and tokens. */
#ifndef NODES
#define NODES 2
#endif
#ifndef ASKS
#define ASKS 1
#endif
#ifndef TICKS
#define TICKS 3
#endif
#define USES 2
#define SENDS 2 /* of what ends a use at a node */
#define TTL 2

/* at a node */
#define CALLER 1
#define SUCCESSOR 2
byte owner[NODES], left[NODES]; /* who stands, and for how long if it is the caller */
byte startedBy[NODES];      /* the use whose request that was */
byte idle[NODES];           /* ticks that the term has stood for nobody */
bool released[NODES];       /* the slot still names the nonce as released */
bool tomb[NODES];           /* it refuses the nonce */
bool over[NODES * USES];    /* (A) */

/* on the way: what somebody waits for, then what nobody waits for any more */
#define NONE 0
#define SENT 1
#define YES 2
#define NO 3
byte asked[NODES], ending[NODES];
byte lateAsks[NODES * USES], lateEnds[NODES * USES * 3];

/* kinds of ends */
#define PLAIN 0    /* a release, or an undo of what was answered */
#define FIRST 1    /* a release that an undo with a tombstone follows */
#define TOMBSTONE 2
byte kind[NODES];

/* what the caller knows of a node */
#define ABSENT 0
#define ASKING 1
#define GRANTED 2
#define REFUSED 3  /* or the node was not asked after all */
#define FAILED 4   /* no answer */
byte place[NODES], asks[NODES];
bool unanswered[NODES]; /* some request to start the term was never answered */

/* what he has to do about the end */
#define NOTHING 0
#define WAIT 1
#define DUE 2
#define DONE 3
byte todo[NODES], sends[NODES];

#define OPEN 0
#define GIVENUP 1
#define RELEASED 2
byte phase, use;

byte ticks;

#define AT(i, g) ((i) * USES + (g))
#define LATE(i, g, k) (AT(i, g) * 3 + (k))
#define NOBODYS(i) (owner[i] == CALLER && (startedBy[i] < use || phase != OPEN))

/* acquire.lua */
inline acquire(g, ok) {
	ok = false;
	if
	:: owner[i] == CALLER -> ok = true
	:: owner[i] == 0 && !tomb[i] && !released[i] -> ok = true; owner[i] = CALLER; startedBy[i] = g
	:: else
	fi;
	if
	:: ok -> assert(!over[AT(i, g)]); /* A */
	   left[i] = TTL; idle[i] = 0
	:: else
	fi
}

/* release.lua */
inline finish(g, k) {
	if
	:: owner[i] == CALLER -> assert(startedBy[i] == g); /* B */
	   owner[i] = 0; left[i] = 0; idle[i] = 0; startedBy[i] = 0; released[i] = true
	:: else
	fi;
	if :: k == TOMBSTONE -> tomb[i] = true :: else fi;
	if :: k != FIRST -> over[AT(i, g)] = true :: else fi
}

#define ASKED(g) lateAsks[AT(i, g)] > 0 -> which = g
#define ENDED(g, k) lateEnds[LATE(i, g, k)] > 0 -> which = (g) * 3 + k

proctype Node(byte i) {
	byte which;
	bool ok;
end:	do
	:: atomic { asked[i] == SENT -> acquire(use, ok);
		if :: ok -> asked[i] = YES :: else -> asked[i] = NO fi; ok = false }
	:: atomic { if :: ASKED(0) :: ASKED(1) fi;
		lateAsks[AT(i, which)]--; acquire(which, ok); ok = false; which = 0 }
	:: atomic { ending[i] == SENT -> finish(use, kind[i]); ending[i] = YES }
	:: atomic {
		if
		:: ENDED(0, PLAIN) :: ENDED(0, FIRST) :: ENDED(0, TOMBSTONE)
		:: ENDED(1, PLAIN) :: ENDED(1, FIRST) :: ENDED(1, TOMBSTONE)
		fi;
		lateEnds[AT(i, 0) * 3 + which]--; finish(which / 3, which % 3); which = 0 }
	:: atomic { owner[i] == 0 -> owner[i] = SUCCESSOR; released[i] = false }
	:: atomic { owner[i] == SUCCESSOR -> owner[i] = 0 }
	od
}

/* decide says what is to be sent to a node that has answered, or will not. */
inline decide(i) {
	if
	:: place[i] == GRANTED || unanswered[i] -> todo[i] = DUE;
	   if
	   :: !unanswered[i] -> kind[i] = PLAIN
	   :: unanswered[i] && phase == RELEASED -> kind[i] = FIRST
	   :: unanswered[i] && phase == GIVENUP -> kind[i] = TOMBSTONE
	   fi
#ifdef NOTOMB
	   ; kind[i] = PLAIN
#endif
	:: else -> todo[i] = DONE; over[AT(i, use)] = true
	fi
}

inline answered(i, what) {
	asked[i] = NONE; place[i] = what;
#ifdef LAST
	unanswered[i] = (what == FAILED);
#else
	if :: what == FAILED -> unanswered[i] = true :: else fi;
#endif
	if :: todo[i] == WAIT -> decide(i) :: else fi
}

proctype Caller(byte i) { /* one for each node, since he does not wait for one of them to ask the next */
	byte what;
end:	do
	/* A node that is suspect is not asked, and that is an answer. */
	:: atomic { phase == OPEN && asked[i] == NONE && place[i] != GRANTED && asks[i] < ASKS ->
		asks[i]++;
		if :: place[i] = ASKING; asked[i] = SENT :: place[i] != ABSENT -> answered(i, REFUSED) fi }
#ifdef RENEWS
	:: atomic { phase != OPEN && place[i] == GRANTED && owner[i] == CALLER && startedBy[i] == use -> left[i] = TTL }
#endif
	:: atomic { asked[i] != NONE ->
		if
		:: asked[i] == YES -> what = GRANTED
		:: asked[i] == NO -> what = REFUSED
		:: asked[i] == SENT -> lateAsks[AT(i, use)]++; what = FAILED
		:: what = FAILED /* lost, or answered in vain */
		fi;
		answered(i, what); what = 0 }

	:: atomic { todo[i] == DUE && ending[i] == NONE && sends[i] < SENDS -> sends[i]++; ending[i] = SENT }
	:: atomic { ending[i] == YES -> ending[i] = NONE;
		if
#ifndef FOUND
		:: kind[i] == FIRST -> kind[i] = TOMBSTONE; sends[i] = 0
		:: kind[i] != FIRST -> todo[i] = DONE
#else
		:: todo[i] = DONE; over[AT(i, use)] = true
#endif
		fi }
	:: atomic { ending[i] != NONE && sends[i] < SENDS ->
		if
		:: ending[i] == SENT -> lateEnds[LATE(i, use, kind[i])]++
		:: skip
		fi;
		ending[i] = NONE;
#ifndef ALIKE
		if :: phase == GIVENUP || unanswered[i] -> kind[i] = TOMBSTONE :: else fi
#endif
	   }
#ifdef DROPS
	:: atomic { todo[i] == DUE && ending[i] == NONE -> todo[i] = DONE; over[AT(i, use)] = true }
#endif
	od
}

#if defined(NOWAIT)
#define ENDAT(i) if :: place[i] == ASKING -> todo[i] = DUE; kind[i] = PLAIN :: else -> decide(i) fi
#elif defined(ATONCE)
#define ENDAT(i) if :: place[i] == ASKING -> todo[i] = DUE; kind[i] = TOMBSTONE :: else -> decide(i) fi
#else
#define ENDAT(i) if :: place[i] == ASKING -> todo[i] = WAIT :: else -> decide(i) fi
#endif
#define AGAIN(i) place[i] = ABSENT; asks[i] = 0; unanswered[i] = false; todo[i] = NOTHING; sends[i] = 0; kind[i] = PLAIN

#ifdef EARLY
#define CONFIRMED(i) (asked[i] == NONE && (todo[i] == DONE || todo[i] == DUE))
#define LEAVE(i) if :: todo[i] == DUE -> lateEnds[LATE(i, use, kind[i])]++; ending[i] = NONE :: else fi
#else
#define CONFIRMED(i) (todo[i] == DONE && asked[i] == NONE)
#define LEAVE(i) skip
#endif
#if NODES == 1
#define ALL(p) p(0)
#define EACH(p) p(0)
#define SOME(x, v) (x[0] == v)
#else
#define ALL(p) (p(0) && p(1))
#define EACH(p) p(0); p(1)
#define SOME(x, v) (x[0] == v || x[1] == v)
#endif

proctype Ends() {
	byte k;
end:	do
	:: atomic { phase == OPEN ->
		if :: phase = GIVENUP :: SOME(place, GRANTED) -> phase = RELEASED fi;
		EACH(ENDAT) }
	:: atomic { phase == GIVENUP && use + 1 < USES && ALL(CONFIRMED) && SOME(todo, DONE) ->
		EACH(LEAVE);
		use++; phase = OPEN;
		EACH(AGAIN) }
	:: atomic { ticks < TICKS -> ticks++; k = 0;
		do
		:: k < NODES ->
			if
			:: owner[k] == CALLER ->
				if :: NOBODYS(k) -> idle[k]++; assert(idle[k] <= TTL) :: else fi; /* C */
				left[k]--;
				if :: left[k] == 0 -> owner[k] = 0; idle[k] = 0; startedBy[k] = 0 :: else fi
			:: else
			fi;
			k++
		:: else -> break
		od;
		k = 0 }
	od
}

init { atomic { byte n; do :: n < NODES -> run Node(n); run Caller(n); n++ :: else -> break od; n = 0; run Ends() } }
