package review

import (
	"fmt"
	"time"

	"github.com/holdlock/holdlock"
)

// times writes a number with what is counted.
func times(n uint64, singular, plural string) string {
	return fmt.Sprintf("%d %s", n, its(n, singular, plural))
}

func its(n uint64, singular, plural string) string {
	if n == 1 {
		return singular
	}
	return plural
}

func date(t time.Time) string {
	if t.IsZero() {
		return "the beginning"
	}
	return t.UTC().Format("2006-01-02")
}

// span writes a duration as people say it: two digits, one unit.
func span(d time.Duration) string {
	if d == holdlock.Forever {
		return "for ever"
	}
	for _, u := range []struct {
		of   time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if d >= 2*u.of || d == u.of || u.of == time.Millisecond && d >= u.of {
			return fmt.Sprintf("%.3g %s", float64(d)/float64(u.of), u.name)
		}
	}
	return fmt.Sprintf("%.3g ms", float64(d)/float64(time.Millisecond))
}
