// Package quorumhold keeps locks at a majority of independent stores, its nodes, so that the failure of a few of them is
// not noticed. Over Redis servers it is Redlock, with fencing tokens; see redishold.OpenQuorum. It works over any drivers.
//
// The algorithm is the one of the Redis documentation, "Distributed Locks with Redis", section "The Redlock Algorithm". The
// tokens are an ABD register (Attiya, Bar-Noy, Dolev: Sharing Memory Robustly in Message-Passing Systems, 1995) whose second
// phase is tied to ownership of the key. That a node which has lost its data must not simply be repaired and go on is the
// subject of Michael, Ports, Sharma, Szekeres: Recovering Shared Objects Without Stable Storage, DISC 2017.
//
// # The protocol
//
// N nodes, of which need = N/2 + 1 are a majority. t0 is read before the first byte is sent.
//
//	acquire  All nodes at once: GRANT(nonce, TTL + drift, floor). Decided when a majority has granted, or cannot any more.
//	         The token is that on which a majority agrees, else the largest reply.
//	         Nodes of the majority that are behind: RAISE(nonce, token), done only while the key still holds the nonce.
//	         Won when a majority has exactly that token. The term lasts until t0 + TTL by the caller's clock.
//	renew    All nodes that have it. Confirmed when a majority has: then the term lasts until the t0 of this renewal + TTL.
//	         After that, nodes that lack the term are granted it again (a seed), with its token if they have none that is
//	         later. A seed counts from the next renewal on, and only if its answer came before the term's end.
//	release  All nodes. Done when a majority has. If all have answered, and a majority has done it or does not have the term,
//	         it is done too, and those that do not have it note that it was released (a seed and a release).
//
// The nodes' own TTL is longer than asked by drift = TTL/100 + 2 ms, which is the same as counting a shorter window: a
// clock may be 0.5% faster than true time, and another 0.5% slower. The floor that is proposed to all nodes is the caller's
// clock + 500 ms. Nodes whose clocks are within 500 ms of the caller's answer with it, and one round trip is enough.
//
// Nobody waits for the slowest node. An answer that comes after the decision is used all the same: if the term stands, the
// node keeps it, is raised and renewed; if not, it is told to give it back, now or when it answers again. A node that does
// not answer within Options.NodeTimeout, or leaves too many calls without an answer, is suspect: it gets one call at a time,
// with pauses, and everything else is answered for it here. A caller who is in a greater hurry says nothing about the node. So a node that hangs costs nothing while it hangs, and finds no
// backlog when it wakes. Nor has one that is merely slow: a call that waits for its turn is not made when nobody needs it any
// more, see queue. Nodes are called by bare Acquire and never through a waiting line: a node that handed a key on by
// itself would mint tokens and decide votes outside of the protocol.
//
// # Votes that split
//
// Callers that begin together may each get a minority. All see the same votes, because a node that has been asked has a
// holder, and each node names it. The caller with most votes, or the larger nonce if they are equal, keeps what it has and
// asks the others again; all others give back at once, wait for about a round trip, with jitter, and vote anew. So
// *driver.HeldError is only answered when somebody has a majority, or after many votes.
//
// A caller knows one nonce, and a node must not see it again once it was given back, because the release may still be on
// its way. So each vote after that has a nonce of its own: the last of its 32 digits counts on. An attempt that has failed is
// given back by this package, wherever it may have been granted; its error wraps driver.ErrNotApplied, and its nonce is
// refused until that is done. The next attempt has a new one. A caller who did not hear that it has won asks again with the
// same nonce, is granted the same term, and every node it counts has re-armed the full TTL for that very call. If that fails, the
// term that stands is left as it is, and the error does not say that nothing was changed.
//
// What ends a term at a node is sent after the answer to what started it, since it could overtake that. If a request to start
// it was never answered, be it one of several, it may come to stand later: then the node is told to refuse the nonce as well.
// So it is where a give-back was not confirmed, and may arrive after one that was. A request that is on its way for longer than
// its end is owed, a TTL, may still start a term for nobody, which lasts its TTL at that node.
//
// # Exclusion
//
// Assume: (1) clock rates are within 0.5% of true time, and no node's clock is stepped; (2) a node that may have lost a
// term, or a release of one, grants and acknowledges nothing for MaxTTL + drift of its own time (it abstains), or does not
// lose any; (3) all callers have the same nodes, and no two nodes are one store; (4) callers do not use a term beyond its
// end. Call the time in which a node has a term its tenure there. Tenures at one node do not overlap.
//
// Claim: no two terms stand at the same time. Let x be such a moment, a confirmed by the majority A, b by the majority B.
// Some node n is in both. Say the tenure of a at n came first. It ended by release, and then a has ended; or by expiry,
// which (1) puts after the end of every window that n has confirmed, so a has ended; or by loss, and then n granted nothing
// until all such windows were over (2). So a's window of which n is part ended before b's tenure at n began, and b counts
// n only from after the grant, or from the renewal after the seed. Then x is not in both windows. QED.
//
// A term is never revived: a seed counts only if it was answered while the term stood, so there is no gap between what
// stood before at a majority and what stands at this node. A renewal creates nothing.
//
// # Tokens
//
// Assume: a node that has acknowledged a token does not forget it. No clocks, and no time, are assumed.
//
// (i) The counter of a node changes in a GRANT, strictly up, which begins a tenure, or in a RAISE by the one whose tenure
// it is, up. So it does in a seed, which is a GRANT with exactly the token of the term where that is past the counter, or where the
// counter stands at it since an earlier tenure of the same term, and like any other elsewhere: there an attempt that has failed, or a later
// term, has been. An acknowledgement of the token is the
// answer to a vote or to a RAISE, and to a seed only where it has exactly the token. (ii) If n acknowledged a, then at some moment of a's tenure its counter was exactly the token of a. (iii) Two terms
// a, b were acknowledged by majorities, so some n acknowledged both. Say a's tenure there came first. b's GRANT came later
// and returned more than the token of a; b's token is at least that. So tokens differ, and are in the order of tenures. (iv)
// If a was returned before b was asked for, a's acknowledgement at n came before b's GRANT, so a's tenure came first: the
// token of b is larger. QED. Both parts hold however slow, lost or reordered messages are, and whatever clocks do: if (1)
// is violated two holders may overlap, and the resource that compares tokens can still tell which one is later.
//
// A node that loses its counter breaks this only if the clocks are wrong as well, because a counter never starts below the
// time: the later caller's clock has to be behind the earlier token by more than the time between the two. A seed brings the
// counter of a node back to the token of the term that it is given, which is behind the time; whoever comes next begins at the time again. Abstaining does not repair counters: they have no end.
//
// # What is not promised
//
// Availability while a majority is down or abstains. Order among those who wait. Exclusion when clocks of nodes are stepped,
// when a node is restored from an old copy and its mark with it, or when a replica takes over for a node; tokens are still
// in order then, unless a counter was lost as well. A term that another process renews than the one that acquired it is
// right as long as no seed of it was delayed beyond its end.
//
// How the term before ended is told by those nodes that saw it (endings.go), and a node that does not answer, or has forgotten, tells
// nothing. Where so many are silent that a majority might have had what few tell of, it is believed, because a lapse must not be passed
// over. So these are told as a lapse: an attempt that failed and could not be given back; and a term that was released, if every node
// that knows of the release is silent. A majority knows of it when Release has returned, unless nodes that do not have the term could not
// note it in time, or abstained, or have lost their data since; a node that is away hears of it later if the program still runs. A store
// that does not heed driver.AcquireRequest.Seed begins a seed with a token of its own: a release that is known by that token alone does
// not cover other nodes.
//
// Both parts are modelled in verify/quorum_token.pml and verify/quorum_abstain.pml, and how a term is given back in
// verify/quorum_release.pml, each with variants that lack a rule and in which spin finds the error.
package quorumhold
