package once_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/faultdriver"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/once"
)

var (
	seeds = flag.Int("seeds", 40, "how many random histories TestHistory runs")
	seed  = flag.Uint64("seed", 0, "run this one history only")
)

// How a run of a history ended, as the one who ran it knows. The store may know better.
type ending uint8

const (
	died      ending = iota // its process was killed at work, or before its record was confirmed
	refused                 // its record was refused: it was paused past its term
	unheard                 // the store did not answer
	failedFor               // it returned an error, which is recorded
	finished                // it is done, which is recorded
)

// A run is one call of a job's function.
type run struct {
	job     string
	token   holdlock.Token
	number  int
	effects int // 0 or 1: whether it came so far
	ending  ending
	result  string
}

// A history is what came of many deliveries.
type history struct {
	mu      sync.Mutex
	runs    []*run
	told    map[string]map[holdlock.Token]bool // by job: the runs that were told to follow a lapse
	results map[string][]string                // by job: what duplicates were answered
	wrong   []string
	held    map[string]bool // the jobs of policy Hold
	settled map[string]once.Status
}

func (h *history) Observe(e holdlock.Event) {
	if e.Kind != holdlock.Rerun {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.told[e.Key] == nil {
		h.told[e.Key] = map[holdlock.Token]bool{}
	}
	h.told[e.Key][e.Token] = true
}

func (h *history) blame(format string, args ...any) {
	h.wrong = append(h.wrong, fmt.Sprintf(format, args...))
}

// judge finds what must not be:
//
//   - a job that is acknowledged, or never delivered again, and has not been done;
//   - an effect that is there twice without as many runs that were told to follow a lapse;
//   - a run after a lapse that is not told, or one told that follows none;
//   - a run of a job that is recorded as done, or of one to be held that has lapsed;
//   - duplicates that are given other results than that of the run which did the job.
func (h *history) judge() []string {
	byJob := map[string][]*run{}
	for _, r := range h.runs {
		byJob[r.job] = append(byJob[r.job], r)
	}
	for job, status := range h.settled {
		runs := byJob[job]
		slices.SortFunc(runs, func(a, b *run) int { return cmp.Compare(a.token, b.token) })
		effects, reruns := 0, 0
		for i, r := range runs {
			effects += r.effects
			told := h.told[job][r.token]
			if told {
				reruns++
			}
			if i == 0 {
				if told {
					h.blame("%s: its first run was told to follow a lapse", job)
				}
				continue
			}
			switch before := runs[i-1]; before.ending {
			case finished:
				h.blame("%s: run %d began although run %d is recorded as done", job, r.number, before.number)
			case failedFor:
				if told {
					h.blame("%s: run %d was told to follow a lapse, and follows a failure", job, r.number)
				}
			case died, refused:
				if !told {
					h.blame("%s: run %d follows a lapse, and that was not told", job, r.number)
				}
				if h.held[job] {
					h.blame("%s: run %d follows a lapse, and the job was to be held", job, r.number)
				}
			}
		}
		if effects > 1+reruns {
			h.blame("%s: its effect is there %d times after %d runs that were told to follow a lapse", job, effects, reruns)
		}
		if h.held[job] && effects > 1 {
			h.blame("%s: its effect is there %d times, and it was to be held", job, effects)
		}
		if effects == 0 && status != once.Suspended {
			h.blame("%s: it is said to be %v, and was never done", job, status)
		}
		if !h.held[job] && status == once.Suspended {
			h.blame("%s: it is suspended, and was to be run again", job)
		}
		results := slices.Compact(slices.Sorted(slices.Values(h.results[job])))
		if len(results) > 1 {
			h.blame("%s: duplicates were given different results: %q", job, results)
		}
		for _, r := range runs {
			if r.ending == finished && len(results) > 0 && results[0] != r.result {
				h.blame("%s: run %d is recorded with result %s, and duplicates are given %s", job, r.number, r.result, results[0])
			}
		}
	}
	return h.wrong
}

// errDied is what the function of a process returns that was killed: nobody is left to see it.
var errDied = errors.New("died")

// deliver plays a random history: several processes take deliveries of a few jobs, each of them delivered twice and again
// until it is acknowledged. They die and are paused, before and after the effect, requests and replies get lost, functions
// fail. bend, if not nil, is put between each client and its faulty driver.
func deliver(t *testing.T, seed uint64, bend func(driver.Driver) driver.Driver) *history {
	h := &history{
		told: map[string]map[holdlock.Token]bool{}, results: map[string][]string{}, held: map[string]bool{},
		settled: map[string]once.Status{},
	}
	synctest.Test(t, func(t *testing.T) {
		store := memhold.NewStore()
		dice := rand.New(rand.NewPCG(seed, 0))
		var queue []string
		for i := range 12 {
			job := fmt.Sprintf("job %d", i)
			h.held[job] = i%2 == 0
			queue = append(queue, job, job)
		}
		dice.Shuffle(len(queue), func(i, j int) { queue[i], queue[j] = queue[j], queue[i] })
		var mu sync.Mutex
		take := func() (job string, ok bool) {
			mu.Lock()
			defer mu.Unlock()
			if len(queue) == 0 {
				return "", false
			}
			job, queue = queue[0], queue[1:]
			return job, true
		}
		again := func(job string) {
			mu.Lock()
			defer mu.Unlock()
			queue = append(queue, job)
		}
		var group sync.WaitGroup
		for i := range 4 {
			p := &process{h: h, store: store, bend: bend, dice: rand.New(rand.NewPCG(seed, uint64(i)+1)), t: t}
			group.Go(func() {
				for range 40 {
					time.Sleep(time.Duration(p.dice.Int64N(int64(ttl / 2))))
					if job, ok := take(); ok && !p.handle(job) {
						again(job)
					}
				}
				p.leave()
			})
		}
		group.Wait()
		// Now nothing goes wrong any more: what was not acknowledged is delivered until it is.
		time.Sleep(3 * ttl)
		calm := &process{h: h, store: store, bend: bend, t: t}
		for _, job := range slices.Sorted(maps.Keys(h.held)) {
			for range 10 {
				if calm.handle(job) {
					break
				}
				time.Sleep(ttl)
			}
			if _, settled := h.settled[job]; !settled {
				h.blame("%s: it is not settled after ten calm deliveries", job)
			}
		}
		calm.leave()
	})
	return h
}

// A process takes deliveries. After it has died it is another one.
type process struct {
	t     *testing.T
	h     *history
	store *memhold.Store
	bend  func(driver.Driver) driver.Driver
	dice  *rand.Rand // nil: nothing goes wrong

	drv    *faultdriver.Driver
	client *holdlock.Client
	lock   *holdlock.Lock
}

func (p *process) start() {
	var drv driver.Driver = memhold.NewDriver(&memhold.Options{Store: p.store})
	if p.bend != nil {
		drv = p.bend(drv)
	}
	p.drv = faultdriver.New(drv, nil)
	p.noisy()
	var err error
	if p.client, err = holdlock.NewClient(p.drv, &holdlock.ClientOptions{Observer: p.h, CallTimeout: time.Second}); err != nil {
		p.t.Fatal(err)
	}
	if p.lock, err = p.client.NewLock("job", &holdlock.LockOptions{TTL: ttl}); err != nil {
		p.t.Fatal(err)
	}
}

// noisy lets some requests and replies get lost.
func (p *process) noisy() {
	if p.dice == nil {
		p.drv.SetScript(nil)
		return
	}
	p.drv.SetScript(faultdriver.Seeded(p.dice.Uint64(), faultdriver.Odds{
		Drop: 0.05, Lose: 0.05, Before: 0.2, After: 0.2, MaxDelay: 100 * time.Millisecond,
	}))
}

// leave ends the process; one that has died leaves nothing but its goroutines.
func (p *process) leave() {
	if p.client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = p.client.Shutdown(ctx)
	p.client = nil
}

// handle takes one delivery and says whether it is acknowledged.
func (p *process) handle(job string) bool {
	if p.client == nil {
		p.start()
	}
	opts := &once.Options{}
	if p.h.held[job] {
		opts.OnLapse = once.Hold
	}
	chance := func(odds float64) bool { return p.dice != nil && p.dice.Float64() < odds }
	dies, r := false, (*run)(nil)
	die := func() error {
		dies = true
		p.drv.SetScript(dead)
		return errDied
	}
	out, err := once.Do(context.Background(), p.lock.For(job), opts, func(_ context.Context, now *once.Run) ([]byte, error) {
		r = &run{job: job, token: now.Lease.Token(), number: now.Number}
		r.result = fmt.Sprint(r.token)
		p.h.mu.Lock()
		p.h.runs = append(p.h.runs, r)
		p.h.mu.Unlock()
		if p.dice != nil {
			time.Sleep(time.Duration(p.dice.Int64N(int64(ttl))))
		}
		switch {
		case chance(0.1):
			return nil, die() // before the effect
		case chance(0.1):
			return nil, errors.New("not today")
		case chance(0.15): // paused: deaf to its context, and its renewals do not go out
			p.drv.SetScript(dead)
			time.Sleep(time.Duration(p.dice.Int64N(int64(3 * ttl))))
			p.noisy()
			if chance(0.3) {
				return nil, errors.New("late, and in vain")
			}
		}
		if p.h.held[job] && now.Lease.Check(0) != nil && chance(0.5) {
			return nil, errors.New("lost, and has noticed")
		}
		p.h.mu.Lock()
		r.effects++
		p.h.mu.Unlock()
		if chance(0.1) {
			return nil, die() // after the effect, before the record
		}
		return []byte(r.result), nil
	})
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	if r != nil {
		switch {
		case dies:
			r.ending = died
		case errors.Is(err, holdlock.ErrLost):
			r.ending = refused
		case !out.Recorded:
			r.ending = unheard
		case err != nil:
			r.ending = failedFor
		default:
			r.ending = finished
		}
	}
	if dies || err == nil && chance(0.05) { // or after the record, before the acknowledgement
		client := p.client
		p.client = nil
		p.drv.SetScript(dead)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_ = client.Shutdown(ctx)
		}()
		return false
	}
	if out.Status == once.AlreadyDone {
		p.h.results[job] = append(p.h.results[job], string(out.Result))
	}
	if err == nil || errors.Is(err, once.ErrSuspended) {
		p.h.settled[job] = out.Status
		return true
	}
	return false
}

