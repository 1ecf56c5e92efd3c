//go:build unix

package redishold

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

var update = flag.Bool("update", false, "write the golden files anew")

const golden = "testdata/wire1.golden"

// TestWireLayout holds the layout fast: programs of different releases share a server. If it fails, the change needs a new
// version of the format, and code that refuses or understands the old one.
func TestWireLayout(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, &Options{Namespace: "golden"})
	var got strings.Builder
	req := request("a}b{", time.Minute)
	show := func(what string) {
		t.Helper()
		var keys []string
		for line := range strings.Lines(r.Do(t, "KEYS", "*")) {
			if strings.HasSuffix(strings.TrimSpace(line), "}") {
				keys = append(keys, strings.TrimSpace(line))
			}
		}
		text := strings.ReplaceAll(normal(r.Do(t, "GET", keys[0])), req.Ref.Nonce, "<nonce>") // of the term before
		fmt.Fprintf(&got, "%s: %s = %q\n", what, keys[0], text)
	}
	req.Holder = driver.Holder{Host: "h", PID: 7, Label: "l\n", Purpose: "p"}
	grant(t, d, req)
	show("held")
	if err := d.Break(t.Context(), &driver.BreakRequest{Ref: req.Ref, By: "ops\t1", Now: true}); err != nil {
		t.Fatal(err)
	}
	show("broken")
	next := request("a}b{", time.Minute)
	grant(t, d, next)
	show("after a broken one")
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: next.Ref, KeepFor: time.Second, Undo: true}); err != nil {
		t.Fatal(err)
	}
	show("cooling, its acquire undone")
	r.Do(t, "FLUSHALL")
	_ = d.Release(t.Context(), &driver.ReleaseRequest{Ref: next.Ref, Undo: true})
	show("undone before it came")
	r.Do(t, "FLUSHALL")
	if _, _, err := d.Watch(t.Context(), "a}b{"); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&got, "watchers: %q = %q\n", d.watchersKey("a}b{"), normal(r.Do(t, "LRANGE", d.watchersKey("a}b{"), "0", "-1")))
	show("watched")
	r.Do(t, "FLUSHALL")
	grant(t, d, req)
	if _, err := d.Enqueue(t.Context(), next); err == nil {
		t.Fatal("it has no place")
	}
	show("waited for")
	place := strings.NewReplacer(next.Ref.Nonce, "<nonce>", d.hub.id, "<process>").Replace(r.Do(t, "LRANGE", d.lineKey("a}b{"), "0", "-1"))
	fmt.Fprintf(&got, "line: %q = %q\n", d.lineKey("a}b{"), place)
	if r.Do(t, "EXISTS", "golden:p:"+d.hub.id) != "1" {
		t.Error("the process is not said to be alive")
	}
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
		t.Fatal(err)
	}
	show("handed over")
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: next.Ref, Undo: true, Answered: true}); err != nil {
		t.Fatal(err)
	}
	show("its grant undone")
	r.Do(t, "FLUSHALL")
	grant(t, d, req)
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref, Undo: true, Answered: true}); err != nil {
		t.Fatal(err)
	}
	show("the first one undone")
	r.Do(t, "FLUSHALL")
	showRecords(t, r, d, &got)

	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("the layout has changed:\n%s\nwant\n%s", got.String(), want)
	}
}

