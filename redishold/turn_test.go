//go:build unix

package redishold

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// What turn.lua decides by itself is what the scripts for one lock decide, whatever it finds: the answer is the same, and so
// is what it leaves behind, but for times.
func TestTurnsDecideAsTheScripts(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d, general := openDriver(t, r.Addr, nil), openDriver(t, r.Addr, nil)
	general.scripts.turn = nil
	general.hub.id = d.hub.id // so that places in line compare
	const zero, soon = "0000000000000000", "9000000000000000"
	mine, other := strings.Repeat("a", 32), strings.Repeat("b", 32)
	past, tail := "1700000000000000", "\n{}\n\n\n"
	slots := map[string]string{
		"nothing":                    "",
		"released":                   "1R-" + zero + past + past + other + "n\n\n\n\n",
		"released, and waited for":   "1R+" + zero + past + past + other + "n\n\n\n\n",
		"released by this nonce":     "1R-" + zero + past + past + mine + "n\n\n\n\n",
		"cooling":                    "1R-" + soon + past + past + other + "n\n\n\n\n",
		"cooled":                     "1R-" + past + past + past + other + "n\n\n\n\n",
		"released, with an undone":   "1R-" + zero + past + past + other + "n\n\n\n\n" + mine + soon,
		"released, token ahead":      "1R-" + zero + soon + past + other + "n\n\n\n\n",
		"tokens used up":             "1R-" + zero + "9007199254740991" + past + other + "n\n\n\n\n",
		"held by this nonce":         "1H-" + soon + past + past + mine + "n" + tail,
		"held by it, waited for":     "1H+" + soon + past + past + mine + "n" + tail,
		"held by it, with undone":    "1H-" + soon + past + past + mine + "n" + tail + other + soon,
		"held by other, undone":      "1H+" + soon + past + past + other + "n" + tail + strings.Repeat("c", 32) + soon,
		"held by other, this undone": "1H-" + soon + past + past + other + "n" + tail + mine + soon,
		"held by another":            "1H-" + soon + past + past + other + "n" + tail,
		"lapsed, of this nonce":      "1H-" + past + past + past + mine + "n" + tail,
		"lapsed, of another":         "1H-" + past + past + past + other + "n" + tail,
		"broken, of this nonce":      "1B-" + soon + past + past + mine + "n\n{}\n\"me\"\n\n",
		"no term, but an undone":     "1N+" + zero + zero + zero + strings.Repeat("0", 32) + "n\n\n\n\n" + mine + soon,
		"of a newer version":         "2R-" + zero + past + past + other + "n\n\n\n\n",
		"damaged":                    "1R-" + zero + past,
		"damaged, a word for a time": "1H-" + "not a number at " + past + past + mine + "n" + tail,
	}
	place := func(nonce, process string) string { return nonce + process + "0000000060000000{}" }
	lines := map[string][]string{ // what stands in line, with which slots that may have a line are tried
		"nobody": nil, "one": {place(strings.Repeat("c", 32), "living")}, "one dead": {place(strings.Repeat("d", 32), "dead")},
		"one dead, one living": {place(strings.Repeat("d", 32), "dead"), place(strings.Repeat("c", 32), "living")},
		"this nonce":           {place(mine, d.hub.id)},
	}
	for who, list := range lines {
		for i := range list {
			list[i] = strings.Replace(strings.Replace(list[i], "living", "1111111111111111", 1), "dead", "2222222222222222", 1)
		}
		lines[who] = list
	}
	digits := regexp.MustCompile(`[0-9]{5,}|\d+(\.\d+)?(ms|s|h|m)\b|[0-9a-f]{16}\n`)
	grant := func(g driver.Grant, err error) string {
		var held *driver.HeldError
		if errors.As(err, &held) {
			return fmt.Sprint("held, place ", held.Place, " by ", held.Term.Nonce, held.Term.Holder, held.Term.Cooling)
		}
		return fmt.Sprint(g.Token > 0, g.Previous, g.Prior != nil, err, errors.Is(err, driver.ErrNotApplied))
	}
	acquire := func(d *Driver, nonce string, floor driver.Token) (driver.Grant, error) {
		return d.Acquire(t.Context(), &driver.AcquireRequest{Ref: driver.Ref{Key: "k", Nonce: nonce}, TTL: time.Minute, Floor: floor})
	}
	tries := map[string]func(d *Driver) string{
		"acquire": func(d *Driver) string { return grant(acquire(d, mine, 0)) },
		"acquire, floor ahead": func(d *Driver) string {
			now := driver.TokenAt(time.Now())
			g, err := acquire(d, mine, now+100_000_000)
			return fmt.Sprint(grant(g, err), g.Token > now+500_000, g.Token > now+50_000_000)
		},
		"enqueue": func(d *Driver) string {
			return grant(d.Enqueue(t.Context(), &driver.AcquireRequest{Ref: driver.Ref{Key: "k", Nonce: mine}, TTL: time.Minute}))
		},
		"enqueue, first": func(d *Driver) string {
			return grant(d.Enqueue(t.Context(), &driver.AcquireRequest{Ref: driver.Ref{Key: "k", Nonce: mine}, TTL: time.Minute, First: true}))
		},
		"release": func(d *Driver) string {
			err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: driver.Ref{Key: "k", Nonce: mine}})
			return fmt.Sprint(err, errors.Is(err, driver.ErrGone), errors.Is(err, driver.ErrBroken))
		},
	}
	for name, slot := range slots {
		for verb, try := range tries {
			for who, list := range lines {
				if len(list) > 0 && !strings.Contains(slot, "+") || verb == "enqueue, first" && who == "this nonce" {
					continue
				}
				var got [2]string
				for i, d := range []*Driver{d, general} {
					r.Do(t, "FLUSHALL")
					if slot != "" {
						r.Do(t, "SET", d.slotKey("k"), slot, "PX", "60000")
					}
					if len(list) > 0 {
						r.Do(t, append([]string{"RPUSH", d.lineKey("k")}, list...)...)
						r.Do(t, "SET", "holdlock:p:1111111111111111", "", "PX", "60000")
					}
					got[i] = try(d)
					before, _, named := strings.Cut(got[i], "look at key ")
					before, _, failed := strings.Cut(before, "ERR ")
					if named || failed {
						got[i] = before + "fails"
					}
					left := []string{got[i], r.Do(t, "GET", d.slotKey("k")), r.Do(t, "LRANGE", d.lineKey("k"), "0", "-1")}
					if strings.HasPrefix(left[1], "1R") && len(left[1]) > 52 {
						left[1] = left[1][:35] + left[1][51:] // without the id of the call
					}
					got[i] = digits.ReplaceAllString(strings.Join(left, " | "), "#")
					ttl := r.Do(t, "PTTL", d.slotKey("k"))
					if long := len(ttl) > 7; left[1] != "" && left[1] != slot {
						got[i] += fmt.Sprint(" kept long: ", long)
					}
				}
				if got[0] != got[1] {
					t.Errorf("%s, in line %s, %s:\n by turn.lua    %s\n by the scripts %s", name, who, verb, got[0], got[1])
				}
			}
		}
	}
}

