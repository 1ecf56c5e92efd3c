package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// Options are for New; nil means all defaults.
type Options struct {
	// Every is how often counts go to the store, while there are any. Default 10 s.
	Every time.Duration
	// Store is where the counts are kept. Default: the store of the locks. It is for those that keep none, which are quorums and
	// clients for transactions only: any driver with a driver.Ledger will do, such as that of one node of the quorum. The
	// recorder does not close it; close it after the client's Shutdown.
	Store driver.Ledger
	// Spool is a directory for what could not be sent until Stop, so that a program which ends during an outage loses nothing:
	// the next recorder with the same directory sends it. Each store needs a directory of its own. Default: none, and such
	// counts are lost. It is made if there is none, for this user only.
	Spool string
	// Logger gets a line when counts cannot be recorded. nil is silent.
	Logger *slog.Logger
}

const (
	maxLocks    = 1000 // that are counted by name
	tellEvery   = 7    // days after which it is said of a lock that is not used that there still is one
	flushBudget = 5 * time.Second
)

// Others is the name under which the locks of a program are counted that are too many to be counted by name.
const Others = "(other locks)"

// A Recorder counts what happens to the locks of one client. Give it to holdlock.ClientOptions.Recorder; the client starts it,
// and stops it in Shutdown. It is safe for concurrent use.
//
// What has not been sent yet is lost if the process is killed, or ends while the store is away; see Options.Spool. If the store does not answer, the counts are kept and sent again;
// should it have taken them the first time, they count once, unless more than four other programs have sent theirs to the
// same record in between.
type Recorder struct {
	opts   Options
	ledger driver.Ledger // nil: the store keeps no records, and nothing is counted
	host   string
	now    func() time.Time

	mu      sync.RWMutex // guards the map, not what is in it
	entries map[string]*entry
	timer   *time.Timer

	flushing sync.Mutex
	unsent   []*batch // oldest first
	warned   bool

	ticking context.Context // of what the timer sends; ended by Stop
	cancel  context.CancelFunc

	state   sync.Mutex
	due     bool // the timer runs
	failed  int  // flushes in a row
	stopped bool
	started bool
}

// entry is one lock in this process.
type entry struct {
	mu       sync.Mutex
	day      driver.Day
	usage    Usage // of that day, since the last flush
	dirty    bool
	past     map[driver.Day]*Usage // of days before, since the last flush
	declared []Declaration         // by this process
	current  Declaration           // of these, the one that it declared last, which is in use
	sentOn   driver.Day            // when that was last sent
	heldOn   driver.Day            // when it was last told that a term stands
}

// batch is what one request sends: all records of a day.
type batch struct {
	day      driver.Day
	number   uint32
	tried    bool // the store may have it
	summed   bool // the sum of its days has it
	usage    map[string]*Usage
	declared map[string][]Declaration // of day 0
}

// New returns a recorder for one client.
func New(opts *Options) *Recorder {
	r := &Recorder{entries: map[string]*entry{}, now: time.Now}
	r.ticking, r.cancel = context.WithCancel(context.Background())
	if opts != nil {
		r.opts = *opts
	}
	if r.opts.Every <= 0 {
		r.opts.Every = 10 * time.Second
	}
	return r
}

// Start implements holdlock.Recorder. The error is an *holdlock.InvalidError if it has been started before: what two clients count would go to
// the store of one, and no more once the other has stopped it.
func (r *Recorder) Start(l driver.Ledger, host string) error {
	r.state.Lock()
	again := r.started
	r.started = true
	r.state.Unlock()
	if again {
		return &holdlock.InvalidError{What: "Recorder", Value: "that another client has, or had,", Why: "each client needs one of its own; call ledger.New for each"}
	}
	if r.opts.Store != nil {
		l = r.opts.Store
	}
	if l == nil && r.opts.Logger != nil {
		r.opts.Logger.Warn("holdlock: the usage of locks is not recorded, because their store keeps no records; set ledger.Options.Store")
	}
	r.ledger, r.host = l, host
	r.timer = time.AfterFunc(time.Hour, r.tick)
	r.timer.Stop()
	return nil
}

// Stop implements holdlock.Recorder: it sends what there is, or spools it. Nothing is counted afterwards.
func (r *Recorder) Stop(ctx context.Context) error {
	r.state.Lock()
	r.stopped = true
	r.state.Unlock()
	if r.timer != nil {
		r.timer.Stop()
	}
	defer r.cancel()
	defer context.AfterFunc(ctx, r.cancel)() // one that the timer has begun would hold us up for longer
	err := r.Flush(ctx)
	if err != nil && r.opts.Spool != "" {
		if failed := r.spool(); failed != nil {
			return errors.Join(err, failed)
		}
		return nil
	}
	return err
}

