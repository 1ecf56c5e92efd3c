package holdlock

import (
	"context"
	"log/slog"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// An Observer is told what happens to locks, for metrics. Observe is called on the goroutine to which it happened, some
// events on the one that ends leases in time: it must return at once, not block, and not call the Client. Events of
// different leases arrive concurrently.
type Observer interface {
	Observe(e Event)
}

// A Recorder counts what happens to locks for reviews; review/ledger has one. Besides the events it is told what locks are
// declared as. Its methods are called as those of an Observer are.
type Recorder interface {
	Observer
	// Start is called by NewClient, before anything else. l is where counts are kept, and nil if the store cannot. An error, such as that
	// it serves another client already, is NewClient's; nothing more is called then.
	Start(l driver.Ledger, host string) error
	// Declare is called by NewLock, with all defaults filled in.
	Declare(name string, opts LockOptions)
	// Stop is called by Shutdown before the store is closed. No event comes after it. It sends what is left, until ctx ends.
	Stop(ctx context.Context) error
}

// Event is one thing that happened. Fields that do not apply to its Kind are zero.
type Event struct {
	Kind      EventKind
	Name, Key string // Key is unbounded: use Name alone as a metric's label
	Token     Token
	Waited    time.Duration  // Granted, Skipped, Failed: from the call to the answer
	Contended bool           // Granted, Skipped, Failed, Overlapped: it met somebody else's term on the way
	GaveUp    bool           // Skipped: it had waited
	Held      time.Duration  // Released, Lost, Outlived, Unreleased if that is how the lease ended: from the grant
	TTL       time.Duration  // Granted, Released, Lost, Outlived: compare with Held where renewal is off
	Reason    LossReason     // Lost, Outlived
	Prior     *driver.Term   // Lapsed: the term that ended before this one, nil if the store no longer knows
	Ending    driver.Ending  // Lapsed: Lapsed or Broken
	Holder    *driver.Holder // Skipped, Overlapped: who has it; nil while it is cooling
	TokenRead bool           // Released, Lost, Outlived: somebody has asked for the token of the lease
	Shadow    bool           // Granted: of a run in shadow mode
	Abandoned bool           // Unreleased: the work was over, and giving it back is not tried any more: the term has ended, or will, by its TTL
	Left      *driver.Ref    // Unreleased, if Abandoned: that term. If a successor finds it lapsed, it is the Prior of that Lapsed. nil if a replica that took over may have let it end before the work had
	InTx      bool           // the lock was taken in the caller's own transaction: it ends with that, and no Released follows
	Unclear   bool           // Granted, Skipped, Duplicate: InTx, and nobody can tell whether it met somebody else, since the server makes it wait
	Err       error          // Skipped, Failed, Refused, WaitFailing, Overlapped, Unseen, RenewFailed, Unreleased, Duplicate, Unrecorded: what came back
	Job       *driver.Job    // Duplicate, Rerun, Suspended, Unrecorded: the job
}

// EventKind says what happened.
type EventKind string

// The kinds.
const (
	// Granted: a lease began.
	Granted EventKind = "granted"
	// Skipped: it was not granted because someone else has it. The job did not run.
	Skipped EventKind = "skipped"
	// Failed: it was not granted because the store failed. The job did not run.
	Failed EventKind = "failed"
	// Refused: it was not granted because a Harmful lock may not be used in this way (ErrRefused). The store was not asked, and the job
	// did not run.
	Refused EventKind = "refused"
	// Overlapped: in shadow mode, a run began beside somebody else's term. An enforced lock would have skipped it, or made it wait.
	Overlapped EventKind = "overlapped"
	// Unseen: in shadow mode, the store failed, so that nobody can tell whether the run overlapped. It ran.
	Unseen EventKind = "unseen"
	// WaitFailing: somebody waits, and the store has begun to fail. The wait goes on; it ends as Granted, Skipped or Failed. Whoever
	// would rather end it where Err wraps driver.ErrDenied or ErrDamaged, which do not pass by themselves, ends its context; if a
	// failure becomes one of these later, there is one more event.
	WaitFailing EventKind = "wait failing"
	// Lapsed: the term before ours ended without a release, so its work may have run beside ours. Its own holder, killed
	// or paused, can never report that.
	Lapsed EventKind = "lapsed"
	// Renewed: the store confirmed that the lease goes on.
	Renewed EventKind = "renewed"
	// RenewFailed: a renewal failed and is tried again while trust lasts.
	RenewFailed EventKind = "renew failed"
	// Lost: a lease ended before its release. A Released does not follow: each Granted has one end.
	Lost EventKind = "lost"
	// Outlived: the work of a lease that was lost before is over. It follows Lost if the lease is released in the end; Held is how
	// long the work took, from the grant, and Reason why the lease was lost.
	Outlived EventKind = "outlived"
	// Released: a lease was given back.
	Released EventKind = "released"
	// Unreleased: giving back a lease, or what an unclear acquire may have won, failed and is tried again in the background
	// until its TTL has passed; or leaving the line did, which is told once for all places of a key, and tried until it succeeds.
	Unreleased EventKind = "unreleased"
	// BrokenByUs: this client's Break ended somebody's term.
	BrokenByUs EventKind = "broken"

	// Duplicate: a job was not run, because it is done, suspended, or begun with another input.
	Duplicate EventKind = "duplicate"
	// Rerun: a run begins that follows one which lapsed, so that its work may be done twice. It is told by the successor:
	// a worker that was killed or paused cannot.
	Rerun EventKind = "rerun"
	// Suspended: a job will not run until an operator settles it.
	Suspended EventKind = "suspended"
	// Unrecorded: the work of a run has ended and the store has not recorded it: it refused, since the term was over or the
	// record was removed meanwhile, or did not answer, and is asked again in the background until its TTL has passed. Err says which.
	Unrecorded EventKind = "unrecorded"
	// Settled: this client's Settle has decided about a job.
	Settled EventKind = "settled"
)

// emit tells the observer and the log.
func (c *Client) emit(e Event) {
	if c.observer != nil {
		c.observer.Observe(e)
	}
	if c.recorder != nil {
		c.recorder.Observe(e)
	}
	level := slog.LevelDebug
	switch e.Kind {
	case WaitFailing, Lapsed, RenewFailed, Lost, Unreleased, BrokenByUs, Rerun, Suspended, Unrecorded, Settled:
		level = slog.LevelWarn
	}
	if c.log == nil || !c.log.Enabled(context.Background(), level) {
		return
	}
	attrs := []slog.Attr{slog.String("lock", e.Name), slog.String("store", c.traits.Location)}
	if e.Key != "" {
		attrs = append(attrs, slog.String("key", e.Key))
	}
	if e.Token != 0 {
		attrs = append(attrs, slog.Uint64("token", uint64(e.Token)))
	}
	if e.Reason != "" {
		attrs = append(attrs, slog.String("reason", string(e.Reason)))
	}
	if e.Prior != nil {
		attrs = append(attrs, slog.String("ending", e.Ending.String()), slog.String("prior", describeHolder(e.Prior.Holder)),
			slog.Uint64("prior_token", uint64(e.Prior.Token)))
	}
	if e.Job != nil {
		attrs = append(attrs, slog.Int("runs", e.Job.Runs), slog.Int("lapses", e.Job.Lapses))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.Any("err", e.Err))
	}
	c.log.LogAttrs(context.Background(), level, "holdlock: "+string(e.Kind), attrs...)
}
