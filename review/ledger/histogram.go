package ledger

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Histogram counts durations, to one significant digit, from 1 µs to a year. The zero value is empty and ready for use. It is
// not safe for concurrent use.
type Histogram struct {
	h   *hdrhistogram.Histogram // nil while empty
	max time.Duration           // exact
}

const (
	least  = 1
	most   = int64(366 * 24 * time.Hour / time.Microsecond)
	digits = 1
)

// Record adds a duration. Only the first one allocates.
func (h *Histogram) Record(d time.Duration) {
	if h.h == nil {
		h.h = hdrhistogram.New(least, most, digits)
	}
	h.max = max(h.max, d)
	_ = h.h.RecordValue(min(max(int64(d/time.Microsecond), least), most)) // cannot fail in this range
}

// Merge adds what another one has.
func (h *Histogram) Merge(o *Histogram) {
	if o.h == nil {
		return
	}
	if h.h == nil {
		h.h = hdrhistogram.New(least, most, digits)
	}
	h.h.Merge(o.h)
	h.max = max(h.max, o.max)
}

// Count returns the number of durations.
func (h *Histogram) Count() int64 {
	if h.h == nil {
		return 0
	}
	return h.h.TotalCount()
}

// Max returns the longest, exactly.
func (h *Histogram) Max() time.Duration { return h.max }

// Median returns the duration that half of them do not exceed; 0 if there are none.
func (h *Histogram) Median() time.Duration { return h.at(50) }

// Quantile returns the duration that the share q of them does not exceed, and false if too few lie beyond it to say so:
// n is under 5/(1−q).
func (h *Histogram) Quantile(q float64) (time.Duration, bool) {
	if float64(h.Count())*(1-q) < 5 {
		return 0, false
	}
	return h.at(100 * q), true
}

func (h *Histogram) at(percentile float64) time.Duration {
	if h.h == nil {
		return 0
	}
	return min(time.Duration(h.h.ValueAtPercentile(percentile))*time.Microsecond, h.max)
}

// reset empties it and keeps its memory.
func (h *Histogram) reset() {
	if h.h != nil {
		h.h.Reset()
	}
	h.max = 0
}
