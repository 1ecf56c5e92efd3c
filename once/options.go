package once

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// Policy says what follows a run that has not done its job.
type Policy = driver.Policy

// The policies.
const (
	Rerun = driver.Rerun // the next delivery runs the job again
	Hold  = driver.Hold  // the job is suspended until an operator settles it
)

// OnRunning says what Do does if another run of the job is at work.
type OnRunning uint8

// The choices.
const (
	Fail OnRunning = iota // return ErrHeld, so that the message is delivered again later
	Wait                  // until the other run has ended or ctx has; then run if it was not done
	Skip                  // return RunningElsewhere and no error: for ticks that may be lost, not for messages
)

// Options say what is done once, and for how long. The zero value, and nil, are good defaults for messages.
type Options struct {
	// Keep is how long it is remembered that the job is done, or was tried: longer than any duplicate can be late.
	// Default 7 days.
	Keep time.Duration
	// Input is what the job works on, for example the body of the message. Only a hash of it is stored. If the same key comes
	// again with another input, that is ErrOtherInput. nil is not compared.
	Input []byte
	// OnRunning is Fail by default.
	OnRunning OnRunning
	// OnLapse is what follows a run that never said how it ended. Default Rerun. If deliveries disagree, Hold wins.
	OnLapse Policy
	// OnError is what follows a run that returned an error or panicked. Default Rerun.
	OnError Policy
	// MaxRuns is how many runs may be begun, lapsed ones too, before the job is suspended. Default 0: no limit. It stops the
	// message that kills every worker that touches it.
	MaxRuns int
}

const defaultKeep = 7 * 24 * time.Hour

// fill returns the options with defaults in place of what is not set.
func (o *Options) fill() (Options, error) {
	var f Options
	if o != nil {
		f = *o
	}
	if f.Keep == 0 {
		f.Keep = defaultKeep
	}
	bad := func(what string, value any, why string) (Options, error) {
		return f, &holdlock.InvalidError{What: what, Value: fmt.Sprint(value), Why: why}
	}
	switch {
	case f.Keep < 0:
		return bad("Keep", f.Keep, "0 for the default, or a positive duration")
	case f.OnRunning > Skip:
		return bad("OnRunning", uint8(f.OnRunning), "Fail, Wait or Skip")
	case f.OnLapse > Hold:
		return bad("OnLapse", uint8(f.OnLapse), "Rerun or Hold")
	case f.OnError > Hold:
		return bad("OnError", uint8(f.OnError), "Rerun or Hold")
	}
	return f, nil
}

// Claim returns what a run of the job asks of the store. Do does that; it is for programs that must hold the lease
// themselves, with Lock.Claim.
func (o *Options) Claim() driver.Claim {
	c := driver.Claim{OnLapse: o.OnLapse, MaxRuns: o.MaxRuns, Keep: cmp.Or(o.Keep, defaultKeep)}
	if o.Input != nil {
		sum := sha256.Sum256(o.Input)
		c.Input = hex.EncodeToString(sum[:])
	}
	return c
}

// Failed returns the record of a run that failed, the job's number runs, for Lease.Finish: it counts, and the job runs again
// or is suspended.
func (o *Options) Failed(runs int, why string) driver.Record {
	rec := driver.Record{State: driver.JobOpen, Error: short(why), Keep: cmp.Or(o.Keep, defaultKeep)}
	switch {
	case o.OnError == Hold:
		rec.State, rec.Why = driver.JobSuspended, driver.ByError
	case o.MaxRuns > 0 && runs >= o.MaxRuns:
		rec.State, rec.Why = driver.JobSuspended, driver.ByNumber
	}
	return rec
}
