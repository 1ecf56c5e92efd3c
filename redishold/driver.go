package redishold

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
)

// A Driver is one program's access to a store. It implements driver.Driver, BatchRenewer, Queue, Waiter, Lister, Breaker,
// Journal and Ledger, and is safe for concurrent use. What it can do depends on the options; see driver.As.
type Driver struct {
	client  redis.UniversalClient
	cluster *redis.ClusterClient // the client, if it is one
	ns      string
	prefix  string // of slots
	plain   bool
	acks    int // replicas that have to confirm
	scripts *scripts
	shared  *sharer // of calls of scripts; nil on a Cluster
	holder  holderText
	traits  driver.Traits
	sentry  *SentinelOptions // for Diagnose, or nil
	log     *slog.Logger
	hub     *hub
	lists   listCache    // of slots
	jobs    listCache    // of records of jobs
	undone  listCache    // of those that are not done
	hung    atomic.Int64 // calls that are for no one node of a Cluster
	nodes   nodes        // of a Cluster
	told    sync.Once    // see notPassed

	closing chan struct{}
	close   sync.Once
}

var namespaces = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,64}$`)

// NewDriver returns a driver on a Redis client, for combinators and tests; programs use Open.
func NewDriver(client redis.UniversalClient, opts *Options) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	ns := opts.Namespace
	if ns == "" {
		ns = "holdlock"
	}
	switch {
	case !namespaces.MatchString(ns):
		return nil, fmt.Errorf("redishold: namespace %.80q: 1 to 64 of A-Z a-z 0-9 . _ : - are allowed", ns)
	case opts.Replicas < 0:
		return nil, fmt.Errorf("redishold: Replicas is %d; 0 for none, or how many have to confirm", opts.Replicas)
	}
	d := &Driver{
		client: client, ns: ns, prefix: ns + ":{:", plain: opts.PlainKeys, acks: opts.Replicas, sentry: opts.Sentinel,
		log: opts.logger(), closing: make(chan struct{}),
	}
	kind, where, forgets := "redis", "", driver.OnRestart
	switch c := client.(type) {
	case nil:
		return nil, errors.New("redishold: the Redis client is nil")
	case *redis.Ring:
		return nil, errors.New("redishold: a redis.Ring is refused: its clients can disagree about which server has a key, " +
			"and then do not exclude each other; use one server, Sentinel or a Cluster, or quorumhold over several servers")
	case *redis.ClusterClient:
		d.cluster = c
		addrs := slices.Clone(c.Options().Addrs)
		slices.Sort(addrs)
		kind, where, forgets = "redis+cluster", strings.Join(addrs, ","), driver.OnFailover
	case *redis.Client:
		o := c.Options()
		where = fmt.Sprintf("%s/%d", o.Addr, o.DB)
		if o.Addr == "FailoverClient" { // the name that go-redis gives to clients for Sentinel
			kind, where, forgets = "redis+sentinel", fmt.Sprintf("db %d", o.DB), driver.OnFailover
		}
	}
	if opts.Failover {
		forgets = driver.OnFailover
	}
	location := fmt.Sprintf("%s %s, namespace %s", kind, where, ns)
	fencing := driver.WhileDataSurvives
	if d.plain {
		location, fencing = fmt.Sprintf("%s %s, plain keys", kind, where), driver.NoTokens
	}
	if opts.Location != "" {
		location = opts.Location
	}
	d.traits = driver.Traits{
		Name: "redis", Location: location, Scope: driver.Cluster, Fencing: fencing, Forgets: forgets,
		Clock: driver.WallClock, MinTTL: 100 * time.Millisecond, TTLStep: 3 * time.Millisecond,
		Prompt: true, // see sharer and bounded
		Seeds:  !opts.PlainKeys,
	}
	if d.cluster == nil {
		d.shared = newSharer(client)
	}
	d.traits.FIFO = d.acks == 0 && !d.plain // see line.go
	if !d.plain {
		d.traits.Records = driver.WhileItLasts // see journal.go
	}
	d.scripts = newScripts(d.plain, d.channel(), d.alive(), "")
	d.hub = newHub(d)
	return d, nil
}

// Traits implements driver.Driver.
func (d *Driver) Traits() driver.Traits { return d.traits }

// Close implements driver.Driver. It does not close the Redis client.
func (d *Driver) Close() error {
	d.close.Do(func() {
		close(d.closing)
		if d.shared != nil {
			d.shared.close()
		}
	})
	d.hub.close()
	return nil
}

// usable says why a call cannot be made.
func (d *Driver) usable(ctx context.Context, verb, key string) error {
	err := ctx.Err()
	select {
	case <-d.closing:
		err = driver.ErrClosed
	default:
	}
	if err != nil {
		return fmt.Errorf("redishold: %s %q: %w (%w)", verb, key, err, driver.ErrNotApplied)
	}
	if d.plain && d.cluster != nil && strings.Contains(key, "}") {
		return fmt.Errorf("redishold: %s %q: with PlainKeys on a Cluster no name may contain }: "+
			"what stands beside the plain key could not be on the same node (%w)", verb, key, driver.ErrNotApplied)
	}
	return nil
}

// keys returns the keys that are a lock.
func (d *Driver) keys(key string) []string {
	if d.plain {
		return []string{d.plainSlotKey(key), key}
	}
	return []string{d.slotKey(key)}
}

// withAll returns them with all that may stand beside them.
func (d *Driver) withAll(key string) []string {
	if d.plain {
		return append(d.keys(key), d.watchersKey(key))
	}
	return []string{d.slotKey(key), d.lineKey(key), d.watchersKey(key)}
}

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	return d.acquire(ctx, "acquire", req, false)
}

// acquire makes one attempt, and takes a place in line if that is wanted.
func (d *Driver) acquire(ctx context.Context, verb string, req *driver.AcquireRequest, wait bool) (driver.Grant, error) {
	key := req.Ref.Key
	if err := d.usable(ctx, verb, key); err != nil {
		return driver.Grant{}, err
	}
	holder, err := d.holder.json(req.Holder)
	if err != nil {
		return driver.Grant{}, d.failure(verb, key, err)
	}
	floor := any(uint64(req.Floor))
	if req.Seed != 0 && !d.plain {
		floor = fmt.Sprintf("=%d", req.Seed)
		if holder, err = seeded(req); err != nil {
			return driver.Grant{}, d.failure(verb, key, err)
		}
	}
	if req.Once == nil && req.Seed == 0 && d.turns() && d.acks == 0 {
		t, err := d.turn(ctx, key, d.packAcquire(req, holder, wait), false)
		if err == nil && t.word != wordGeneral {
			return t.grant(req.Floor), nil
		}
		return d.acquired(verb, key, t.rest, err)
	}
	args := append(make([]any, 0, 9), req.Ref.Nonce, micros(max(req.TTL, req.MinHold)), floor, holder) // with room for a claim
	if req.Once != nil {
		return d.claim(ctx, verb, req, args)
	}
	if wait {
		args = append(args, d.place(req, holder))
	}
	reply, err := d.write(ctx, req.Ref, d.scripts.acquire, d.keys(key), args...)
	return d.acquired(verb, key, reply, err)
}

// acquired judges the reply to an attempt.
func (d *Driver) acquired(verb, key string, reply any, err error) (driver.Grant, error) {
	if err != nil {
		return driver.Grant{}, d.failure(verb, key, err)
	}
	word, rest, err := answer(reply)
	if err != nil {
		return driver.Grant{}, d.failure(verb, key, err)
	}
	if word == "G" && len(rest) == 3 {
		g, err := d.granted(key, rest)
		if err != nil {
			return driver.Grant{}, d.failure(verb, key, err)
		}
		return g, nil
	}
	return driver.Grant{}, d.notGranted(verb, key, word, rest)
}

// notGranted is the answer to an acquire that was not granted.
func (d *Driver) notGranted(verb, key, word string, rest []string) error {
	switch {
	case word == "H" && len(rest) >= 2:
		return d.held(verb, key, rest)
	case word == "L":
		return d.failure(verb, key, d.errLine(key))
	case word == "U":
		return d.failure(verb, key, fmt.Errorf("this attempt was given up and undone (%w)", driver.ErrNotApplied))
	case word == "X":
		return d.failure(verb, key, fmt.Errorf("%w: %w", driver.ErrTokensExhausted, driver.ErrNotApplied))
	}
	return d.failure(verb, key, fmt.Errorf("the script answered %s %q", word, rest))
}

// held is the refusal in a reply: the time, the slot, and the place in line if there is one.
func (d *Driver) held(verb, key string, rest []string) error {
	now, err := strconv.ParseInt(rest[0], 10, 64)
	if err != nil {
		return d.failure(verb, key, err)
	}
	term, _, err := d.term(key, rest[1], now)
	if err != nil {
		return d.failure(verb, key, fmt.Errorf("%w: %w", driver.ErrDamaged, err))
	}
	term.Key = key
	held := &driver.HeldError{Term: term}
	if len(rest) == 3 {
		held.Place, err = strconv.Atoi(rest[2])
	}
	if err != nil {
		return d.failure(verb, key, err)
	}
	return held
}

// granted is the grant in a reply: token, how the term before ended, and what is known of it.
func (d *Driver) granted(key string, rest []string) (g driver.Grant, err error) {
	g.Previous = endingOf(rest[1])
	g.Token, err = d.token(rest[0])
	switch {
	case err != nil:
	case g.Previous == driver.Released && rest[2] != "":
		g.PriorToken, err = d.token(rest[2])
	default:
		g.Prior, err = parsePrior(key, rest[2])
	}
	if g.Prior != nil && d.plain {
		g.Prior.Token = 0
	}
	return g, err
}

// Renew implements driver.Driver.
func (d *Driver) Renew(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
	res := d.RenewBatch(ctx, []*driver.RenewRequest{req})
	return res[0].Grant, res[0].Err
}

// Release implements driver.Driver.
func (d *Driver) Release(ctx context.Context, req *driver.ReleaseRequest) error {
	const verb = "release"
	key := req.Ref.Key
	if err := d.usable(ctx, verb, key); err != nil {
		return err
	}
	if d.turns() && req.KeepFor == 0 && req.Record == nil && !req.Undo {
		t, err := d.turn(ctx, key, packRelease(req.Ref.Nonce), true)
		if err == nil && t.word == wordKept {
			return nil
		}
		return d.ended(verb, key, t.rest, err)
	}
	args := append(make([]any, 0, 10), req.Ref.Nonce, micros(req.KeepFor), randomHex(8), undoing(req)) // with room for a record
	if req.Record != nil || req.Undo && d.traits.Records != driver.NoRecords {                         // what is undone may have had a claim
		return d.finish(ctx, verb, req, args)
	}
	reply, err := d.call(ctx, d.scripts.release, d.withAll(key), args...)
	return d.ended(verb, key, reply, err)
}

// Break implements driver.Breaker.
func (d *Driver) Break(ctx context.Context, req *driver.BreakRequest) error {
	const verb = "break"
	key := req.Ref.Key
	if err := d.usable(ctx, verb, key); err != nil {
		return err
	}
	by, err := toJSON(req.By)
	if err != nil {
		return d.failure(verb, key, err)
	}
	reply, err := d.call(ctx, d.scripts.breakTerm, d.withAll(key), req.Ref.Nonce, by, digit(req.Now))
	return d.ended(verb, key, reply, err)
}

// ended judges the reply to what ends a term.
func (d *Driver) ended(verb, key string, reply any, err error) error {
	if err != nil {
		return d.failure(verb, key, err)
	}
	word, rest, err := answer(reply)
	switch {
	case err != nil:
		return d.failure(verb, key, err)
	case word == "K":
		if len(rest) == 1 {
			d.notPassed(key, rest[0])
		}
		return nil
	case word == "g" || word == "b":
		return goneError(verb, key, word, rest)
	case word == "F":
		return d.failure(verb, key, fmt.Errorf("another program holds it and cannot be told; break it with Now (%w)", driver.ErrNotApplied))
	}
	return d.failure(verb, key, fmt.Errorf("the script answered %v", reply))
}

// notPassed tells, once, that a key was freed and could not be handed to who waits for it. They find it by their heartbeats, if they
// may what this user may not.
func (d *Driver) notPassed(key, why string) {
	d.told.Do(func() {
		d.log.Warn("a lock that was freed could not be passed to the next in line", "key", key, "store", d.traits.Location,
			"error", adviseRights(errors.New(why)))
	})
}

// term is parseSlot for this store.
func (d *Driver) term(key, slot string, now int64) (driver.Term, bool, error) {
	t, ok, err := parseSlot(key, slot, now)
	if d.plain {
		t.Token = 0
	}
	return t, ok, err
}

func (d *Driver) token(s string) (driver.Token, error) {
	if d.plain {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return driver.Token(n), err
}

// micros rounds up: a term must not be shorter than asked.
func micros(t time.Duration) int64 { return int64((t + time.Microsecond - 1) / time.Microsecond) }

// undoing is what release.lua is told: 2 if the nonce need not be remembered.
func undoing(req *driver.ReleaseRequest) string {
	if req.Undo && req.Answered {
		return "2"
	}
	return digit(req.Undo)
}

func digit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // cannot fail: crypto/rand ends the program instead
	return hex.EncodeToString(b)
}
