package driver

import (
	"context"
	"time"
)

// Provisional is how long a grant by hand-over lasts at most until its grantee confirms it: a release cannot know whether the next
// in line is still there, and must not give its whole TTL to the dead.
const Provisional = 3 * time.Second

// Alive is how long after its last Enqueue or Attend the places of a driver are kept: a place whose driver has been silent
// for longer is skipped. Callers attend about once a second.
const Alive = 3 * time.Second

// A Queue keeps waiters in line and hands a key over in the step that frees it. Only stores whose Traits say FIFO have it.
//
// A place in line is a Ref, as a term is, and becomes one:
//
//	Enqueue ──► place ──► the key is freed: the first place whose driver is alive becomes the term, for min(TTL, Provisional),
//	                      and a Push goes to its driver; Renew or Attend confirms it, which re-arms the full TTL
//	            place ──► Leave, or Release: it is dropped
//
// A free key with places passes to the first live one of them whatever comes next: Enqueue, Acquire, Attend, Break with
// Now, and Release also of a term that is gone, all begin with that. So Acquire of such a key is *HeldError.
//
// A Push may come late, twice, or not at all, and may tell of a term that has ended. Attend is what a waiter can rely on.
// The model verify/line.pml says what a caller may believe and when; the rules that follow from it are the caller's:
//
//   - A Push counts from the sending of the last call that was answered with this nonce waiting, not from its arrival.
//   - A nonce that is neither waiting nor granted is never used again.
//   - Where a replica can take over (Traits.Forgets), a Push counts for nothing until Renew has confirmed it.
type Queue interface {
	// Enqueue is Acquire, but where Acquire would answer *HeldError it puts Ref at the end of the line in the same step,
	// with HeldError.Place saying where it stands. It is idempotent per nonce. An unclear Enqueue is undone by Release with
	// Undo, and what is undone gets no place.
	Enqueue(ctx context.Context, req *AcquireRequest) (Grant, error)

	// Attend says that this driver is alive, and what has become of its places, in the order of the requests, which are
	// those of Enqueue. A place whose term has begun is confirmed in the same step.
	Attend(ctx context.Context, reqs []*AcquireRequest) []Standing

	// Leave gives up requests of this driver for one key that nobody wants to hear of any more, many in one call: those who wait for a time only
	// come and go faster than a store can be asked for one of them. For each it does what Release with Undo does. The places of
	// some hundreds are dropped before a term that one of them has become is ended, so that it passes on to none of them. What each of them costs
	// must not grow with the line by more than the search for its place. nil: none of them stands in line or is the current
	// term. After an error any of them may, and it is safe to ask again.
	Leave(ctx context.Context, key string, left []Leaving) error

	// Listen makes hear be called with what is pushed to this driver from now on, until Close. hear must return at once and
	// must not call the driver. It is called with the zero Push when messages may have been lost, so that the caller attends.
	// Listen returns when the store is set to push; calling it again while it is, costs nothing. An error means that nothing
	// will be pushed: waiters are told by Attend alone.
	Listen(ctx context.Context, hear func(Push)) error
}

// A Leaving is a request that is given up.
type Leaving struct {
	Request  *AcquireRequest // as it was, but for Floor
	Answered bool            // it cannot arrive any more, see ReleaseRequest.Answered
}

// A Push tells that a place has become the current term.
type Push struct {
	Nonce string
	Grant Grant
	TTL   time.Duration // how long the term lasts, from some moment before
}

// A Standing is what has become of one place. One of Place, Granted and Err is set; if none is, the store knows of neither
// place nor term.
type Standing struct {
	Place     int           // 1 is the next in line
	Remaining time.Duration // until the present term ends unless it is renewed
	Granted   bool          // Ref is the current term, and lasts max(TTL, MinHold) from now
	Grant     Grant
	Err       error // the store failed
}
