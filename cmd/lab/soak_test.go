//go:build unix && soak

package lab

import (
	"testing"
	"time"
)

// The full matrix comes out as it must. It takes minutes.
func TestFullSoak(t *testing.T) {
	r := run(t, &Options{Full: true, Seed: 1, Progress: func(e *Experiment, over, all int) {
		t.Logf("%d of %d: %s/%s: %s %s (%v)", over, all, e.Mechanism.ID, e.Fault.ID, e.Counts, e.NotRun, e.Took.Round(time.Millisecond))
	}})
	for _, e := range r.Experiments {
		if e.Surprise != "" {
			t.Errorf("%s/%s: %s", e.Mechanism.ID, e.Fault.ID, e.Surprise)
		}
	}
	t.Logf("the full matrix took %v", r.Took.Round(time.Second))
}