// showRecords adds the records of jobs of every kind.
func showRecords(t *testing.T, r *testenv.Redis, d *Driver, got *strings.Builder) {
	t.Helper()
	const key = "a}b{"
	show := func(what string) {
		t.Helper()
		at := recordOf(t, r, d, key)
		s := r.Do(t, "GET", at)
		number := func(from int) string {
			if strings.Trim(s[from:from+16], "0") == "" {
				return s[from : from+16]
			}
			return "<number>"
		}
		nonce := "<nonce>"
		if strings.Trim(s[54:86], "0") == "" {
			nonce = s[54:86]
		}
		fmt.Fprintf(got, "%s: %s = %q\n", what, at, s[:6]+number(6)+number(22)+number(38)+nonce+s[86:])
	}
	claim := func(hold driver.Policy) driver.Ref {
		t.Helper()
		req := claiming(key, time.Minute, hold)
		req.Once.Input, req.Holder = "in\nput", driver.Holder{Host: "h", PID: 7}
		grant(t, d, req)
		return req.Ref
	}
	record := func(ref driver.Ref, rec driver.Record) {
		t.Helper()
		rec.Keep = time.Hour
		if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: ref, Record: &rec}); err != nil {
			t.Fatal(err)
		}
	}
	ref := claim(driver.Rerun)
	show("a running job")
	record(ref, driver.Record{State: driver.JobOpen, Error: "no\nluck"})
	show("a job that failed")
	ref = claim(driver.Hold)
	show("a job that runs after it failed, and is held if it lapses")
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: ref}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Acquire(t.Context(), claiming(key, time.Minute, driver.Hold)); !errors.Is(err, driver.ErrSuspended) {
		t.Fatal(err)
	}
	show("suspended by a lapse")
	job, _, err := d.Job(t.Context(), key)
	if err == nil {
		err = d.Settle(t.Context(), &driver.SettleRequest{Key: key, Token: job.Token, By: "ops: why", Keep: time.Hour})
	}
	if err != nil {
		t.Fatal(err)
	}
	show("settled")
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: claim(driver.Rerun)}); err != nil {
		t.Fatal(err)
	}
	record(claim(driver.Rerun), driver.Record{State: driver.JobSuspended, Why: driver.ByError})
	show("suspended by an error, after a lapse")
	r.Do(t, "FLUSHALL")
	record(claim(driver.Rerun), driver.Record{State: driver.JobDone, Result: []byte("re\x00sult")})
	show("done")
	r.Do(t, "FLUSHALL")
	record(claim(driver.Rerun), driver.Record{State: driver.JobDone, NoResult: true})
	show("done, its result too large")
}

// normal replaces what differs from run to run.
func normal(s string) string {
	// The header first, by position: a nonce can look like a time, and the id of a call like both.
	if len(s) > headerLen {
		number := func(from int) string {
			if strings.Trim(s[from:from+16], "0") == "" {
				return s[from : from+16]
			}
			return "<number>"
		}
		head := s[:3] + number(3) + number(19) + number(35)
		if s[1] == 'N' {
			head += s[51:84]
		} else {
			head += "<nonce>" + s[83:84]
		}
		s = head + s[84:]
	}
	s = regexp.MustCompile(`[0-9a-f]{32}[0-9]{16}`).ReplaceAllString(s, "<undone>")
	s = regexp.MustCompile(`[0-9]{32}`).ReplaceAllString(s, "<number><number>")
	s = regexp.MustCompile(`\n[0-9]{16}\n`).ReplaceAllString(s, "\n<number>\n")
	s = regexp.MustCompile(`^[0-9a-f]{16}1$`).ReplaceAllString(s, "<process>1")
	return s
}

// What another version has written is not guessed at, and not touched.
func TestAnotherVersionIsRefused(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	for _, plain := range []bool{false, true} {
		d := openDriver(t, r.Addr, &Options{PlainKeys: plain})
		const newer = "2 something that is not known yet"
		slot := d.keys("k")[0]
		r.Do(t, "SET", slot, newer, "PX", "60000")
		req := request("k", time.Minute)
		_, acquired := d.Acquire(t.Context(), req)
		_, renewed := d.Renew(t.Context(), &driver.RenewRequest{Ref: req.Ref, TTL: time.Minute})
		released := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref, Undo: true})
		broken := d.Break(t.Context(), &driver.BreakRequest{Ref: req.Ref, By: "x", Now: true})
		_, _, looked := d.Inspect(t.Context(), "k")
		all := map[string]error{"Acquire": acquired, "Renew": renewed, "Release": released, "Break": broken, "Inspect": looked}
		if !plain {
			all["Attend"] = d.Attend(t.Context(), []*driver.AcquireRequest{req})[0].Err
		}
		for what, err := range all {
			var held *driver.HeldError
			if err == nil || errors.As(err, &held) || errors.Is(err, driver.ErrGone) || !strings.Contains(err.Error(), "newer") {
				t.Errorf("%s of what another version wrote: %v", what, err)
			}
		}
		if got := r.Do(t, "GET", slot); got != newer {
			t.Errorf("it was changed to %q", got)
		}
	}
	// A key of another kind is a failure in the server's words.
	d := openDriver(t, r.Addr, nil)
	r.Do(t, "LPUSH", d.slotKey("list"), "x")
	if _, err := d.Acquire(t.Context(), request("list", time.Minute)); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("Acquire of a list: %v", err)
	}
}