// Declare implements holdlock.Recorder.
func (r *Recorder) Declare(name string, o holdlock.LockOptions) {
	if r.ledger == nil {
		return
	}
	now := r.now()
	today := driver.DayOf(now)
	d := Declaration{
		TTL: o.TTL, MaxHold: o.MaxHold, MinHold: o.MinHold, RenewOff: o.Renew == holdlock.RenewOff, DoubleRun: o.DoubleRun,
		Guard: o.Guard, Purpose: o.Purpose, AcceptRisk: o.AcceptRisk, Shadow: o.Mode == holdlock.Shadow, First: today, Last: today, Used: 1, Host: r.host,
		At: now.UTC().Truncate(time.Millisecond),
	}
	e, own := r.entry(name)
	if !own { // a declaration is of one lock
		return
	}
	e.mu.Lock()
	e.declared, e.current = declare(e.declared, d), d
	e.sentOn = 0
	e.dirty = true
	e.mu.Unlock()
	r.schedule()
}

// Observe implements holdlock.Observer.
func (r *Recorder) Observe(ev holdlock.Event) {
	if r.ledger == nil {
		return
	}
	now := r.now()
	e, _ := r.entry(ev.Name)
	e.mu.Lock()
	if day := driver.DayOf(now); day != e.day {
		e.turn(day)
	}
	first := !e.dirty
	if ev.Kind == holdlock.Renewed { // once a day: a term that stands is use
		if e.heldOn != e.day {
			e.heldOn, e.usage.LastHeld, e.dirty = e.day, now.Truncate(time.Second), true
		}
	} else if e.usage.count(&ev, now) {
		e.dirty = true
	}
	first = first && e.dirty
	e.mu.Unlock()
	if first {
		r.schedule()
	}
}

// entry returns that of a lock, or the common one, which is not its own, if there are too many.
func (r *Recorder) entry(name string) (e *entry, own bool) {
	r.mu.RLock()
	e = r.entries[name]
	r.mu.RUnlock()
	if e != nil {
		return e, name != Others
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.entries) >= maxLocks && r.entries[name] == nil {
		name = Others
	}
	if e = r.entries[name]; e == nil {
		e = &entry{}
		r.entries[name] = e
	}
	return e, name != Others
}

// turn begins a new day. Called with mu held.
func (e *entry) turn(day driver.Day) {
	if e.dirty && e.day != 0 {
		if e.past == nil {
			e.past = map[driver.Day]*Usage{}
		}
		u := &Usage{}
		u.Merge(&e.usage)
		if have := e.past[e.day]; have != nil {
			u.Merge(have)
		}
		e.past[e.day] = u
	}
	e.usage.reset()
	e.day = day
}

// schedule makes sure that what has been counted is sent before long.
func (r *Recorder) schedule() {
	r.state.Lock()
	defer r.state.Unlock()
	if !r.due && !r.stopped {
		r.due = true
		every := r.opts.Every << min(r.failed, 4)  // a store that is away is not asked as often
		r.timer.Reset(every/2 + rand.N(every/2+1)) // programs that were started together do not send together
	}
}

func (r *Recorder) tick() {
	r.state.Lock()
	r.due = false
	r.state.Unlock()
	ctx, cancel := context.WithTimeout(r.ticking, flushBudget)
	defer cancel()
	err := r.Flush(ctx)
	r.state.Lock()
	if r.failed++; err == nil {
		r.failed = 0
	}
	r.state.Unlock()
	if err != nil {
		r.schedule()
	}
}

// Flush sends what has been counted. If that fails it is kept for the next time.
func (r *Recorder) Flush(ctx context.Context) error {
	if r.ledger == nil {
		return nil
	}
	r.flushing.Lock()
	defer r.flushing.Unlock()
	r.collect()
	if err := r.send(ctx); err != nil {
		return err
	}
	return r.sendSpooled(ctx)
}

// send sends the batches, oldest first. Called with flushing held.
func (r *Recorder) send(ctx context.Context) error {
	for len(r.unsent) > 0 {
		if err := r.sendBatch(ctx, r.unsent[0]); err != nil {
			return err
		}
		r.unsent = r.unsent[1:]
	}
	return nil
}

func (r *Recorder) sendBatch(ctx context.Context, b *batch) error {
	b.tried = true
	if b.day > 0 && !b.summed {
		if err := r.update(ctx, spanOf(b.day), b); err != nil {
			return err
		}
		b.summed = true
	}
	return r.update(ctx, b.day, b)
}

