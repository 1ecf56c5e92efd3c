/* The waiting line of a store that keeps one (driver.Queue): docs/design.md, part "The line".

   A waiter stands in line under a nonce. A release makes the first live one in line the owner, in the same step, and pushes
   a message to its process. The message can be late, stale or lost. So a waiter's process sends heartbeats: they keep it
   alive in the line, and their answer says what has become of its nonce.

   The steps that tests and code are named after:
     enqueue   puts a nonce into the line, or grants
     beat      the heartbeat: alive; then promote; then waiting, granted (and re-armed to the full TTL), or unknown
     renew     re-arms the term of the owner to the full TTL
     leave     takes a nonce out of the line, or ends its term and promotes; the nonce is not to be granted any more. UNDOS of
               them are undone in the background: whoever gives up goes on at once, and may stand in line anew
     promote   if the key is free, pops dead waiters and makes the first live one the owner for the claim, and pushes

   Time is a tick that takes one off every timer, at the store and at the clients at the same moment: the margin of the
   trust rule, which is there for clocks that run unevenly, is not modelled. Anything can happen between two steps: any
   number of ticks (a pause), the loss of a request or of its reply, a request that arrives after its sender gave up, the
   death of a process. A client has one request in flight besides what is late.

   What is checked:
     - whoever trusts owns the term by the store's clock (assert in tick and after every step of the store), so no two trust;
     - a grant that its grantee has not confirmed, because it is dead or has left, ends within the claim;
     - a nonce is never granted after its leave was processed;
     - TIMELY: where a process that lives has an answer to its undos in every tick, what was given up is not granted any more;
     - TIMELY: where waiters send a heartbeat in every tick and get an answer, and all messages may be lost, the key is not
       idle for longer than one holder that died and one whose renewal had no answer can account for;
     - FAILOVER: the store may fall back to an earlier state, as a replica that takes over does, while messages of the old
       one are on their way: what a waiter begins to trust because of a message is true at the store that it asks.

   check holds   -DWAITERS=2 -DEACH=2                          two waiters, twice each
   check holds   -DWAITERS=2 -DEACH=1 -DGHOSTS=1 -DDEATHS=1    a late request, a death
   check holds   -DWAITERS=3 -DEACH=1 -DRELIABLE -DCLAIM=1 -DTTL=2    three in line
   check holds   -DWAITERS=2 -DEACH=2 -DTIMELY -DDEATHS=1      nobody waits for ever
   check holds   -DWAITERS=3 -DEACH=1 -DTIMELY -DDEATHS=1 -DRELIABLE  nobody waits for ever, three in line
   check holds   -DWAITERS=2 -DEACH=1 -DFAILOVER               every push is confirmed where a replica may take over
   check holds   -DWAITERS=2 -DEACH=2 -DUNDOS=1 -DCLAIM=1 -DTTL=2 -DRELIABLE    a wait is given up, and the next one begun before that is undone
   check holds   -DWAITERS=2 -DEACH=1 -DUNDOS=2 -DGHOSTS=1 -DDEATHS=1 -DCLAIM=1 -DTTL=2    undos that are served late, twice or never
   check holds   -DWAITERS=2 -DEACH=2 -DUNDOS=2 -DTIMELY -DRELIABLE    what was given up costs a call, and no claim
   check refuted -DWAITERS=2 -DEACH=1 -DTRUST_FROM_PUSH        trust counts from the arrival of the message
   check refuted -DWAITERS=2 -DEACH=1 -DTRUST_FROM_REPORT      trust counts from the heartbeat that reports the grant and does not re-arm it
   check refuted -DWAITERS=2 -DEACH=2 -DSAME_NONCE             a heartbeat puts an unknown nonce into the line again
   check refuted -DWAITERS=2 -DEACH=1 -DDEATHS=1 -DNO_CLAIM    the hand-off grants the full TTL
   check refuted -DWAITERS=2 -DEACH=1 -DGHOSTS=1 -DNO_TOMB     an undone enqueue is not refused when it arrives
   check refuted -DWAITERS=2 -DEACH=1 -DFAILOVER -DNO_CONFIRM  a push counts unconfirmed although a replica may take over
   check refuted -DWAITERS=2 -DEACH=1 -DTIMELY -DDEATHS=1 -DNO_PROMOTE   a heartbeat does not promote: the end of a dead holder's term wakes nobody
   check refuted -DWAITERS=2 -DEACH=2 -DUNDOS=1 -DRELIABLE -DUNDO_ENDS   an undo ends the term of another nonce of its process
   check refuted -DWAITERS=2 -DEACH=1 -DUNDOS=1 -DRELIABLE -DTAKE_UP     a place that was given up is taken up again before it is undone
   check refuted -DWAITERS=2 -DEACH=1 -DUNDOS=1 -DRELIABLE -DUNDO_UNKNOWN    what is pushed and not waited for is given back, also if it is held
   check refuted -DWAITERS=2 -DEACH=2 -DUNDOS=1 -DTIMELY -DRELIABLE -DUNDO_ONCE    an undo is not kept until it is answered
   check refuted -DWAITERS=2 -DEACH=2 -DUNDOS=1 -DTIMELY -DRELIABLE -DUNDO_PLACE   a leave takes out of the line only, and ends no term
   check refuted -DWAITERS=2 -DEACH=2 -DTIMELY -DNO_REPORT     a heartbeat calls a nonce waiting that was granted */

