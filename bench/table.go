package main

import (
	"fmt"
	"strings"
	"time"
)

// markdown writes the page.
func (r *results) markdown(machine string) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# holdlock beside other Redis locks for Go\n")
	line("Written by `cd bench && go run .`; see [README.md](README.md) for what is measured, and how. %s. %d rounds.\n", machine, r.plan.rounds)
	line("| scenario | contestant | figure | ratio | more |")
	line("| --- | --- | --- | --- | --- |")
	for _, n := range r.plan.callers {
		r.pairLines(line, n)
	}
	for _, n := range r.plan.waiters {
		r.lineLines(line, n)
	}
	for _, c := range r.named() {
		if got := r.idle[c]; len(got) > 0 {
			line("| %d idle waiters in %d processes | %s | %.1f commands/s | | server CPU %.1f%% |", r.plan.idle, processes, c,
				median(got, func(x idleResult) float64 { return x.commands }), 100*median(got, func(x idleResult) float64 { return x.serverCPU }))
		}
	}
	for _, c := range r.named() {
		for _, got := range r.leases[c] {
			line("| %d renewed leases, TTL %v | %s | %.0f bytes a lease | | %d goroutines, %.1f%% of a core, %.0f commands/s |",
				r.plan.leases, r.plan.ttl, c, got.Bytes, got.Goroutines, 100*got.CPU, got.Commands)
		}
	}
	for _, f := range r.failed {
		line("\nNot measured: %s", f)
	}
	return b.String()
}

// named lists the contestants in the order of the table.
func (r *results) named() []string {
	var names []string
	for _, c := range waitingFloors() {
		names = append(names, c.name)
	}
	for _, c := range r.order {
		names = append(names, c.name)
	}
	return names
}

func (r *results) pairLines(line func(string, ...any), n int) {
	perSecond := func(x pairsResult) float64 { return x.perSecond }
	all := r.pairs[n]
	scenario := fmt.Sprintf("%d callers, keys of their own", n)
	if n == 1 {
		scenario = "1 caller"
	}
	for _, c := range r.order {
		got := all[c.name]
		name := c.name
		if c.note != "" {
			name += " (" + c.note + ")"
		}
		ratio := fmt.Sprintf("%.2f × bare SET", medianRatio(got, all[setName], perSecond))
		if !c.bare && strings.HasPrefix(c.name, holdlockName) {
			ratio = fmt.Sprintf("**%s**", strings.Join([]string{
				ratio,
				fmt.Sprintf("%.2f × its scripts bare", medianRatio(got, all[scriptsName], perSecond)),
				fmt.Sprintf("%.2f × its scripts bare on rueidis", medianRatio(got, all[scriptsRueidisName], perSecond)),
				r.versus(all, c.name, "redsync on go-redis", func(p string) bool { return p == redsyncName }),
				r.versus(all, c.name, "the best peer", func(p string) bool { return !strings.HasSuffix(p, "piped") }),
				r.versus(all, c.name, "the best piped peer", func(p string) bool { return strings.HasSuffix(p, "piped") }),
			}, ", "))
		}
		line("| %s | %s | %.0f pairs/s | %s | p50 %s, p99 %s, server CPU %.0f%%%s |", scenario, name, median(got, perSecond), ratio,
			short(median(got, func(x pairsResult) float64 { return float64(x.p50) })),
			short(median(got, func(x pairsResult) float64 { return float64(x.p99) })),
			100*median(got, func(x pairsResult) float64 { return x.serverCPU }), stuck(got))
	}
}

// stuck says how many callers hung, if any did.
func stuck(got []pairsResult) string {
	n := 0
	for _, r := range got {
		n += r.stuck
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d callers hung", n)
}

// versus compares holdlock with the fastest peer of some.
func (r *results) versus(all map[string][]pairsResult, our, what string, of func(name string) bool) string {
	perSecond := func(x pairsResult) float64 { return x.perSecond }
	best := ""
	for _, c := range r.order {
		if !c.bare && !strings.HasPrefix(c.name, holdlockName) && of(c.name) && median(all[c.name], perSecond) > median(all[best], perSecond) {
			best = c.name
		}
	}
	if best == "" {
		return "no peer measured"
	}
	if best != redsyncName {
		what += " (" + best + ")"
	}
	return fmt.Sprintf("%.2f × %s", medianRatio(all[our], all[best], perSecond), what)
}

func (r *results) lineLines(line func(string, ...any), n int) {
	p50 := func(x lineResult) float64 { return float64(x.p50) }
	all := r.lines[n]
	for _, c := range r.named() {
		got := all[c]
		if len(got) == 0 {
			continue
		}
		of := func(f func(lineResult) float64) float64 { return median(got, f) }
		floors := fmt.Sprintf("%.1f × LPUSH to BLPOP", medianRatio(got, all[handOver().name], p50))
		if c == holdlockName {
			floors = fmt.Sprintf("**%s, %.1f × its own scripts bare**", floors, medianRatio(got, all[publishedOwn().name], p50))
		}
		line("| %d waiters in %d processes, one key | %s | hand-over p50 %s, p99 %s | %s | "+
			"%.0f turns/s, %.0f%% to the same waiter, %.1f requests a turn, wait p99 %.1f × the mean (%s), turns of a waiter %.0f to %.0f, overlaps %.0f |",
			n, processes, c, short(of(p50)), short(of(func(x lineResult) float64 { return float64(x.p99) })),
			floors,
			of(func(x lineResult) float64 { return x.perSecond }), 100*of(func(x lineResult) float64 { return x.self }),
			of(func(x lineResult) float64 { return x.requests }),
			of(func(x lineResult) float64 { return float64(x.waitP99) / float64(max(x.wait, 1)) }),
			short(of(func(x lineResult) float64 { return float64(x.wait) })),
			of(func(x lineResult) float64 { return float64(x.fewest) }), of(func(x lineResult) float64 { return float64(x.most) }),
			of(func(x lineResult) float64 { return float64(x.overlaps) }))
	}
}

// short writes nanoseconds for people.
func short(ns float64) string {
	d := time.Duration(ns)
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
	default:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
}