func FuzzParseSlot(f *testing.F) {
	f.Add("k", "", int64(0))
	f.Add("k", "1H-"+strings.Repeat("0", 48)+strings.Repeat("a", 32)+"n\n{}\n\n\n", int64(-1))
	f.Fuzz(func(t *testing.T, key, slot string, now int64) {
		term, ok, err := parseSlot(key, slot, now)
		if ok && err == nil && (term.Key != key || term.Remaining <= 0 && term.Remaining > -time.Hour) {
			t.Errorf("%q as of %d: %+v", slot, now, term)
		}
		_, _ = parsePrior(key, slot)
	})
}

func FuzzKeyNames(f *testing.F) {
	d, err := NewDriver(client("127.0.0.1:1"), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add("a", "a}:w")
	f.Fuzz(func(t *testing.T, a, b string) {
		if a != b && d.slotKey(a) == d.slotKey(b) {
			t.Errorf("%q and %q share a slot", a, b)
		}
		if d.slotKey(a) == d.lineKey(b) || d.slotKey(a) == d.watchersKey(b) || d.lineKey(a) == d.watchersKey(b) {
			t.Errorf("the slot of %q is the line of %q", a, b)
		}
		for _, at := range d.withRecord(a)[1:] {
			if at == d.slotKey(b) || at == d.lineKey(b) || at == d.watchersKey(b) || tag(at) != tag(d.slotKey(a)) || at == d.slotKey(b)+":p:"+d.hub.id {
				t.Errorf("the record of %q is something of %q, or on another node", a, b)
			}
		}
	})
}

// tag is the part of a key that decides its slot in a Cluster, or "" if the whole does.
func tag(key string) string {
	_, rest, ok := strings.Cut(key, "{")
	tag, _, closed := strings.Cut(rest, "}")
	if !ok || !closed {
		return ""
	}
	return tag
}

// These bytes were written by a program of wire version 1, and will be for as long as one runs anywhere.
func TestReadsVersion1(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	const nonce = "0123456789abcdef0123456789abcdef"
	free := fmt.Sprintf("%016d", time.Now().Add(time.Hour).UnixMicro())
	r.Do(t, "SET", "holdlock:{:job/7}", "1H-"+free+"0001700000000000"+"0001699999999999"+nonce+"l"+
		"\n{\"host\":\"old\",\"pid\":3}\n\n00016999999999980001699999999997{\"host\":\"dead\"}\t\n", "PX", "86400000")
	var held *driver.HeldError
	if _, err := d.Acquire(t.Context(), request("job/7", time.Minute)); !errors.As(err, &held) {
		t.Fatalf("Acquire: %v, want held", err)
	}
	if h := held.Term; h.Token != 1_700_000_000_000 || h.Holder != (driver.Holder{Host: "old", PID: 3}) || h.Nonce != nonce ||
		h.Acquired.UnixMicro() != 1_699_999_999_999 || h.Remaining < 50*time.Minute {
		t.Errorf("the term is %+v", h)
	}
	ref := driver.Ref{Key: "job/7", Nonce: nonce}
	again := grant(t, d, &driver.AcquireRequest{Ref: ref, TTL: time.Minute})
	if again.Previous != driver.Lapsed || again.Prior == nil || again.Prior.Holder.Host != "dead" || again.Prior.Token != 1_699_999_999_998 {
		t.Errorf("its own grant again is %+v", again)
	}
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: ref}); err != nil {
		t.Errorf("Release: %v", err)
	}
}
