// Package resource is what the jobs of the lab write to, and the log of that. It does not know which lock the workers use,
// or whether they use one. With a fence it refuses writers that have been overtaken, in the same step in which it logs.
//
// Every figure of the lab comes from this log. Counts are kept here while the log grows, and made anew from the file by
// package verifier, in another way.
package resource

import (
	"math"
	"time"
)

// What an entry is about.
type What string

// The entries of a job: it is announced once; then each run of it begins, writes and ends.
const (
	Job   What = "job"
	Begin What = "begin"
	Write What = "write"
	End   What = "end"
)

// Why a run ended.
const (
	Done   = "done"   // it is through
	Lost   = "lost"   // its lock, or the fence, told it to stop
	Failed = "failed" // by itself, without an effect
)

// Always is the Until of a worker whose lock does not end by time.
const Always time.Duration = math.MaxInt64

// An Entry is one line of the log.
type Entry struct {
	Seq     int64         `json:"seq"`   // 1, 2, 3, …
	At      time.Duration `json:"at_ns"` // when it arrived, by the clock that leases end by (bootclock)
	What    What          `json:"what"`
	Job     string        `json:"job"`
	Worker  string        `json:"worker,omitempty"` // which runs a job once at most
	Refused bool          `json:"refused,omitempty"`
	Token   uint64        `json:"token,omitempty,string"`
	Seen    uint64        `json:"seen,omitempty,string"` // the larger token that it was refused for
	// Until is how long the worker believed to hold its lock when it sent this, by the same clock; 0 if it believed nothing.
	Until time.Duration `json:"until_ns,omitempty"`
	Ended string        `json:"ended,omitempty"` // of End: done, lost or failed
}

// Believed says whether the worker had reason to believe that it held its lock when the entry arrived.
func (e *Entry) Believed() bool { return e.Until >= e.At }