// Over many random histories each job is done once, but for runs after lapses, which are told; under Hold never twice; and
// none is skipped and lost.
func TestHistory(t *testing.T) {
	from, to := uint64(1), uint64(*seeds)
	if *seed != 0 {
		from, to = *seed, *seed
	}
	var runs, reruns, twice int
	endings := map[ending]int{}
	for s := from; s <= to; s++ {
		h := deliver(t, s, nil)
		for _, w := range h.judge() {
			t.Errorf("seed %d: %s", s, w)
		}
		effects := map[string]int{}
		for _, r := range h.runs {
			runs++
			endings[r.ending]++
			effects[r.job] += r.effects
		}
		for _, told := range h.told {
			reruns += len(told)
		}
		for _, n := range effects {
			twice += max(0, n-1)
		}
	}
	t.Logf("%d histories, %d runs: %d died, %d refused, %d unheard, %d failed, %d done; %d runs told to follow a lapse, %d effects too many, all of these told",
		to-from+1, runs, endings[died], endings[refused], endings[unheard], endings[failedFor], endings[finished], reruns, twice)
	if *seed == 0 && (endings[died] < *seeds || endings[refused] < *seeds/4 || endings[failedFor] < *seeds/2 || reruns < *seeds/2 || twice == 0) {
		t.Error("too tame to show anything")
	}
}

