package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
)

// flaky is a ledger whose answers can get lost.
type flaky struct {
	driver.Ledger
	mu       sync.Mutex
	down     bool // requests do not arrive
	deaf     bool // they do, and their answers do not
	requests int
}

var errDown = errors.New("the store is down")

func (f *flaky) UpdateRecords(ctx context.Context, day driver.Day, locks []string, merge func(string, []byte) []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests++
	if f.down {
		return errDown
	}
	err := f.Ledger.UpdateRecords(ctx, day, locks, merge)
	if f.deaf {
		return errDown
	}
	return err
}

func newLedger() *flaky { return &flaky{Ledger: memhold.NewDriver(nil)} }

func started(l driver.Ledger, opts *Options) *Recorder {
	r := New(opts)
	if err := r.Start(l, "host"); err != nil {
		panic(err)
	}
	return r
}

func granted(r *Recorder, lock string, n int) {
	for range n {
		r.Observe(holdlock.Event{Kind: holdlock.Granted, Name: lock})
		r.Observe(holdlock.Event{Kind: holdlock.Released, Name: lock, Held: time.Second})
	}
}

func total(t *testing.T, l driver.Ledger, lock string) *Usage {
	t.Helper()
	locks, problems, err := Load(t.Context(), l, 1, driver.DayOf(time.Now())+1)
	if err != nil || len(problems) > 0 {
		t.Fatalf("Load: %v, %v", err, problems)
	}
	for _, k := range locks {
		if k.Name == lock {
			return k.Total()
		}
	}
	return &Usage{}
}

func wantGrants(t *testing.T, l driver.Ledger, lock string, want uint64) {
	t.Helper()
	if got := total(t, l, lock); got.Get(Granted) != want || uint64(got.Hold.Count()) != want {
		t.Errorf("lock %s: %d grants and %d holds are recorded, want %d", lock, got.Get(Granted), got.Hold.Count(), want)
	}
}

// Counts go to the store by themselves, together, and nothing is sent while nothing happens.
func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		r := started(l, nil)
		for i := range 50 {
			granted(r, fmt.Sprintf("lock%d", i), 3)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		wantGrants(t, l, "lock7", 3)
		if l.requests != 2 {
			t.Errorf("%d requests for one day and the sum it is in, want 2", l.requests)
		}
		time.Sleep(time.Hour)
		if l.requests != 2 {
			t.Errorf("%d requests after an hour in which nothing happened, want 2", l.requests)
		}
		granted(r, "lock7", 1)
		if err := r.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantGrants(t, l, "lock7", 4)
	})
}

// While the store is away counts are kept, and what it has taken without an answer counts once.
func TestStoreAway(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := newLedger()
			r := started(l, nil)
			other := started(l, nil)
			for i := range 200 { // five hours
				l.mu.Lock()
				l.down, l.deaf = i%3 > 0 && !deaf, i%3 > 0 && deaf
				l.mu.Unlock()
				granted(r, "a", 1)
				if i%9 == 0 { // seldom enough for the first to be heard before its number is pushed out of the record
					granted(other, "a", 1)
				}
				time.Sleep(90 * time.Second)
			}
			l.mu.Lock()
			l.down, l.deaf = false, false
			l.mu.Unlock()
			if err := errors.Join(r.Stop(t.Context()), other.Stop(t.Context())); err != nil {
				t.Fatal(err)
			}
			wantGrants(t, l, "a", 223)
		})
	}
}

// hangs is a ledger that answers nothing until it is given up, and tells of each call how that was.
type hangs struct {
	driver.Ledger
	began chan struct{}
	ended chan error
}

func (h *hangs) UpdateRecords(ctx context.Context, _ driver.Day, _ []string, _ func(string, []byte) []byte) error {
	h.began <- struct{}{}
	<-ctx.Done()
	h.ended <- ctx.Err()
	return ctx.Err()
}

// The end of Stop's time also ends what the timer has begun to send to a store that hangs.
func TestStopWhileSending(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store := &hangs{began: make(chan struct{}, 9), ended: make(chan error, 9)}
	r := started(store, &Options{Spool: dir, Every: time.Millisecond})
	granted(r, "job", 1)
	<-store.began // by the timer
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Stop(ctx); err != nil {
		t.Errorf("Stop: %v, want it spooled", err)
	}
	if err := <-store.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("what the timer had begun ended with %v, so that Stop waited for it", err)
	}
	if n := len(spoolFiles(t, dir)); n != 1 {
		t.Errorf("%d files in the spool", n)
	}
}

