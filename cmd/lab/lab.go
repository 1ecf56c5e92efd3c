package lab

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdlock/holdlock/cmd/lab/resource"
	"github.com/holdlock/holdlock/cmd/lab/servers"
	"github.com/holdlock/holdlock/cmd/lab/verifier"
	"github.com/holdlock/holdlock/cmd/lab/worker"
	"github.com/holdlock/holdlock/internal/bootclock"
)

// Options are for Run; nil means all defaults.
type Options struct {
	// Scenarios are faults, mechanisms, or MECHANISM/FAULT. Default: the whole matrix.
	Scenarios []string
	// Seed decides what the schedules leave open: which nodes of a quorum are hit, and the names of jobs.
	Seed uint64
	// Full plays each case five times instead of once, with locks that last three times as long.
	Full bool
	// Progress, if not nil, is called after each experiment, with how many are over and how many there are. It is not called for
	// those whose fault cannot hit their mechanism.
	Progress func(e *Experiment, over, all int)

	// For tests: mechanisms that are replaced by others, to see that it is noticed, and another pace.
	swap map[string]string
	pace *pace
}

// A pace is how long things take.
type pace struct {
	trials int
	brief  time.Duration // the expiry of a lock that is to expire
	long   time.Duration // the expiry of a lock that is not
}

var (
	shortPace = pace{trials: 1, brief: time.Second, long: 10 * time.Second}
	fullPace  = pace{trials: 5, brief: 3 * time.Second, long: 20 * time.Second}
)

// repeats is how often a case is repeated, with twice the expiry, if the machine was too slow for it.
const repeats = 3

// Run runs experiments, one after the other, and returns what was found. The error is an *UnknownError, ctx's, or one of the
// directory for temporary files. What cannot be run for want of a server, or has failed, is told in the report. When Run
// returns, no process, port or file of it is left.
func Run(ctx context.Context, opts *Options) (*Report, error) {
	if opts == nil {
		opts = &Options{}
	}
	chosen, err := choose(opts.Scenarios)
	if err != nil {
		return nil, err
	}
	dir, err := servers.NewDir()
	if err != nil {
		return nil, err
	}
	l := &laboratory{dir: dir, opts: opts, pace: shortPace}
	if opts.Full {
		l.pace = fullPace
	}
	if opts.pace != nil {
		l.pace = *opts.pace
	}
	report := &Report{Seed: opts.Seed, Full: opts.Full}
	began := time.Now()
	over, all := 0, 0
	for _, p := range chosen {
		if notApplicable(p.mechanism.ID, p.fault.ID) == "" {
			all++
		}
	}
	for _, p := range chosen {
		e, err := l.experiment(ctx, p)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s, %s: %w", p.mechanism.Title, p.fault.Title, err), l.close())
		}
		report.Experiments = append(report.Experiments, *e)
		if e.inapplicable {
			continue
		}
		if over++; opts.Progress != nil {
			opts.Progress(e, over, all)
		}
	}
	report.Took = time.Since(began)
	return report, l.close()
}

type laboratory struct {
	dir  *servers.Dir
	opts *Options
	pace pace
	pg   *servers.Postgres // nil until it is needed
}

// close ends what all experiments share, and removes all files.
func (l *laboratory) close() error {
	if l.pg != nil {
		l.pg.Kill()
	}
	return l.dir.Remove()
}

// part is one case of one trial.
type part struct {
	schedule schedule
	trial    int
	result   Case
	err      error
}

func (l *laboratory) experiment(ctx context.Context, p pair) (*Experiment, error) {
	e := &Experiment{Mechanism: p.mechanism, Fault: p.fault, Trials: l.pace.trials}
	if e.NotRun = notApplicable(p.mechanism.ID, p.fault.ID); e.NotRun != "" {
		e.inapplicable = true
		return e, nil
	}
	began := time.Now()
	defer func() { e.Took = time.Since(began) }()
	var parts []*part
	for trial := range l.pace.trials {
		for _, s := range p.fault.cases {
			parts = append(parts, &part{schedule: s, trial: trial})
		}
	}
	if err := l.play(ctx, p, parts); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		e.NotRun = err.Error()
		if missing := (*servers.MissingError)(nil); errors.As(err, &missing) {
			e.NotRun = missing.Error()
		} else if !errors.Is(err, errVoid) {
			e.Surprise = "it failed"
		}
		return e, nil
	}
	for _, one := range parts {
		e.Cases = append(e.Cases, one.result)
		e.Counts = e.Counts.Plus(one.result.Counts)
	}
	e.Surprise = surprise(e)
	return e, nil
}