#ifndef GHOSTS
#define GHOSTS 0 /* how many requests may arrive late */
#endif
#ifndef UNDOS
#define UNDOS 0 /* how often a client may go on before its leave is answered */
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef CLAIM
#define CLAIM 2 /* ticks that a pushed grant lasts until it is confirmed */
#endif
#ifndef TTL
#define TTL 3
#endif
#define LIVE CLAIM /* ticks that a process is alive after its last heartbeat */
#define NONCES 6  /* at least WAITERS * EACH; nonce 0 is none */
#define OF(n) (((n) - 1) / EACH) /* whose nonce it is */

/* The store. */
byte owner, left; /* the term: it stands while left > 0 */
bit claimed;      /* it was handed over and is not confirmed yet */
chan line = [NONCES] of { byte };
bit inLine[NONCES + 1];
byte alive[WAITERS];
bit tomb[NONCES + 1];    /* not to be granted: its enqueue was undone */
bit retired[NONCES + 1]; /* its leave was processed; for the check only */
chan push[WAITERS] = [EACH] of { byte };

/* The clients. */
mtype = { Idle, Asking, Waiting, Holding, Over };
mtype = { Enqueue, Beat, Renew, Leave };
mtype = { Failed, Granted, Queued, Unknown };
mtype state[WAITERS] = Idle;
byte cur[WAITERS];   /* its nonce */
byte trust[WAITERS]; /* ticks that it may believe to hold */
byte since[WAITERS]; /* ticks since its request was sent; TTL if there is none */
byte listed[WAITERS]; /* ticks since that request was sent whose answer listed its nonce as waiting; TTL if none */
bit dead[WAITERS];
bit pending[NONCES + 1]; /* it was given up, and its leave is not answered yet */
#ifdef TIMELY
#define GETS_ON idleFor = 0
bit beaten[WAITERS]; /* it had an answer to a heartbeat in this tick */
byte idleFor;   /* ticks since somebody began to trust, in which nobody did although somebody waits */
#else
#define GETS_ON skip
#endif
byte unconfirmed; /* ticks that a claimed term has had nobody who could confirm it */

byte undos; /* in the background, so far */
byte ghosts; /* late requests so far */
mtype ghostOp;
byte ghostOf;

/* What the store was at an earlier time. */
#ifdef FAILOVER
bit failed, kept;
byte keptOwner, keptLeft;
bit keptClaimed;
chan keptLine = [NONCES] of { byte };
bit era[WAITERS]; /* whether the client began to trust after the failover, by an answer of the new primary */
#define TRUE_TO_STORE(i) (trust[i] == 0 || era[i] != failed || (owner == cur[i] && left > 0))
#define ERA(i) era[i] = at; at = 0
#define AT at = failed
#define FELL_BACK failed /* the store has forgotten what it retired */
#else
#define TRUE_TO_STORE(i) (trust[i] == 0 || (owner == cur[i] && left > 0))
#define ERA(i) skip
#define AT skip
#define FELL_BACK 0
#endif

/* Work variables, of no meaning between steps. */
hidden byte x, y;
hidden mtype answer;

inline sound() {
	assert(TRUE_TO_STORE(0));
	assert(TRUE_TO_STORE(1));
#if WAITERS > 2
	assert(TRUE_TO_STORE(2));
#endif
}

