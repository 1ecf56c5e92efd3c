package main

import (
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdlock/holdlock"
)

// Observer is a holdlock.Observer that keeps Prometheus metrics. Copy it; it needs nothing else from this directory.
//
// The label is the lock's name and never the key: keys are job ids, and there is no end of them. Of the events, three want
// an alert: lapses and losses, because each may be a double run, and store failures, because each is a run that did not
// happen.
type Observer struct {
	grants, skips, storeFailures, lapses, losses, renewals, renewalFailures, unreleased, breaks *prometheus.CounterVec
	waited, held                                                                                *prometheus.HistogramVec
	holding                                                                                     *prometheus.GaugeVec

	mu     sync.Mutex
	leases map[lease]struct{} // that have not ended
}

type lease struct {
	name, key string
	token     holdlock.Token
}

// NewObserver registers its metrics with reg.
func NewObserver(reg prometheus.Registerer) (*Observer, error) {
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(
			prometheus.CounterOpts{Namespace: "holdlock", Name: name, Help: help}, append([]string{"lock"}, more...))
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "holdlock", Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 12), // 1 ms to 70 minutes
		}, []string{"lock"})
	}
	o := &Observer{
		grants:          counter("grants_total", "Leases that began."),
		skips:           counter("skips_total", "Attempts that found the lock held by someone else."),
		storeFailures:   counter("store_failures_total", "Attempts that failed because of the store: the job did not run."),
		lapses:          counter("lapses_total", "Terms before ours that ended without a release: possible double runs.", "ending"),
		losses:          counter("losses_total", "Leases of ours that ended before their release: possible double runs.", "reason"),
		renewals:        counter("renewals_total", "Renewals that succeeded."),
		renewalFailures: counter("renewal_failures_total", "Renewals that failed and were tried again."),
		unreleased:      counter("unreleased_total", "Releases that failed and were tried again in the background."),
		breaks:          counter("breaks_total", "Terms that this program broke."),
		waited:          histogram("wait_seconds", "From the call to the grant."),
		held:            histogram("hold_seconds", "From the grant to the release or the loss."),
		holding: prometheus.NewGaugeVec(
			prometheus.GaugeOpts{Namespace: "holdlock", Name: "holding", Help: "Leases held now."}, []string{"lock"}),
		leases: map[lease]struct{}{},
	}
	var err error
	for _, c := range []prometheus.Collector{
		o.grants, o.skips, o.storeFailures, o.lapses, o.losses, o.renewals, o.renewalFailures, o.unreleased, o.breaks,
		o.waited, o.held, o.holding,
	} {
		err = errors.Join(err, reg.Register(c))
	}
	return o, err
}

// Observe implements holdlock.Observer. It does not block.
func (o *Observer) Observe(e holdlock.Event) {
	switch e.Kind {
	case holdlock.Granted:
		o.grants.WithLabelValues(e.Name).Inc()
		o.waited.WithLabelValues(e.Name).Observe(e.Waited.Seconds())
		o.begin(e)
	case holdlock.Skipped:
		o.skips.WithLabelValues(e.Name).Inc()
	case holdlock.Failed:
		o.storeFailures.WithLabelValues(e.Name).Inc()
	case holdlock.Lapsed:
		o.lapses.WithLabelValues(e.Name, e.Ending.String()).Inc()
	case holdlock.Renewed:
		o.renewals.WithLabelValues(e.Name).Inc()
	case holdlock.RenewFailed:
		o.renewalFailures.WithLabelValues(e.Name).Inc()
	case holdlock.Lost:
		o.losses.WithLabelValues(e.Name, string(e.Reason)).Inc()
		o.end(e)
	case holdlock.Released:
		o.end(e)
	case holdlock.Unreleased:
		o.unreleased.WithLabelValues(e.Name).Inc()
		o.end(e)
	case holdlock.BrokenByUs:
		o.breaks.WithLabelValues(e.Name).Inc()
	}
}

func (o *Observer) begin(e holdlock.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leases[lease{e.Name, e.Key, e.Token}] = struct{}{}
	o.holding.WithLabelValues(e.Name).Inc()
}

// end counts the first end of a lease: one that was lost is released as well, once its work has stopped.
func (o *Observer) end(e holdlock.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := lease{e.Name, e.Key, e.Token}
	if _, ok := o.leases[l]; !ok {
		return
	}
	delete(o.leases, l)
	o.holding.WithLabelValues(e.Name).Dec()
	o.held.WithLabelValues(e.Name).Observe(e.Held.Seconds())
}
