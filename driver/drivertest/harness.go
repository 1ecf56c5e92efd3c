package drivertest

import (
	"cmp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A Harness tells the suite how to make the stores it tests.
type Harness struct {
	// NewStore makes an empty store that nobody else uses. It is called once per case, and cases run in parallel. What it
	// sets up it takes down with tb.Cleanup; by then every driver is closed.
	NewStore func(tb testing.TB) Store

	// Virtual says that the store takes time from package time alone and blocks on nothing but what testing/synctest
	// understands. The cases then run in virtual time.
	Virtual bool

	// Straggle is how much later than its answer says a store may begin to count a term: parts of it that were not waited for,
	// as the slower nodes of a quorum on a busy machine. 0 for most.
	Straggle time.Duration

	// Overtaken says that in this store one request can overtake another, so that an Acquire can arrive after it has been
	// undone. Then it has to be refused; see driver.ReleaseRequest.Undo.
	Overtaken bool

	// Patience is how long the suite waits for something that should come soon before it calls it a failure.
	// Defaults to 20 s. A store that works never makes it wait so long.
	Patience time.Duration
}

// Store is one store under test.
type Store struct {
	// Open gives access to the store in the way a further process would get it: with connections, sockets and caches of
	// its own. It may be called from several goroutines.
	Open func() (driver.Driver, error)

	// Leftovers, if not nil, names what the store still keeps that is not a token counter: rows, keys, files, sessions.
	// The suite calls it when every term has ended, to check that nothing stays behind (R8).
	Leftovers func() ([]string, error)

	// Sever, if not nil, cuts what the terms of all drivers live on, as a server does that ends their connections. Drivers
	// that are a driver.LossNotifier need it.
	Sever func() error
}

// A testCase is one situation and what has to come of it. Its name starts with the number of the rule it tests.
type testCase struct {
	name string
	run  func(r *rig)
}

func allCases() []testCase {
	var all []testCase
	for _, some := range [][]testCase{
		exclusionCases, lossCases, stayTakenCases, tokenCases, renewCases, releaseCases, breakCases, retryCases, waitCases,
		queueCases,
		residueCases, boundedCases, heldCases, endingCases, listCases, keyCases, historyCases,
		claimCases, recordCases, lapseCases, journalCases, ledgerCases,
	} {
		all = append(all, some...)
	}
	return all
}

// Run tests a store against the contract. See the package comment.
func Run(t *testing.T, h Harness) {
	for _, tc := range allCases() {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h.run(t, tc, nil, nil)
		})
	}
}

// run runs one case, on drivers changed by wrap unless that is nil. Failures go to rec, or to t if rec is nil.
func (h Harness) run(t *testing.T, tc testCase, wrap func(driver.Driver) driver.Driver, rec *recorder) {
	h.Patience = cmp.Or(h.Patience, 20*time.Second)
	body := func(t *testing.T) {
		if rec == nil {
			newRig(t, t, h, wrap).do(tc)
			return
		}
		rec.watch(func() { newRig(t, rec, h, wrap).do(tc) })
	}
	if h.Virtual {
		synctest.Test(t, body)
	} else {
		body(t)
	}
}
