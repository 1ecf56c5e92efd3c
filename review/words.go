package review

import (
	"fmt"
	"strconv"
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

// wholeDays writes a number of days.
func wholeDays(n float64) string { return times(uint64(n+0.5), "day", "days") }

func date(t time.Time) string {
	if t.IsZero() {
		return "the beginning"
	}
	return t.UTC().Format("2006-01-02")
}

// since writes when something happened last.
func since(t time.Time) string {
	if t.IsZero() {
		return "in this period"
	}
	return "since " + date(t)
}

// span writes a duration as people say it, in one unit.
func span(d time.Duration) string {
	if d == holdlock.Forever {
		return "for ever"
	}
	for _, u := range []struct {
		of   time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if d >= 2*u.of || d == u.of || u.of <= time.Second && d >= u.of {
			return number(float64(d)/float64(u.of)) + " " + u.name
		}
	}
	return number(float64(d)/float64(time.Millisecond)) + " ms"
}

// number writes three digits, or all that stand before the point, as people do: never 1e+03.
func number(x float64) string {
	if x >= 100 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	short, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 3, 64), 64) // it is a number
	return strconv.FormatFloat(short, 'f', -1, 64)
}

// percent writes a share as one.
func percent(x float64) string { return number(100*x) + "%" }