// Turns that travel together are one call, and each has its own answer: those that are decided at once, those that the
// general script decides, and those that fail.
func TestTurnsShareACall(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} {
		r := testenv.StartRedis(t)
		d, g := heldBack(t, r.Addr)
		near := openDriver(t, r.Addr, nil)
		if known {
			loadScripts(t, r, near)
		}
		r.Do(t, "SCRIPT", "LOAD", echo.source)
		mine, theirs := request("mine", time.Hour), request("theirs", time.Hour)
		grant(t, near, mine)
		grant(t, near, theirs)
		r.Do(t, "HSET", near.slotKey("hash"), "f", "v")
		if !known {
			r.Do(t, "SCRIPT", "FLUSH")
			r.Do(t, "SCRIPT", "LOAD", echo.source)
		}
		open := g.close()
		first := fill(t, d, g)
		type try struct {
			name string
			do   func(ctx context.Context) error
			ok   func(err error) bool
		}
		tries := []try{
			{"free", func(ctx context.Context) error { _, err := d.Acquire(ctx, request("free", time.Hour)); return err }, func(err error) bool { return err == nil }},
			{"held", func(ctx context.Context) error { _, err := d.Acquire(ctx, request("theirs", time.Hour)); return err }, isHeld},
			{"waits", func(ctx context.Context) error { _, err := d.Enqueue(ctx, request("theirs", time.Hour)); return err }, func(err error) bool {
				var held *driver.HeldError
				return errors.As(err, &held) && held.Place == 1
			}},
			{"hash", func(ctx context.Context) error { _, err := d.Acquire(ctx, request("hash", time.Hour)); return err }, func(err error) bool {
				return err != nil && strings.Contains(err.Error(), "WRONGTYPE") && errors.Is(err, driver.ErrNotApplied)
			}},
			{"released", func(ctx context.Context) error { return d.Release(ctx, &driver.ReleaseRequest{Ref: mine.Ref}) }, func(err error) bool { return err == nil }},
			{"gone", func(ctx context.Context) error {
				return d.Release(ctx, &driver.ReleaseRequest{Ref: request("free", 1).Ref})
			}, func(err error) bool {
				return errors.Is(err, driver.ErrGone)
			}},
			{"free again", func(ctx context.Context) error { _, err := d.Acquire(ctx, request("other", time.Hour)); return err }, func(err error) bool { return err == nil }},
		}
		answers := make([]chan error, len(tries))
		for i, try := range tries {
			answers[i] = make(chan error, 1)
			go func() { answers[i] <- try.do(t.Context()) }()
			queued(t, d, i+1)
		}
		before := calledScripts(t, r)
		open()
		for i, try := range tries {
			select {
			case err := <-answers[i]:
				if !try.ok(err) {
					t.Errorf("%s: %v", try.name, err)
				}
			case <-time.After(60 * time.Second):
				t.Fatalf("%s: no answer", try.name)
			}
		}
		for _, c := range first {
			get(t, "first", c)
		}
		want := maxFlights + 1 // those that went first, and one for all
		if !known {
			want++ // which had to be sent again with its text
		}
		if n := calledScripts(t, r) - before; n != want {
			t.Errorf("script known %v: %d calls, want %d", known, n, want)
		}
	}
}

// calledScripts is how many scripts the server was asked for.
func calledScripts(t *testing.T, r *testenv.Redis) (n int) {
	t.Helper()
	for line := range strings.Lines(r.Do(t, "INFO", "commandstats")) {
		var calls int
		if _, rest, ok := strings.Cut(line, "cmdstat_eval"); ok {
			_, rest, _ = strings.Cut(rest, "calls=")
			_, _ = fmt.Sscan(rest[:strings.IndexByte(rest, ',')], &calls)
			n += calls
		}
	}
	return n
}

func isHeld(err error) bool {
	var held *driver.HeldError
	return errors.As(err, &held)
}