// A store that is away for a long time costs bounded memory, and only the day of old counts.
func TestStoreAwayForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		l.down = true
		r := started(l, nil)
		for range 500 {
			granted(r, "a", 1)
			time.Sleep(time.Hour)
		}
		if len(r.unsent) > maxUnsent {
			t.Errorf("%d batches are kept", len(r.unsent))
		}
		l.mu.Lock()
		l.down = false
		l.mu.Unlock()
		if err := r.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantGrants(t, l, "a", 500)
	})
}

// Each day has its record.
func TestMidnight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		r := started(l, nil)
		time.Sleep(24*time.Hour - time.Second - time.Duration(time.Now().Unix()%86400)*time.Second)
		granted(r, "a", 1)
		time.Sleep(2 * time.Second)
		granted(r, "a", 2)
		if err := r.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		locks, _, err := Load(t.Context(), l, 1, 1<<30)
		if err != nil || len(locks) != 1 || len(locks[0].Days) != 2 {
			t.Fatalf("Load: %v, %v", locks, err)
		}
		today := driver.DayOf(time.Now())
		if y, n := locks[0].Days[today-1].Get(Granted), locks[0].Days[today].Get(Granted); y != 1 || n != 2 {
			t.Errorf("%d grants yesterday and %d today, want 1 and 2", y, n)
		}
	})
}