inline promote() {
	do
	:: left == 0 && len(line) > 0 ->
		line?x;
		inLine[x] = 0;
		y = alive[OF(x)];
		if
		:: y > 0 ->
			assert(FELL_BACK || !retired[x]);
			owner = x;
			claimed = 1;
			unconfirmed = 0;
#ifdef NO_CLAIM
			left = TTL;
#else
			left = CLAIM;
#endif
			if
			:: nfull(push[OF(x)]) && !dead[OF(x)] && state[OF(x)] != Over -> push[OF(x)]!x
			:: full(push[OF(x)]) || dead[OF(x)] || state[OF(x)] == Over -> skip
			fi
		:: else -> skip
		fi
	:: else -> break
	od;
	x = 0;
	y = 0
}

/* serve does what the store does with a request about the nonce n, and leaves what it says in answer. */
inline serve(op, n) {
	if
	:: op == Enqueue && tomb[n] -> answer = Unknown
	:: op == Enqueue && !tomb[n] ->
		alive[OF(n)] = LIVE;
		promote();
		if
		:: left > 0 && owner == n -> left = TTL; claimed = 0; answer = Granted
		:: left > 0 && owner != n ->
			if
			:: inLine[n] -> skip
			:: else -> line!n; inLine[n] = 1
			fi;
			answer = Queued
		:: left == 0 -> assert(FELL_BACK || !retired[n]); owner = n; left = TTL; claimed = 0; answer = Granted
		fi
	:: op == Beat ->
		alive[OF(n)] = LIVE;
#ifndef NO_PROMOTE
		promote();
#endif
		if
		:: left > 0 && owner == n ->
#ifdef NO_REPORT
			answer = Queued
#else
#ifndef TRUST_FROM_REPORT
			left = TTL;
			claimed = 0;
#endif
			answer = Granted
#endif
		:: !(left > 0 && owner == n) && inLine[n] -> answer = Queued
		:: else ->
#ifdef SAME_NONCE
			line!n;
			inLine[n] = 1;
			answer = Queued
#else
			answer = Unknown
#endif
		fi
	:: op == Renew ->
		if
		:: left > 0 && owner == n -> left = TTL; claimed = 0; answer = Granted
		:: else -> answer = Unknown
		fi
	:: op == Leave ->
		if
		:: inLine[n] -> line??eval(n); inLine[n] = 0
		:: else -> skip
		fi;
#ifdef UNDO_ENDS
		if
		:: left > 0 && OF(owner) == OF(n) -> owner = 0; left = 0; claimed = 0
		:: else -> skip
		fi;
#else
		if
#ifdef UNDO_PLACE
		:: 0 -> skip
#else
		:: owner == n -> owner = 0; left = 0; claimed = 0
#endif
		:: else -> skip
		fi;
#endif
#ifndef NO_TOMB
		tomb[n] = 1;
#endif
		retired[n] = 1;
		promote();
		answer = Granted
	fi
}

/* ask is one request: sent before, now served or lost. The answer of what is lost is Failed. */
inline ask(i, op, res) {
	if
	:: d_step { serve(op, cur[i]); res = answer; answer = 0; AT; sound() }
#ifndef RELIABLE
	:: d_step { serve(op, cur[i]); res = Failed; answer = 0; sound() }
	:: d_step { res = Failed }
#endif
	:: d_step { ghosts < GHOSTS && ghostOp == 0 -> ghosts++; ghostOp = op; ghostOf = cur[i]; res = Failed }
	fi
}

#if defined(FAILOVER) && !defined(NO_CONFIRM)
#define CONFIRM 1
#else
#define CONFIRM 0
#endif
#ifdef TRUST_FROM_PUSH
#define WORTH(i) CLAIM
#else
#define WORTH(i) (CLAIM - listed[i])
#endif
#define FORGET(i) res = 0; n = 0; since[i] = TTL; listed[i] = TTL

/* begin is the moment from which a client believes that it holds. */
inline begin(i, ticks) {
	trust[i] = ticks;
	ERA(i);
	state[i] = Holding;
	GETS_ON;
	FORGET(i);
	sound()
}

inline queued(i) {
	listed[i] = since[i];
	since[i] = TTL;
	res = 0;
	ERA(i);
	state[i] = Waiting
}

/* heard is that a message arrives. One about an earlier nonce means nothing: the claim ends that term. */
inline heard(i) {
	atomic {
		push[i]?n ->
		if
		:: n == cur[i] && (CONFIRM || WORTH(i) <= 0) -> n = 0; goto confirm
		:: n == cur[i] && !CONFIRM && WORTH(i) > 0 -> listen(i); goto hold
		:: n != cur[i] -> n = 0
		fi
	}
}

