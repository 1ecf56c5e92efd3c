// Package worker is the processes of the lab that run jobs, and how the lab leads them.
//
// A worker is this very program, started anew under another name (argv[0]), so an installed holdlock needs no other file. It
// gets a Config and then Steps on its standard input, one JSON object a line, and answers each with a Reply on its standard
// output: ask for the lock, begin, check, write, end, release. So the lab decides what happens in which order, and what it
// leaves out is the lab's decision as well: a worker that writes without a check is one that was past its check. Everything
// that a step does is real: the request to the store, the lease and its renewal in the background, the request to the resource.
//
// It ends when its standard input does.
package worker

import "time"

// The mechanisms.
const (
	NoLock   = "no-lock"
	Naive    = "naive"
	Redis    = "redis"
	Redlock  = "redlock"
	NoRule   = "redlock-no-abstain" // a quorum whose nodes take part at once when they have restarted
	Fenced   = "redlock-fence"
	Postgres = "postgres" // in the transaction of the job's own writes
)

// A Config says what a worker is.
type Config struct {
	Name      string        `json:"name"`
	Mechanism string        `json:"mechanism"`
	Redis     []string      `json:"redis,omitempty"`    // addresses
	Postgres  string        `json:"postgres,omitempty"` // URL
	Resource  string        `json:"resource"`           // URL
	MaxTTL    time.Duration `json:"max_ttl,omitempty"`  // of a quorum
	Failover  bool          `json:"failover,omitempty"` // a replica can take over behind the address
}

// What a step does.
const (
	Acquire = "acquire"
	Begin   = "begin"
	Check   = "check"
	Write   = "write"
	End     = "end"
	Release = "release"
)

// A Step is what a worker is told to do.
type Step struct {
	Do      string        `json:"do"`
	Job     string        `json:"job,omitempty"`      // Acquire
	Wait    bool          `json:"wait,omitempty"`     // Acquire: until the lock is free
	TTL     time.Duration `json:"ttl,omitempty"`      // Acquire
	NoRenew bool          `json:"no_renew,omitempty"` // Acquire: the lock ends with its TTL, whatever happens
	Ended   string        `json:"ended,omitempty"`    // End: resource.Done, Lost or Failed
}

// How a step went.
const (
	OK          = "ok"
	Granted     = "granted"
	Held        = "held"        // somebody else has the lock
	Already     = "already"     // the job is done
	Unavailable = "unavailable" // the store grants nothing now
	LostIt      = "lost"        // the lock is lost
	Unchecked   = "unchecked"   // this lock has nothing to check
	Refused     = "refused"     // by the resource
	Failed      = "failed"
)

// A Reply is what has become of a step.
type Reply struct {
	Do      string        `json:"do"`
	Outcome string        `json:"outcome"`
	Text    string        `json:"text,omitempty"` // for people
	Token   uint64        `json:"token,omitempty"`
	Until   time.Duration `json:"until,omitempty"` // how long the worker believes to hold the lock; see resource.Entry
	At      time.Duration `json:"at"`              // by bootclock
}
