package pghold

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdlock/holdlock/driver"
)

// Scope is one of the three ways to keep locks in PostgreSQL, each with settings that matter to it alone.
type Scope uint8

// The scopes.
const (
	Rows         Scope = iota // lease rows: Open
	Sessions                  // session locks: OpenSessions
	Transactions              // in the caller's transaction: Lock, Once
)

// DoctorOptions say what Diagnose is to look at; nil means lease rows with all defaults.
type DoctorOptions struct {
	Scope  Scope
	Schema string // default: DefaultSchema; Transactions need one for Once only
	// TTL is the shortest that locks are declared with, and in transactions how long one may be held. Default 30 s.
	TTL time.Duration
}

// Diagnose looks for what about a database would lose locks, or keep them from working. It needs no store that could be opened,
// so it also says why one cannot. It works with the rights that locks need: what the user may not see is told as not seen. It
// takes locks of its own for a moment and changes nothing else. dsn is as for Open.
func Diagnose(ctx context.Context, dsn string, opts *DoctorOptions) []driver.Diagnosis {
	x := &examination{ctx: ctx, dsn: dsn}
	if opts != nil {
		x.opts = *opts
	}
	if x.opts.TTL == 0 {
		x.opts.TTL = 30 * time.Second
	}
	var err error
	if x.opts.Schema, err = checkSchema(x.opts.Schema); err == nil {
		x.config, err = leaseConfigOf(dsn)
	}
	if err != nil {
		x.say("connection", driver.Refuse, err.Error(), noLock, "write the DSN as for psql")
		return x.found
	}
	x.run()
	return x.found
}

// Diagnose implements driver.Doctor, for the database that the store has open.
func (d *LeaseDriver) Diagnose(ctx context.Context, opts driver.DoctorOptions) []driver.Diagnosis {
	x := &examination{ctx: ctx, config: d.pool.Config().ConnConfig, store: d, opts: DoctorOptions{Schema: d.schema, TTL: opts.TTL}}
	if x.opts.TTL == 0 {
		x.opts.TTL = 30 * time.Second
	}
	x.run()
	return x.found
}

// Diagnose implements driver.Doctor, for the database that the store has open.
func (d *SessionDriver) Diagnose(ctx context.Context, opts driver.DoctorOptions) []driver.Diagnosis {
	config := d.config.Copy()
	config.RuntimeParams["application_name"] = "holdlock doctor"
	x := &examination{ctx: ctx, config: config, store: d, opts: DoctorOptions{Scope: Sessions, Schema: d.rows.schema, TTL: opts.TTL}}
	if x.opts.TTL == 0 {
		x.opts.TTL = 30 * time.Second
	}
	x.run()
	return x.found
}

const noLock = "no lock can be taken"

// examination is one Diagnose.
type examination struct {
	ctx     context.Context
	dsn     string // if there is no store yet
	config  *pgx.ConnConfig
	opts    DoctorOptions
	store   driver.Driver // nil: it is opened when all has been looked at
	conn    *pgx.Conn
	user    string
	version int
	found   []driver.Diagnosis
}

func (x *examination) say(check string, v driver.Verdict, found, harm, setting string) {
	x.found = append(x.found, driver.Diagnosis{Check: check, Verdict: v, Found: found, Harm: harm, Setting: setting})
}

func (x *examination) fine(check, found string) { x.say(check, driver.Fine, found, "", "") }

func (x *examination) unseen(check, what, setting string) {
	x.say(check, driver.Unseen, what, "it is not known", setting)
}

// run looks at one thing after the other. What is refused before the first lock could be tried ends it.
func (x *examination) run() {
	conn, err := x.connect()
	if err != nil {
		x.say("connection", driver.Refuse, strings.Join(strings.Fields(Refusal(err).Error()), " "), noLock, connectAdvice(err, x.config))
		return
	}
	defer hangUp(conn)
	x.conn = conn
	if !x.server() {
		return
	}
	pooled := x.pooler()
	x.timeouts()
	x.keepalives()
	x.lockTable()
	x.connections()
	x.durability()
	x.standbys()
	x.clock()
	if x.opts.Scope == Transactions {
		x.transaction()
	}
	fit := x.layout() && x.rights() && !(pooled && x.opts.Scope == Sessions)
	refused := slices.ContainsFunc(x.found, func(f driver.Diagnosis) bool { return f.Verdict == driver.Refuse })
	if fit && !refused && x.opts.Scope != Transactions {
		x.useEverything()
	}
}

func leaseConfigOf(dsn string) (*pgx.ConnConfig, error) {
	config, err := leaseConfig(dsn, &LeaseOptions{})
	if err != nil {
		return nil, err
	}
	c := config.ConnConfig
	c.RuntimeParams["application_name"] = "holdlock doctor"
	return c, nil
}

// doctorBudget is what one look may take.
const doctorBudget = 10 * time.Second

func (x *examination) connect() (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(x.ctx, doctorBudget)
	defer cancel()
	config := x.config.Copy()
	config.DefaultQueryExecMode = execMode // this may be a pooler
	config.StatementCacheCapacity, config.DescriptionCacheCapacity = 0, 0
	return pgx.ConnectConfig(ctx, config)
}

// row asks for one row, within a budget.
func (x *examination) row(sql string, args []any, dest ...any) error {
	ctx, cancel := context.WithTimeout(x.ctx, doctorBudget)
	defer cancel()
	return x.conn.QueryRow(ctx, sql, args...).Scan(dest...)
}

