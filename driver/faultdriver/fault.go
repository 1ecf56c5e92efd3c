package faultdriver

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// ErrFault is the error of a call that went wrong on purpose, unless Fault.Err names another one.
var ErrFault = errors.New("fault on purpose")

// Op is the kind of a call.
type Op string

// The calls that can go wrong. Traits and Close cannot.
const (
	Acquire    Op = "acquire"
	Renew      Op = "renew"
	RenewBatch Op = "renew batch"
	Release    Op = "release"
	Break      Op = "break"
	List       Op = "list"
	Inspect    Op = "inspect"
	Watch      Op = "watch"
	Job        Op = "job"
	Jobs       Op = "jobs"
	Settle     Op = "settle"
	Enqueue    Op = "enqueue"
	Attend     Op = "attend"
	Leave      Op = "leave"
	Listen     Op = "listen"

	UpdateRecords Op = "update records"
	ReadRecords   Op = "read records"
)

// A Call is a call about to be made.
type Call struct {
	Op  Op
	N   int    // counts the calls with this Op, from 1
	Key string // of the request; the prefix for List, empty for RenewBatch, Attend, Listen and records
}

// A Fault is what happens to a call. The zero value is: nothing, it goes through. Several together happen in the order of
// the fields.
type Fault struct {
	// Hang stops the request before it reaches the store.
	Hang Hang
	// Before is how long the request is on its way. If ctx ends meanwhile, the request is given up, unless Ghost is set.
	Before time.Duration
	// Ghost lets the caller give up when ctx ends, also when it hangs Hard, and the request go on without it.
	Ghost bool
	// Drop loses the request: the store never sees it, the caller gets Err.
	Drop bool
	// After is how long the reply is on its way. If ctx ends meanwhile, the caller gives up; the store has acted.
	After time.Duration
	// Lose loses the reply: the store has acted, the caller gets Err. A lost Watch is one whose hints are lost, a lost
	// Listen one whose pushes are.
	Lose bool
	// Err is what the caller gets for Drop and Lose; nil means ErrFault. Err without Lose implies Drop.
	Err error
}

// Hang is a way to get stuck.
type Hang uint8

// The ways.
const (
	NoHang    Hang = iota
	UntilDone      // until ctx ends, which is then the answer; the store is not asked
	Hard           // until Thaw or Close, whatever ctx does; then the request goes on, as if it had waited in a socket
)

// A Script decides what happens to a call. It is called under a lock, once per call, in the order of Call.N.
type Script func(Call) Fault

// On lets the calls of one kind with from ≤ N ≤ to go wrong. A to of 0 is for ever.
func On(op Op, from, to int, f Fault) Script {
	return func(c Call) Fault {
		if c.Op == op && c.N >= from && (to == 0 || c.N <= to) {
			return f
		}
		return Fault{}
	}
}

// First applies the first script that has a fault for the call.
func First(scripts ...Script) Script {
	return func(c Call) Fault {
		for _, s := range scripts {
			if f := s(c); f != (Fault{}) {
				return f
			}
		}
		return Fault{}
	}
}

// Odds says how often something goes wrong, each from 0 (never) to 1 (always).
type Odds struct {
	Drop, Lose float64
	Before     float64 // the request is late by up to MaxDelay
	After      float64 // the reply is
	Ghost      float64 // a late request goes on without its caller
	Hang       float64 // UntilDone
	MaxDelay   time.Duration
}

// Seeded throws dice for each call. What happens to the nth call of one kind depends on the seed, the kind and n alone,
// and so not on how the calls of several goroutines interleave.
func Seeded(seed uint64, odds Odds) Script {
	return func(c Call) Fault {
		h := seed
		for _, b := range []byte(fmt.Sprintf("%s %d", c.Op, c.N)) {
			h = (h ^ uint64(b)) * 0x100000001b3 // FNV-1a, on the seed
		}
		dice := rand.New(rand.NewPCG(seed, h))
		hit := func(p float64) bool { return dice.Float64() < p }
		delay := func(p float64) time.Duration {
			d := time.Duration(dice.Float64() * float64(odds.MaxDelay))
			if !hit(p) {
				return 0
			}
			return d
		}
		f := Fault{
			Drop:   hit(odds.Drop),
			Lose:   hit(odds.Lose),
			Before: delay(odds.Before),
			After:  delay(odds.After),
			Ghost:  hit(odds.Ghost),
		}
		if hit(odds.Hang) {
			f.Hang = UntilDone
		}
		return f
	}
}
