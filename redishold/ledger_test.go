package redishold

import (
	"math"
	"testing"

	"github.com/holdlock/holdlock/driver"
)

// Only days are read of which there can be records, however much is asked for, and none of these is left out.
func TestRecordDays(t *testing.T) {
	t.Parallel()
	const today, oldest = 20000, 20000 - 220
	for _, tt := range []struct {
		first, last driver.Day
		want        int
		from, to    driver.Day
	}{
		{today - 3, today, 4, today - 3, today},
		{1, math.MaxInt32, today + oddDays - oldest + 1, oldest, today + oddDays},
		{math.MinInt32, -1, today + oddDays - oldest + 1, -today - oddDays, -oldest},
		{-today, -today + 9, 10, -today, -today + 9},
		{0, 0, 1, 0, 0},
		{math.MinInt32, math.MaxInt32, 2*(today+oddDays-oldest+1) + 1, -today - oddDays, today + oddDays},
		{today + 100, today + 200, 0, 0, 0},
		{5, 4, 0, 0, 0},
	} {
		got := recordDays(tt.first, tt.last, today)
		if len(got) != tt.want || len(got) > 0 && (got[0] != tt.from || got[len(got)-1] != tt.to) {
			t.Errorf("%d to %d: %d days, %v; want %d, from %d to %d", tt.first, tt.last, len(got), got[:min(len(got), 3)], tt.want, tt.from, tt.to)
		}
	}
}
