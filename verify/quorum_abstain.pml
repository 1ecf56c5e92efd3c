/* Exclusion over a quorum: package quorumhold, Exclusion and Loss. Three nodes that may lose their data at any time, two
   clients, discrete time. A client believes from its grant until TTL ticks after it began to ask, or after it began its last
   confirmed renewal. No two may believe at once.

   check holds   -DRENEWALS=1           nodes that have forgotten abstain for a TTL
   check holds   -DLOSSES=1             and a term is given to them again, which counts from the next renewal on
   check refuted -DNOABSTAIN            they do not abstain
   check refuted -DSHORT                they abstain for less than a TTL
   check refuted -DLATESTART            the window begins when the grant is complete, not when it is asked for
   check refuted -DGIVEBACK             the rest is given back when a majority has lost the term, though the client has not heard */
#define N 3
#define NEED 2
#define TTL 2
#ifndef LOSSES
#define LOSSES 2
#endif
#ifndef TICKS
#define TICKS 3
#endif
#ifndef RENEWALS
#define RENEWALS 2
#endif
#define ROUNDS(me) (me == 1 -> RENEWALS : 0) /* client 2 is the rival: it asks, and does not renew */
#ifdef SHORT
#define SPAN (TTL - 1)
#else
#define SPAN TTL
#endif

byte owner[N], left[N], abstains[N]; /* who stands at the node, for how long; for how long it grants nothing */
byte window[3];                      /* ticks in which client 1, 2 may believe */
byte next[3];                        /* of the window that the request under way would give */
bool believes[3];
byte losses = LOSSES;

#define CHECK assert(!(believes[1] && believes[2]))
#define FREE(i) (owner[i] == 0 && abstains[i] == 0)
#define COUNT(s) ((s & 1) + ((s >> 1) & 1) + ((s >> 2) & 1))
#define PICK(C) if :: C(0) -> i = 0 :: C(1) -> i = 1 :: C(2) -> i = 2 fi /* a node for which C holds; blocks if there is none */
#define HAVE(i) ((have & (1 << i)) != 0)
#define HEARD(i) ((heard & (1 << i)) != 0)

#define GRANTS(i)  (!HAVE(i) && abstains[i] == 0 && (owner[i] == 0 || owner[i] == me))
#define RENEWS(i)  (HAVE(i) && !HEARD(i) && owner[i] == me)
#define GONE(i)    (HAVE(i) && owner[i] != me)
#define LACKS(i)   (!HAVE(i) && FREE(i))
#define ALWAYS(i)  true

proctype Client(byte me) {
	byte i, have, heard, rounds;
	atomic { next[me] = TTL }
	do
	:: atomic { PICK(GRANTS);
		owner[i] = me; left[i] = TTL;
		have = have | (1 << i); i = 0 }
#ifdef LATESTART
	:: atomic { COUNT(have) >= NEED -> window[me] = TTL; believes[me] = true; CHECK; break }
#else
	:: atomic { COUNT(have) >= NEED && next[me] > 0 -> window[me] = next[me]; believes[me] = true; CHECK; break }
#endif
	:: goto over
	od;

	/* Renewals. have is where the term stands as far as it counts. */
	do
	:: atomic { believes[me] && rounds < ROUNDS(me) -> rounds++; next[me] = TTL; heard = 0 };
	   do
	   :: atomic { PICK(RENEWS);
		left[i] = TTL; heard = heard | (1 << i); i = 0 }
	   :: atomic { PICK(GONE); have = have & ~(1 << i); i = 0 }
	   :: atomic { COUNT(heard) >= NEED && believes[me] ->
		if :: next[me] > window[me] -> window[me] = next[me] :: else fi; heard = 0; i = 0 };
	      /* confirmed: give it again to a node that lacks it; it counts if the answer comes in time */
	      if
	      :: atomic { PICK(LACKS); owner[i] = me; left[i] = TTL };
		 atomic { if :: believes[me] -> have = have | (1 << i) :: skip fi; i = 0 }
	      :: skip
	      fi;
	      break
#ifdef GIVEBACK
	   :: atomic { COUNT(have) < NEED ->
		if :: owner[0] == me -> owner[0] = 0; left[0] = 0 :: else fi;
		if :: owner[1] == me -> owner[1] = 0; left[1] = 0 :: else fi;
		if :: owner[2] == me -> owner[2] = 0; left[2] = 0 :: else fi; goto over }
#endif
	   :: goto over
	   od
	:: goto over
	od;
over:
	atomic { have = 0; heard = 0; i = 0; rounds = 0; next[me] = 0 }
}

/* One tick of all clocks. A window ends when it is over, by the client's own alarm. */
proctype Time() {
	byte k, ticks;
	do
	:: atomic { ticks < TICKS -> ticks++; k = 0;
		do
		:: k < N ->
			if :: left[k] > 0 -> left[k]--; if :: left[k] == 0 -> owner[k] = 0 :: else fi :: else fi;
			if :: abstains[k] > 0 -> abstains[k]-- :: else fi;
			k++
		:: else -> break
		od;
		k = 1;
		do
		:: k <= 2 ->
			if :: next[k] > 0 -> next[k]-- :: else fi;
			if :: window[k] > 0 -> window[k]--; if :: window[k] == 0 -> believes[k] = false :: else fi :: else fi;
			k++
		:: else -> break
		od;
		k = 0 }
	:: ticks == TICKS -> break
	od
}

/* A node loses its data. */
proctype Loss() {
	byte i;
	do
	:: atomic { losses > 0 -> losses--; PICK(ALWAYS); owner[i] = 0; left[i] = 0;
#ifndef NOABSTAIN
		abstains[i] = SPAN;
#endif
		i = 0 }
	:: losses == 0 -> break
	od
}

init { atomic { run Client(1); run Client(2); run Time(); run Loss() } }
