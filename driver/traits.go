package driver

import "time"

// Traits are facts about a store. Callers branch on these and never on the name of a driver; docs/promises.md is
// generated from them.
type Traits struct {
	// Name is the kind of store in one word, for messages only.
	Name string
	// Location identifies this store to people: the file, or server and database number, and the namespace. Two processes
	// that show different locations do not exclude each other. It holds no secrets.
	Location string

	Scope   Scope
	Fencing Fencing
	Forgets Forgetting
	Clock   Clock
	Records Keeping // what a record of a job survives; NoRecords unless the driver is a Journal

	MinTTL  time.Duration // the shortest TTL accepted; at least 100 ms
	MaxTTL  time.Duration // the longest TTL, MinHold and KeepFor accepted; 0 is no limit of its own
	TTLStep time.Duration // a term may last this much longer than asked, by rounding

	// Prompt says that by the driver's own doing every call returns within a moment after its ctx has ended, also if the
	// store hangs. Then the client calls it directly; other drivers it calls on a goroutine that it can abandon.
	Prompt bool

	// FrozenBlocks says that a holder which stands still, with its machine and its connection alive, keeps its key beyond its TTL: nobody
	// gets it, for however long. Where it is false such a term lapses, and the holder may wake up beside its successor.
	FrozenBlocks bool

	Seeds         bool // AcquireRequest.Seed is heeded
	FIFO          bool // waiters are granted in the order in which they came
	Transactional bool // the lock can live and die with the caller's own database transaction
}

// Scope is how far exclusion reaches.
type Scope uint8

// The scopes, from narrow to wide.
const (
	Process Scope = iota // goroutines of one process
	Host                 // processes of one machine, that is, of one kernel
	Cluster              // machines that reach the same server
)

// String returns the scope in words.
func (s Scope) String() string {
	return [...]string{"one process", "one machine", "all machines that reach the server"}[s]
}

// Fencing is what the store promises about the order of tokens.
type Fencing uint8

// The promises, from weak to strong.
const (
	NoTokens          Fencing = iota // every Token is 0
	WhileDataSurvives                // tokens rise unless the store loses data and the clock steps back as well
	Durable                          // a token is on disk before anyone sees it
)

// String returns the promise in words.
func (f Fencing) String() string {
	return [...]string{"no tokens", "rise while the data survives", "durable"}[f]
}

// Forgetting is when a store can lose a term whose holder is still alive.
type Forgetting uint8

// The occasions.
const (
	NeverAlone        Forgetting = iota // only together with every holder: end of the process, or reboot of the machine
	AbstainsAfterLoss                   // never by a restart: a server that has lost data grants nothing until all forgotten terms are over
	OnRestart                           // when the server restarts without its data
	OnFailover                          // also when a replica takes over
)

// String returns the occasion in words.
func (f Forgetting) String() string {
	return [...]string{
		"only what dies with every holder (end of the process, reboot)",
		"not by restarts: a server that lost its data grants nothing until all that it forgot is over",
		"on a server restart that loses data",
		"on failover to a replica, or a restart that loses data",
	}[f]
}

// Clock is what measures the expiry of a term.
type Clock uint8

// The clocks.
const (
	MonotonicClock Clock = iota // steps of the wall clock and suspend do not matter, or every holder is suspended too
	BootClock                   // steps do not matter; time spent suspended counts
	WallClock                   // a step forward ends terms early, a step back keeps them longer
)

// String returns the clock in words.
func (c Clock) String() string {
	return [...]string{"monotonic", "time since boot, suspend included", "wall clock"}[c]
}

// Keeping is what the store promises about the records of jobs.
type Keeping uint8

// The promises, from weak to strong.
const (
	NoRecords     Keeping = iota // it keeps none
	WhileItLasts                 // a crash, restart or failover can lose the last ones, or all
	SyncedRecords                // on disk before the answer, and on whatever could take over
)

// String returns the promise in words.
func (k Keeping) String() string {
	return [...]string{"none", "while the data survives", "durable"}[k]
}
