package audit

import (
	"go/token"
	"time"
)

// A Fault is one of the six kinds of mistakes.
type Fault string

// The faults. The strings are a contract: they stand in --json, in --fail-on and in comments that silence them.
const (
	NoExpiry         Fault = "no-expiry"         // a crash of the holder leaves the lock for ever
	UncheckedRelease Fault = "unchecked-release" // the release can free somebody else's lock
	GuessableValue   Fault = "guessable-value"   // the value does not tell one holder from another
	ReleaseContext   Fault = "release-ctx"       // the release is not sent when its context has ended
	SessionOnPool    Fault = "session-on-pool"   // lock and unlock can go to different database sessions
	LossIgnored      Fault = "loss-ignored"      // the work does not learn that it does not, or no longer, hold the lock
)

// Faults lists all of them, in the order of reports.
func Faults() []Fault {
	return []Fault{NoExpiry, UncheckedRelease, GuessableValue, ReleaseContext, SessionOnPool, LossIgnored}
}

// A Kind is what a lock is made of.
type Kind string

// The kinds. The strings are a contract.
const (
	Holdlock    Kind = "holdlock"    // (*holdlock.Client).NewLock
	RedisSet    Kind = "redis-set"   // SET … NX, by a client library
	RedisScript Kind = "redis-lua"   // SET … NX inside a Lua script
	Redsync     Kind = "redsync"     // (*redsync.Redsync).NewMutex
	Redislock   Kind = "redislock"   // bsm/redislock
	Rueidislock Kind = "rueidislock" // rueidislock and valkeylock
	PgAdvisory  Kind = "pg-advisory" // pg_advisory_lock and its relatives in SQL text
	Etcd        Kind = "etcd"        // Mutex, Locker, Election and RWMutex of etcd's client
)

// A Lock is one place in the code that declares or takes a lock.
type Lock struct {
	Pos     token.Position
	Package string // import path
	Func    string // the function around it, as in (*Store).Refresh; "" at package level
	Kind    Kind
	API     string // what is called, as in (*github.com/go-redsync/redsync/v4.Redsync).NewMutex, or the SQL function
	Name    Name
	TTL     TTL
	Purpose string // holdlock: LockOptions.Purpose, if it is a constant
	Double  string // holdlock: LockOptions.DoubleRun in lower case, if it is a constant
	Maybe   bool   // it may be something else than a lock: see the package comment

	Checks   map[Fault]Check
	Findings []Finding // the faults, in the order of the code
}

// A Name is the name or key of a lock.
type Name struct {
	// Text is the constant; or what is known of it, with … for the rest; or the expression as it stands in the code.
	Text     string
	Constant bool
}

// A TTL says when a lock that nobody releases ends.
type TTL struct {
	State TTLState
	D     time.Duration // if TTLKnown or TTLDefault
	Expr  string        // if TTLUnknown: the expression as it stands in the code
}

// A TTLState says what is known of a TTL.
type TTLState string

// The states. The strings are a contract.
const (
	TTLKnown   TTLState = "constant" // D
	TTLDefault TTLState = "default"  // D, the library's
	TTLUnknown TTLState = "unknown"  // the code computes it
	TTLNone    TTLState = "none"     // never
	TTLSession TTLState = "session"  // with the database session
	TTLTx      TTLState = "transaction"
)

// String is for people.
func (t TTL) String() string {
	switch t.State {
	case TTLKnown:
		return t.D.String()
	case TTLDefault:
		return t.D.String() + " (default)"
	case TTLNone:
		return "never"
	case TTLSession:
		return "end of session"
	case TTLTx:
		return "end of transaction"
	}
	if t.Expr == "" {
		return "?"
	}
	return t.Expr
}

// A Verdict is the answer to one question about one lock.
type Verdict string

// The verdicts. The strings are a contract.
const (
	OK      Verdict = "ok"
	Faulty  Verdict = "fault"
	Unknown Verdict = "unknown"
	None    Verdict = "none" // the question makes no sense for this kind of lock
)

// A Check is a verdict and, if it is Unknown, its reason.
type Check struct {
	Verdict Verdict
	Why     string
}

// A Finding is a fault at a place in the code.
type Finding struct {
	Fault   Fault
	Pos     token.Position
	Message string // what is wrong, naming the lock
	Fix     string // what to do about it

	at token.Pos
}

// A Report is what an audit found. It is plain data; nothing in it is shared with anything else.
type Report struct {
	Locks []Lock
	// Findings are faults of locks that are declared in another package, or that cannot be told apart.
	Findings []Finding
	// Problems say what could not be read. If there are any, the report is incomplete.
	Problems []Problem
	// Packages is the number of packages that were read.
	Packages int
	// Usage is what Join has found, or nil. UsageOf says of when and where, for people.
	Usage   *Comparison
	UsageOf string
}

// A Problem is something that could not be read.
type Problem struct {
	Package string
	Pos     string // file:line:column, or "" if it is not known
	Message string
}

// Incomplete tells that something could not be read, so that locks and faults may be missing.
func (r *Report) Incomplete() bool { return len(r.Problems) > 0 }

// All returns all findings, those of locks first.
func (r *Report) All() []Finding {
	var all []Finding
	for i := range r.Locks {
		all = append(all, r.Locks[i].Findings...)
	}
	return append(all, r.Findings...)
}
