package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// results are all readings of a run, by scenario and contestant, in the order of the rounds.
type results struct {
	plan   plan
	order  []contestant
	pairs  map[int]map[string][]pairsResult
	lines  map[int]map[string][]lineResult
	idle   map[string][]idleResult
	leases map[string][]leasesResult
	failed []string // what could not be measured, and why
}

func measure(ctx context.Context, s *server, p plan, progress func(string, ...any)) (*results, error) {
	r := &results{
		plan: p, pairs: map[int]map[string][]pairsResult{}, lines: map[int]map[string][]lineResult{},
		idle: map[string][]idleResult{}, leases: map[string][]leasesResult{},
	}
	for _, c := range contestants() {
		if c.bare || strings.Contains(c.name, p.only) {
			r.order = append(r.order, c)
		}
	}
	waiting := waitingFloors()
	for _, c := range r.order {
		if c.waits && !strings.HasSuffix(c.name, "piped") { // pipelines do not change what waiting is
			waiting = append(waiting, c)
		}
	}
	for _, n := range p.callers {
		r.pairs[n] = map[string][]pairsResult{}
		err := inRounds(p.rounds, r.order, func(c contestant) error {
			got, err := measurePairs(ctx, s, c, n, p.window)
			progress("%d callers, %s: %.0f pairs/s", n, c.name, got.perSecond)
			r.pairs[n][c.name] = append(r.pairs[n][c.name], got)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	for _, n := range p.waiters {
		r.lines[n] = map[string][]lineResult{}
		err := inRounds(max(1, p.rounds/2), waiting, func(c contestant) error {
			got, err := measureLine(ctx, s, c, n, 4*p.window)
			if err != nil && c.name != holdlockName {
				return r.fail(fmt.Sprintf("%d waiters", n), c, err)
			}
			progress("%d waiters, %s: hand-over %v, %d to %d turns", n, c.name, got.p50, got.fewest, got.most)
			r.lines[n][c.name] = append(r.lines[n][c.name], got)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if p.idle > 0 {
		err := inRounds(1, waiting, func(c contestant) error {
			got, err := measureIdle(ctx, s, c, p.idle, 4*p.window)
			if err != nil && c.name != holdlockName {
				return r.fail("idle waiters", c, err)
			}
			progress("%d idle waiters, %s: %.0f commands/s", p.idle, c.name, got.commands)
			r.idle[c.name] = append(r.idle[c.name], got)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if p.leases > 0 {
		holding := slices.DeleteFunc(slices.Clone(waiting[len(waitingFloors()):]), func(c contestant) bool {
			return c.name == rueidislockName || c.name == redsyncRueidisName // see README.md
		})
		err := inRounds(1, holding, func(c contestant) error {
			got, err := measureLeases(ctx, s, c, p.leases, p.ttl, p.keep)
			if err != nil && c.name != holdlockName {
				return r.fail("renewed leases", c, err)
			}
			progress("%d leases, %s: %d goroutines, %.0f bytes each", p.leases, c.name, got.Goroutines, got.Bytes)
			r.leases[c.name] = append(r.leases[c.name], got)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return r, nil
}

// fail notes a contestant that could not be measured, and lets the others go on.
func (r *results) fail(scenario string, c contestant, err error) error {
	r.failed = append(r.failed, fmt.Sprintf("%s, %s: %v", scenario, c.name, err))
	return nil
}

// inRounds takes one reading of everybody in each round, backwards in every other one, so that what the machine does
// besides hits all of them alike.
func inRounds(rounds int, all []contestant, read func(contestant) error) error {
	for i := range rounds {
		these := slices.Clone(all)
		if i%2 == 1 {
			slices.Reverse(these)
		}
		for _, c := range these {
			if err := read(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// median of what f says of the readings.
func median[T any](readings []T, f func(T) float64) float64 {
	if len(readings) == 0 {
		return 0
	}
	values := make([]float64, len(readings))
	for i, r := range readings {
		values[i] = f(r)
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// medianRatio compares two contestants round by round.
func medianRatio[T any](a, b []T, f func(T) float64) float64 {
	ratios := make([]float64, min(len(a), len(b)))
	for i := range ratios {
		ratios[i] = f(a[i]) / f(b[i])
	}
	return median(ratios, func(v float64) float64 { return v })
}