// A record of a newer release, or a damaged one, is left as it is, and said once.
func TestForeignRecords(t *testing.T) {
	l := newLedger()
	today := driver.DayOf(time.Now())
	for lock, b := range map[string]string{"newer": "\x07what", "damaged": "\x01\xff"} {
		for _, day := range []driver.Day{0, today, spanOf(today)} {
			err := l.UpdateRecords(t.Context(), day, []string{lock}, func(string, []byte) []byte { return []byte(b) })
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	r := started(l, nil)
	for _, lock := range []string{"newer", "damaged", "fine"} {
		r.Declare(lock, holdlock.LockOptions{})
		granted(r, lock, 1)
	}
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	locks, problems, err := Load(t.Context(), l, 1, today+1)
	if err != nil || len(problems) != 4 || len(locks) != 3 {
		t.Fatalf("Load: %d locks, problems %v, %v", len(locks), problems, err)
	}
	for _, l := range locks {
		if fine := l.Name == "fine"; l.Partial == fine || (l.Total().Get(Granted) == 1) != fine {
			t.Errorf("%s: partial %v, %d grants", l.Name, l.Partial, l.Total().Get(Granted))
		}
	}
	for _, p := range problems {
		var about *UnreadError
		if !errors.As(p, &about) || about.Lock == "" || about.Lock == "fine" {
			t.Errorf("%v is about %+v", p, about)
		}
		if !errors.Is(p, ErrNewer) && !errors.Is(p, ErrDamaged) || !strings.Contains(p.Error(), "lock ") {
			t.Errorf("problem %v", p)
		}
	}
}

// occupied is a ledger in which something else stands in the place of some days.
type occupied struct {
	driver.Ledger
	days []driver.Day
}

func (o *occupied) UpdateRecords(ctx context.Context, day driver.Day, locks []string, merge func(string, []byte) []byte) error {
	if slices.Contains(o.days, day) {
		return fmt.Errorf("key %d: %w", day, driver.ErrDamaged)
	}
	return o.Ledger.UpdateRecords(ctx, day, locks, merge)
}

func (o *occupied) ReadRecords(ctx context.Context, first, last driver.Day, f func(driver.Day, string, []byte) error) error {
	err := o.Ledger.ReadRecords(ctx, first, last, f)
	for _, day := range o.days {
		if err == nil && first <= day && day <= last {
			err = fmt.Errorf("key %d: %w", day, driver.ErrDamaged)
		}
	}
	return err
}

// Something else in the place of a day's records costs the counts of that day. It holds up no other day, and a review names it.
func TestOccupiedDays(t *testing.T) {
	today := driver.DayOf(time.Now())
	for _, day := range []driver.Day{0, today - 1, today, spanOf(today)} {
		l := &occupied{memhold.NewDriver(nil), []driver.Day{day}}
		r := started(l, nil)
		r.Declare("a", holdlock.LockOptions{})
		for d := today - 1; d <= today; d++ {
			r.now = func() time.Time { return d.Start().Add(time.Hour) }
			granted(r, "a", 1)
			if err := r.Flush(t.Context()); err != nil {
				t.Errorf("day %d is occupied: Flush: %v", day, err)
			}
		}
		if err := r.Stop(t.Context()); err != nil {
			t.Errorf("day %d is occupied: Stop: %v", day, err)
		}
		want := uint64(2)
		if day > 0 {
			want = 1
		}
		locks, problems, err := Load(t.Context(), l, today-20, today+1)
		if err != nil || len(locks) != 1 || locks[0].Total().Get(Granted) != want {
			t.Errorf("day %d is occupied: Load: %d locks, %v; want the other days", day, len(locks), err)
		}
		if wantProblems := day >= 0 || -day < cut(today); wantProblems != (len(problems) == 1) || len(problems) == 1 && !strings.Contains(problems[0].Error(), fmt.Sprintf("key %d: ", day)) {
			t.Errorf("day %d is occupied: problems %v", day, problems)
		}
	}
}

// Hosts whose clocks are a day apart lose nothing, and a reader whose clock is right finds all of it.
func TestClocksApart(t *testing.T) {
	l := newLedger()
	for i, off := range []time.Duration{-24 * time.Hour, 0, 24 * time.Hour} {
		r := started(l, nil)
		r.now = func() time.Time { return time.Now().Add(off) }
		r.Declare("a", holdlock.LockOptions{TTL: time.Minute, DoubleRun: holdlock.Costly})
		granted(r, "a", i+1)
		if err := r.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wantGrants(t, l, "a", 6)
	today := driver.DayOf(time.Now())
	locks, problems, err := Load(t.Context(), l, today-1, today+1)
	if err != nil || len(problems) > 0 || len(locks) != 1 || len(locks[0].Days) != 3 {
		t.Fatalf("Load: %+v, %v, %v", locks, problems, err)
	}
	if d := locks[0].Declared; len(d) != 1 || d[0].First != today-1 || d[0].Last != today+1 {
		t.Errorf("declared %+v, want once, for three days", d)
	}
}

func TestManyLocks(t *testing.T) {
	l := newLedger()
	r := started(l, nil)
	for i := range maxLocks + 500 {
		granted(r, fmt.Sprint(i), 1)
	}
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	locks, _, err := Load(t.Context(), l, 1, 1<<30)
	if err != nil || len(locks) != maxLocks+1 {
		t.Fatalf("%d locks, %v", len(locks), err)
	}
	wantGrants(t, l, Others, 500)
}

// Counting allocates nothing once a lock has been seen.
func TestNoAllocation(t *testing.T) {
	r := started(newLedger(), &Options{Every: time.Hour})
	granted(r, "a", 1)
	events := []holdlock.Event{
		{Kind: holdlock.Granted, Name: "a", Contended: true, Waited: time.Second},
		{Kind: holdlock.Released, Name: "a", Held: time.Second},
		{Kind: holdlock.Renewed, Name: "a"},
		{Kind: holdlock.Failed, Name: "a"},
	}
	for _, e := range events {
		r.Observe(e)
	}
	if n := testing.AllocsPerRun(1000, func() {
		for _, e := range events {
			r.Observe(e)
		}
	}); n > 0 {
		t.Errorf("%v allocations for four events", n)
	}
	_ = r.Stop(t.Context())
}

// BenchmarkObserve is what a run costs: its grant, with a wait before it, and its release. The instructions are those of
//
//	valgrind --tool=cachegrind --cache-sim=no ledger.test -test.run '^$' -test.bench Observe -test.benchtime 20000x
//
// less those with 10000x, divided by 10000.
func BenchmarkObserve(b *testing.B) {
	r := started(newLedger(), &Options{Every: time.Hour})
	b.ReportAllocs()
	for b.Loop() {
		r.Observe(holdlock.Event{Kind: holdlock.Granted, Name: "a", Contended: true, Waited: time.Second})
		r.Observe(holdlock.Event{Kind: holdlock.Released, Name: "a", Held: time.Second})
	}
	_ = r.Stop(b.Context())
}

// A run that outlives its expiry is counted with all of its time, once; other losses count up to the loss.
func TestOutlivedRuns(t *testing.T) {
	l := newLedger()
	r := started(l, nil)
	for range 2 {
		r.Observe(holdlock.Event{Kind: holdlock.Granted, Name: "a"})
		r.Observe(holdlock.Event{Kind: holdlock.Lost, Name: "a", Reason: holdlock.LossExpired, Held: 9 * time.Second})
	}
	r.Observe(holdlock.Event{Kind: holdlock.Outlived, Name: "a", Reason: holdlock.LossExpired, Held: time.Minute, TokenRead: true})
	r.Observe(holdlock.Event{Kind: holdlock.Granted, Name: "a"})
	r.Observe(holdlock.Event{Kind: holdlock.Lost, Name: "a", Reason: holdlock.LossMaxHold, Held: 20 * time.Second})
	r.Observe(holdlock.Event{Kind: holdlock.Outlived, Name: "a", Reason: holdlock.LossMaxHold, Held: time.Hour})
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	u := total(t, l, "a")
	if u.Hold.Count() != 2 || u.Hold.Max() != time.Minute || u.Get(LostExpired) != 2 || u.Get(LostMaxHold) != 1 || u.Get(TokenRead) != 1 {
		t.Errorf("%d holds, the longest %s, %v", u.Hold.Count(), u.Hold.Max(), u.Counts)
	}
}