// twin changes what a release with a record does.
type twin struct {
	*memhold.Driver
	release func(d *memhold.Driver, req *driver.ReleaseRequest) error
}

func (n twin) Release(ctx context.Context, req *driver.ReleaseRequest) error {
	if req.Record == nil {
		return n.Driver.Release(ctx, req)
	}
	return n.release(n.Driver, req)
}

// settle writes a record without asking who holds the lock.
func settle(d *memhold.Driver, req *driver.ReleaseRequest) {
	ctx := context.Background()
	if j, known, err := d.Job(ctx, req.Ref.Key); err == nil && known {
		_ = d.Settle(ctx, &driver.SettleRequest{
			Key: req.Ref.Key, Token: j.Token, Done: req.Record.State == driver.JobDone, Result: req.Record.Result, Keep: req.Record.Keep,
		})
	}
}

// The same histories find what is wrong with the ways in which this is usually written.
func TestHistoryFindsNaiveTwins(t *testing.T) {
	for name, release := range map[string]func(d *memhold.Driver, req *driver.ReleaseRequest) error{
		"the record is written after the release": func(d *memhold.Driver, req *driver.ReleaseRequest) error {
			if err := d.Release(context.Background(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
				return err
			}
			time.Sleep(50 * time.Millisecond)
			settle(d, req)
			return nil
		},
		"the key is deleted when the job is done": func(d *memhold.Driver, req *driver.ReleaseRequest) error {
			return d.Release(context.Background(), &driver.ReleaseRequest{Ref: req.Ref, Undo: true})
		},
		"the record is written by whoever comes": func(d *memhold.Driver, req *driver.ReleaseRequest) error {
			err := d.Release(context.Background(), req)
			if errors.Is(err, driver.ErrGone) {
				settle(d, req)
				return nil
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for s := uint64(1); s <= uint64(*seeds); s++ {
				h := deliver(t, s, func(d driver.Driver) driver.Driver { return twin{d.(*memhold.Driver), release} })
				if wrong := h.judge(); len(wrong) > 0 {
					t.Logf("seed %d: %s", s, wrong[0])
					return
				}
			}
			t.Errorf("not found in %d histories", *seeds)
		})
	}
}