// atOnce is how many cases are played at the same time: most of them wait for a lock to expire.
const atOnce = 3

// play plays all parts, and fails with the first error of the first one that fails.
func (l *laboratory) play(ctx context.Context, p pair, parts []*part) error {
	mechanism := p.mechanism.ID
	if other := l.opts.swap[mechanism]; other != "" {
		mechanism = other
	}
	maxTTL := l.pace.long << repeats
	if p.fault.ofServers {
		for _, one := range parts {
			// A repetition needs servers of its own too, on which nothing has happened.
			err := l.repeated(one, func(pace pace, try int) error {
				st, err := l.build(ctx, mechanism, p.fault.ID, maxTTL)
				defer st.close()
				if err != nil {
					return err
				}
				return l.scene(ctx, st, p, one, pace, try)
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
	st, err := l.build(ctx, mechanism, p.fault.ID, maxTTL)
	defer st.close()
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, one := range parts {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			one.err = l.repeated(one, func(pace pace, try int) error { return l.scene(ctx, st, p, one, pace, try) })
		})
	}
	all.Wait()
	for _, one := range parts {
		if one.err != nil {
			return one.err
		}
	}
	return nil
}

// repeated plays a part until its schedule could be kept.
func (l *laboratory) repeated(one *part, play func(pace pace, try int) error) (err error) {
	pace := l.pace
	for try := range repeats + 1 {
		if err = play(pace, try); !errors.Is(err, errVoid) {
			break
		}
		pace.brief, pace.long = 2*pace.brief, 2*pace.long
	}
	if err != nil {
		return fmt.Errorf("case %q: %w", one.schedule.title, err)
	}
	return nil
}

// scene plays one case once, and counts.
func (l *laboratory) scene(ctx context.Context, st *stage, p pair, one *part, pace pace, try int) (err error) {
	hash := fnv.New64a()
	fmt.Fprint(hash, p.mechanism.ID, p.fault.ID, one.schedule.title, one.trial)
	random := rand.New(rand.NewPCG(l.opts.Seed, hash.Sum64()))
	fenced := st.config.Mechanism == worker.Fenced
	path := l.dir.Path("log")
	res, err := resource.Open(path, fenced)
	if err != nil {
		return err
	}
	s := &scene{
		ctx: ctx, stage: st, job: fmt.Sprintf("job-%08x", random.Uint32()+uint32(try)), brief: pace.brief, long: pace.long, rand: random,
		res: res, start: bootclock.Now(),
	}
	res.Announce(s.job)
	err = one.schedule.play(s)
	s.close(err != nil)
	if err == nil && st.pg != nil {
		err = s.importLog()
	}
	counts, closed := res.Close()
	if err = errors.Join(err, closed); err != nil {
		if ctx.Err() != nil { // it is why
			return context.Cause(ctx)
		}
		return err
	}
	log, err := verifier.Read(path)
	if err != nil {
		return err
	}
	acks := s.acks
	if st.pg != nil {
		acks = nil // what a transaction was answered may have been rolled back
	}
	if err := verifier.Verify(log, fenced, acks, counts); err != nil {
		return fmt.Errorf("the verifier does not agree: %w", err)
	}
	if err := s.kept(log); err != nil {
		return err
	}
	one.result = Case{Title: one.schedule.title, Job: s.job, Repeated: try, Expiry: pace.brief, Counts: counts, Events: s.timeline(log)}
	return nil
}

// importLog hands the resource what the database has logged of the job.
func (s *scene) importLog() error {
	log, err := s.stage.logged(s.ctx, s.job)
	if err != nil {
		return fmt.Errorf("reading the log in the database: %w", err)
	}
	for _, e := range log {
		s.res.Import(e)
	}
	return nil
}
