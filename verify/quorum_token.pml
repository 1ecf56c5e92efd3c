/* Fencing tokens over a quorum: package quorumhold, Tokens. Three nodes, two attempts, no time at all: a term may end at a
   node at any step, replies may be lost, an attempt may stop anywhere. Every token must be new, and larger than all that
   were returned before its attempt began.

   check holds                                    the protocol
   check holds   -DFORGET=1 -DABSTAIN             a node that has forgotten neither grants nor acknowledges any more
   check refuted -DNORAISE                        the largest reply, without raising the others
   check refuted -DWRITEMAX                       largest + 1, written everywhere whoever stands there
   check refuted -DFORGET=1                       a node that has forgotten goes on
   check refuted -DCLOCK -DFORGET=1 -DSKEW=6      a node that has forgotten goes on, and a clock is ahead

   Not modelled: the time after which a node that has abstained takes part again (see quorum_abstain.pml for terms). For tokens
   that is safe only as long as clocks order them. */
#ifndef FORGET
#define FORGET 0
#endif
#ifndef SKEW
#define SKEW 0
#endif
#define N 3
#define NEED 2
#define NODE(x) if :: at[0] == x -> i = 0 :: at[1] == x -> i = 1 :: at[2] == x -> i = 2 fi
#define SOME(x) (at[0] == x || at[1] == x || at[2] == x)

/* what an attempt knows of a node */
#define ASKED   0
#define SILENT  1 /* it refused, or the reply was lost */
#define GRANTED 2
#define ACKED   3 /* it has exactly the token of the attempt */
#define REFUSED 4

#ifdef ABSTAIN
#define SAMERUN(i) (seen[i] == restarts[i])
#else
#define SAMERUN(i) true
#endif

byte owner[N], counter[N], restarts[N];
byte highest, forgets = FORGET, clock;
bool used[64];

proctype Attempt(byte me) {
	byte i, token, granted, acked, before;
	byte reply[N], at[N], seen[N];
	before = highest;

	/* GRANT: the term before has ended at node i, by release, expiry or loss. */
	do
	:: atomic {
		SOME(ASKED) -> NODE(ASKED);
		at[i] = SILENT;
#if FORGET > 0
		if :: skip :: forgets > 0 -> forgets--; restarts[i]++; counter[i] = 0 fi;
#endif
#ifdef ABSTAIN
		if
		:: restarts[i] > 0 -> i = 0
		:: else ->
#endif
		owner[i] = me;
		seen[i] = restarts[i];
#ifndef WRITEMAX
		counter[i]++;
#endif
#ifdef CLOCK
		clock++;
		if :: counter[i] < clock + (i == 0 -> SKEW : 0) -> counter[i] = clock + (i == 0 -> SKEW : 0) :: else fi;
#endif
		reply[i] = counter[i];
		if
		:: at[i] = GRANTED; granted++;
		   if :: reply[i] > token -> token = reply[i] :: else fi
		:: reply[i] = 0
		fi;
		i = 0
#ifdef ABSTAIN
		fi
#endif
	   }
	:: atomic { granted >= NEED -> break }
	:: goto over
	od;

#ifdef NORAISE
	acked = granted;
#else
#ifdef WRITEMAX
	token++;
#endif
	/* RAISE: only while the key is still mine. */
	do
#if FORGET > 0
	:: atomic { forgets > 0 && SOME(GRANTED) -> NODE(GRANTED); forgets--; restarts[i]++; owner[i] = 0; counter[i] = 0; i = 0 }
#endif
	:: atomic {
		SOME(GRANTED) -> NODE(GRANTED);
		if
#ifdef WRITEMAX
		:: at[i] = ACKED; acked++;
		   if :: counter[i] < token -> counter[i] = token :: else fi
#else
		:: reply[i] == token -> at[i] = ACKED; acked++
		:: reply[i] < token && owner[i] == me && SAMERUN(i) -> at[i] = ACKED; acked++; counter[i] = token
#endif
		:: at[i] = REFUSED
		fi;
		i = 0
	   }
	:: atomic { acked >= NEED -> break }
	:: goto over
	od;
#endif
	atomic {
		assert(token > before);
		assert(!used[token]);
		used[token] = 1;
		if :: token > highest -> highest = token :: else fi
	}
over: skip;
	d_step {
		token = 0; granted = 0; acked = 0; before = 0; i = 0;
		reply[0] = 0; reply[1] = 0; reply[2] = 0; at[0] = 0; at[1] = 0; at[2] = 0; seen[0] = 0; seen[1] = 0; seen[2] = 0
	}
}

init { atomic { run Attempt(1); run Attempt(2) } }