/* leaveNoTrace merges states that differ in what a client had in hand when it ended. */
inline leaveNoTrace(i) {
	used = EACH;
	trust[i] = 0;
	do
	:: len(push[i]) > 0 -> push[i]?n
	:: else -> break
	od;
	n = 0
}

inline listen(i) { /* trust that a message begins belongs to the era of the last answer */
	trust[i] = WORTH(i);
	state[i] = Holding;
	GETS_ON;
	FORGET(i);
	sound()
}

proctype Client(byte i) {
	byte used, n;
	mtype res;
#ifdef FAILOVER
	bit at; /* when the last request was served: before or after the failover */
#endif
	{
	used = 0;
idle:
	atomic {
		FORGET(i);
		state[i] = Idle;
		if
		:: used < EACH -> used++; cur[i] = i * EACH + used
#ifdef TAKE_UP
		:: pending[cur[i]] -> skip
#endif
		:: goto over
		fi
	};
	atomic { state[i] = Asking; since[i] = 0 };
	ask(i, Enqueue, res);
	atomic {
		if
		:: res == Granted && since[i] < TTL -> begin(i, TTL - since[i]); goto hold
		:: res == Queued -> queued(i)
		:: else -> goto leave
		fi
	};
wait:
	if
	:: heard(i)
	:: goto beat
	:: goto leave /* the wait was cancelled */
	fi;
beat:
	atomic { state[i] = Asking; since[i] = 0 };
	ask(i, Beat, res);
	if
	:: heard(i) /* before the answer to the heartbeat is */
	:: skip
	fi;
	atomic {
#ifdef TIMELY
		beaten[i] = (res != Failed);
#endif
		if
		:: res == Failed -> res = 0; state[i] = Waiting; since[i] = TTL; goto wait
		:: res == Queued -> queued(i); goto wait
#ifdef TRUST_FROM_REPORT
		:: res == Granted && since[i] < CLAIM -> begin(i, CLAIM - since[i]); goto hold
#else
		:: res == Granted && since[i] < TTL -> begin(i, TTL - since[i]); goto hold
#endif
		:: res == Unknown -> goto idle /* that nonce is retired for good */
		:: else -> goto leave
		fi
	};
confirm:
	atomic { state[i] = Asking; since[i] = 0 };
	ask(i, Renew, res);
	atomic {
		if
		:: res == Granted && since[i] < TTL -> begin(i, TTL - since[i])
		:: else -> goto leave
		fi
	};
hold:
	if
	:: atomic { trust[i] > 0 -> since[i] = 0 };
		ask(i, Renew, res);
		atomic {
			if
			:: res == Granted && trust[i] > 0 && since[i] < TTL -> begin(i, TTL - since[i])
			:: else -> skip
			fi;
			FORGET(i)
		}
#ifdef UNDO_UNKNOWN
	:: atomic { push[i]?n -> pending[n] = 1; n = 0 }; goto hold
#endif
	:: skip
	fi;
leave: /* the work is over, or was ended, or the wait was given up */
	atomic { FORGET(i); trust[i] = 0; state[i] = Asking };
	do
	:: ask(i, Leave, res);
		if
		:: res != Failed -> break
		:: else -> res = 0
		fi
	:: atomic { undos < UNDOS -> undos++; pending[cur[i]] = 1; goto idle }
	od;
	goto idle;
over:
	atomic { state[i] = Over; leaveNoTrace(i) }
	} unless {
		atomic { dead[i] -> FORGET(i); leaveNoTrace(i) }
	}
}

/* Undoer gives back what a client has given up. An undo is kept until it is answered; what is not answered may have been
   served, or be on its way for any time. It ends with its process. */
#define DUE(n) (pending[n] && !dead[OF(n)])
inline undo(n) {
	if
	:: d_step { DUE(n) -> serve(Leave, n); answer = 0; pending[n] = 0; sound() }
#ifndef RELIABLE
	:: d_step { DUE(n) && !retired[n] -> serve(Leave, n); answer = 0; sound() }
#endif
#ifdef UNDO_ONCE
	:: d_step { DUE(n) -> pending[n] = 0 }
#endif
	:: d_step { DUE(n) && ghosts < GHOSTS && ghostOp == 0 -> ghosts++; ghostOp = Leave; ghostOf = n }
	fi
}

proctype Undoer(byte i) {
end:
	do
	:: undo(i * EACH + 1)
#if EACH > 1
	:: undo(i * EACH + 2)
#endif
	od
}