func (r *Recorder) update(ctx context.Context, day driver.Day, b *batch) error {
	err := r.ledger.UpdateRecords(ctx, day, b.locks(), func(lock string, old []byte) []byte {
		out, err := b.merge(lock, old)
		if err != nil {
			r.warn(lock, err)
			return old
		}
		return out
	})
	if errors.Is(err, driver.ErrDamaged) { // as with a single record: kept, these counts would hold up all that come after them
		r.warn(fmt.Sprintf("(all of day %d)", day), err)
		return nil
	}
	return err
}

// collect takes what the entries have into a batch for each day. A batch that has been tried is not added to: the store may have
// taken it, and knows it by its number.
func (r *Recorder) collect() {
	days, today := map[driver.Day]*batch{}, driver.DayOf(r.now())
	for _, b := range r.unsent {
		if !b.tried {
			days[b.day] = b
		}
	}
	of := func(day driver.Day) *batch {
		b := days[day]
		if b == nil {
			b = &batch{day: day, number: rand.Uint32N(1 << 28), usage: map[string]*Usage{}, declared: map[string][]Declaration{}}
			days[day] = b
			r.unsent = append(r.unsent, b)
		}
		return b
	}
	r.mu.RLock()
	for name, e := range r.entries {
		e.mu.Lock()
		if e.dirty {
			e.turn(e.day)
			for day, u := range e.past {
				of(day).add(name, u)
			}
			if len(e.declared) > 0 && e.sentOn != today { // once a day: what it has declared last is still in use
				now := e.current
				now.use(max(today, now.Last))
				e.declared, e.current = declare(e.declared, now), now
				of(0).declared[name] = slices.Clone(e.declared)
				e.sentOn = today
			}
			e.past, e.dirty = nil, false
		} else if gone := today - e.sentOn; len(e.declared) > 0 && (gone >= tellEvery || gone < 0) {
			// That it is not used can be said only of a lock that there still is. It goes with what others have counted.
			now := e.current
			now.Told = today
			e.declared, e.current = declare(e.declared, now), now
			of(0).declared[name] = slices.Clone(e.declared)
			e.sentOn = today
		}
		e.mu.Unlock()
	}
	r.mu.RUnlock()
	if n := len(r.unsent) - maxUnsent; n > 0 { // the store has been away for long
		for _, b := range r.unsent[:n] {
			r.unsent[n].join(b)
		}
		r.unsent = r.unsent[n:]
	}
}

// maxUnsent bounds the batches that wait for a store which does not answer.
const maxUnsent = 64

func (b *batch) add(lock string, u *Usage) {
	if have := b.usage[lock]; have != nil {
		have.Merge(u)
		return
	}
	b.usage[lock] = u
}

// join adds an older batch, whose day and number are forgotten.
func (b *batch) join(old *batch) {
	for lock, u := range old.usage {
		if b.day == 0 { // it has no usage
			continue
		}
		b.add(lock, u)
	}
	for lock, list := range old.declared {
		if b.day == 0 {
			for _, d := range list {
				b.declared[lock] = declare(b.declared[lock], d)
			}
		}
	}
}

func (b *batch) locks() (names []string) {
	for name := range b.usage {
		names = append(names, name)
	}
	for name := range b.declared {
		names = append(names, name)
	}
	slices.Sort(names) // two programs that lock rows do it in the same order
	return names
}

// merge returns the record that the store is to have.
func (b *batch) merge(lock string, old []byte) ([]byte, error) {
	if b.day == 0 {
		list, err := decodeDeclarations(old)
		if err != nil {
			return nil, err
		}
		for _, d := range b.declared[lock] {
			list = declare(list, d)
		}
		return encodeDeclarations(list), nil
	}
	u, flushes, err := decode(old)
	if err != nil {
		return nil, err
	}
	if slices.Contains(flushes, b.number) {
		return old, nil // it came through the first time
	}
	u.Merge(b.usage[lock])
	if !b.usage[lock].LastUse().IsZero() {
		u.Used |= 1 << (b.day % spanDays)
	}
	flushes = append(flushes, b.number)
	return encode(u, flushes[max(0, len(flushes)-maxFlushes):]), nil
}

func (r *Recorder) warn(lock string, err error) {
	if r.warned || r.opts.Logger == nil {
		return
	}
	r.warned = true
	level := slog.LevelWarn
	if errors.Is(err, ErrNewer) {
		level = slog.LevelInfo
	}
	r.opts.Logger.Log(context.Background(), level, "holdlock: the usage of a lock is not recorded", "lock", lock, "err", err)
}