func connectAdvice(err error, c *pgx.ConnConfig) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		switch refused.Code {
		case "28P01":
			return "the user or the password is wrong"
		case "28000":
			return fmt.Sprintf("a line in pg_hba.conf for user %s and database %s, or the user itself", c.User, c.Database)
		case "3D000":
			return fmt.Sprintf("CREATE DATABASE %s, or name another one", pgx.Identifier{c.Database}.Sanitize())
		case tooManyConnections:
			return "max_connections to more, or a pooler, or look at who holds them: SELECT * FROM pg_stat_activity"
		case "57P03":
			return "the server is starting or stopping: try again when it has"
		case "42501", "42704":
			return fmt.Sprintf("GRANT CONNECT ON DATABASE %s TO %s", pgx.Identifier{c.Database}.Sanitize(), pgx.Identifier{c.User}.Sanitize())
		}
	}
	return "look at the host, the port, sslmode, the network and the server"
}

// useEverything does all that locks do, on a lock of its own, and compares the time it takes with the TTL.
func (x *examination) useEverything() {
	ctx, cancel := context.WithTimeout(x.ctx, 3*doctorBudget)
	defer cancel()
	if x.store == nil {
		var err error
		if x.opts.Scope == Sessions {
			x.store, err = NewSessionDriver(ctx, x.dsn, &SessionOptions{Schema: x.opts.Schema})
		} else {
			x.store, err = NewLeaseDriver(ctx, x.dsn, &LeaseOptions{Schema: x.opts.Schema})
		}
		if err != nil {
			x.say("use", driver.Refuse, err.Error(), noLock, "see the words of the error")
			return
		}
		defer x.store.Close()
	}
	ref := driver.Ref{Key: "holdlock-doctor/" + randomHex(4), Nonce: randomHex(16)}
	const ttl = time.Minute
	var took []time.Duration
	steps := []struct {
		what string
		do   func(ctx context.Context) error
	}{
		{"acquire", func(ctx context.Context) error {
			_, err := x.store.Acquire(ctx, &driver.AcquireRequest{Ref: ref, TTL: ttl, Holder: driver.Holder{Label: "holdlock doctor"}})
			return err
		}},
		{"renew", func(ctx context.Context) error {
			for range 10 {
				sent := time.Now()
				if _, err := x.store.Renew(ctx, &driver.RenewRequest{Ref: ref, TTL: ttl}); err != nil {
					return err
				}
				took = append(took, time.Since(sent))
			}
			return nil
		}},
		{"list", func(ctx context.Context) error {
			_, err := x.store.(driver.Lister).List(ctx, "holdlock-doctor/", "", 1)
			return err
		}},
		{"wait", func(ctx context.Context) error {
			_, stop, err := x.store.(driver.Waiter).Watch(ctx, ref.Key)
			if err == nil {
				stop()
			}
			return err
		}},
		{"release", func(ctx context.Context) error { return x.store.Release(ctx, &driver.ReleaseRequest{Ref: ref}) }},
	}
	for _, s := range steps {
		ctx, cancel := context.WithTimeout(x.ctx, doctorBudget)
		err := s.do(ctx)
		cancel()
		if err != nil {
			x.say("use", driver.Refuse, fmt.Sprintf("cannot %s: %v", s.what, err), "locks do not work", useAdvice(err))
			if s.what == "acquire" {
				return
			}
		}
	}
	if len(x.found) == 0 || x.found[len(x.found)-1].Check != "use" {
		x.fine("use", "acquire, renew, list, wait and release work")
	}
	if len(took) > 0 {
		x.roundTrip(took)
	}
}

func useAdvice(err error) string {
	switch {
	case code(err) == noRights, code(err) == noTable, code(err) == noFunction:
		return "holdlock migrate --grant ROLE, by an administrator"
	case errors.Is(err, context.DeadlineExceeded):
		return "a commit hangs: look at synchronous_standby_names, at locks in pg_stat_activity, and at the disk"
	}
	return "see the words of the server"
}

// roundTrip compares the time of a renewal, which is a commit, with the TTL.
func (x *examination) roundTrip(took []time.Duration) {
	slices.Sort(took)
	slowest := took[len(took)-1]
	found := fmt.Sprintf("a renewal takes %s, the slowest of %d took %s, with a TTL of %s", took[len(took)/2].Round(10*time.Microsecond),
		len(took), slowest.Round(10*time.Microsecond), x.opts.TTL)
	if slowest > x.opts.TTL/10 {
		x.say("round trip", driver.Caution, found, "a few slow renewals, and the lease is lost",
			"a TTL of "+(20*slowest).Round(time.Second).String()+" or more, a nearer server, or a quicker disk")
		return
	}
	x.fine("round trip", found)
}

// clock compares the server's clock with ours.
func (x *examination) clock() {
	var best, offset time.Duration
	for range 5 {
		var us int64
		sent := time.Now()
		if err := x.row("SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint", nil, &us); err != nil {
			x.unseen("clock", err.Error(), "look at the server")
			return
		}
		if took := time.Since(sent); best == 0 || took < best { // the quickest answer says most
			best, offset = took, time.UnixMicro(us).Sub(sent.Add(took/2))
		}
	}
	found := fmt.Sprintf("the server's clock is %s from this machine's", offset.Round(time.Millisecond))
	if offset.Abs() > time.Second {
		x.say("clock", driver.Caution, found, "a step to correct it ends terms early, or keeps the lock of a dead holder for as long",
			"run an NTP daemon that slews, on both")
		return
	}
	x.fine("clock", found)
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // cannot fail
	return hex.EncodeToString(b)
}

func quoted(names []string) string {
	var out []string
	for _, n := range names {
		out = append(out, pgx.Identifier{n}.Sanitize())
	}
	return strings.Join(out, ", ")
}