/* Tick lets time pass. Where it is TIMELY it waits for all requests, for a heartbeat of everyone who waits, and for all undos of
   who lives. */
#define DOWN(t) t = (t > 0 -> t - 1 : 0)
#define UP(t) t = (t < TTL -> t + 1 : TTL)
#if EACH > 1
#define PENDS(i) (pending[i * EACH + 1] || pending[i * EACH + 2])
#else
#define PENDS(i) pending[i + 1]
#endif
#define READY(i) (dead[i] || !PENDS(i) && AT_EASE(i))
#define AT_EASE(i) (state[i] == Idle || state[i] == Over || (state[i] == Holding && since[i] == TTL) || (state[i] == Waiting && beaten[i]))
#define NOBODYS(n) (cur[OF(n)] != n || state[OF(n)] == Idle || state[OF(n)] == Over)
#define WAITS(i) (!dead[i] && state[i] == Waiting)
#ifdef TIMELY
#if WAITERS > 2
#define MAY_TICK (READY(0) && READY(1) && READY(2))
#define SOMEBODY_WAITS (WAITS(0) || WAITS(1) || WAITS(2))
#define NOBODY_TRUSTS (trust[0] + trust[1] + trust[2] == 0)
#else
#define MAY_TICK (READY(0) && READY(1))
#define SOMEBODY_WAITS (WAITS(0) || WAITS(1))
#define NOBODY_TRUSTS (trust[0] + trust[1] == 0)
#endif
#else
#define MAY_TICK 1
#endif

inline passes(i) {
	DOWN(trust[i]);
	DOWN(alive[i]);
	UP(since[i]);
	UP(listed[i])
}

proctype Tick() {
end:
	do
	:: d_step {
		MAY_TICK ->
#ifdef TIMELY
		assert(left == 0 || dead[OF(owner)] || !NOBODYS(owner));
#endif
		DOWN(left);
		passes(0);
		passes(1);
#if WAITERS > 2
		passes(2);
#endif
#ifdef FAILOVER
		DOWN(keptLeft);
#endif
		sound();
		if
		:: left == 0 -> claimed = 0; owner = 0
		:: else -> skip
		fi;
		if
		:: claimed && (dead[OF(owner)] || NOBODYS(owner)) ->
			unconfirmed++;
			assert(unconfirmed < CLAIM)
		:: else -> unconfirmed = 0
		fi;
#ifdef TIMELY
		beaten[0] = 0;
		beaten[1] = 0;
#if WAITERS > 2
		beaten[2] = 0;
#endif
		if
		:: SOMEBODY_WAITS && NOBODY_TRUSTS -> idleFor++; assert(idleFor <= 2 * TTL + 1)
		:: else -> idleFor = 0
		fi
#endif
	}
	od
}

/* Fate is what else can happen. */
proctype Fate() {
	byte deaths;
end:
	do
	:: d_step { ghostOp != 0 -> serve(ghostOp, ghostOf); answer = 0; ghostOp = 0; ghostOf = 0; sound() }
	:: atomic {
		deaths < DEATHS ->
		deaths++;
		if
		:: x = 0
		:: x = 1
#if WAITERS > 2
		:: x = 2
#endif
		fi;
		dead[x] = 1;
		trust[x] = 0;
		state[x] = Over;
		x = 0
	}
#ifdef FAILOVER
	:: d_step { /* what the replica has */
		!failed && !kept ->
		kept = 1;
		keptOwner = owner;
		keptLeft = left;
		keptClaimed = claimed;
		x = len(line);
		do
		:: x > 0 -> line?y; line!y; keptLine!y; x--
		:: else -> break
		od;
		y = 0
	}
	:: d_step {
		kept && !failed ->
		failed = 1;
		owner = keptOwner;
		left = keptLeft;
		claimed = keptClaimed && left > 0;
		do
		:: len(line) > 0 -> line?y; inLine[y] = 0
		:: else -> break
		od;
		do
		:: len(keptLine) > 0 -> keptLine?y; line!y; inLine[y] = 1
		:: else -> break
		od;
		y = 0;
		keptOwner = 0;
		keptLeft = 0;
		keptClaimed = 0
	}
#endif
	od
}

init {
	atomic {
		run Client(0);
		run Client(1);
		run Undoer(0);
		run Undoer(1);
#if WAITERS > 2
		run Client(2);
		run Undoer(2);
#endif
		run Tick();
		run Fate()
	}
}
