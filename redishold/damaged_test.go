//go:build unix

package redishold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// What no holdlock has written stands where a slot should be. It is left as it is, and never granted, held or gone.
func TestDamagedSlots(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	const digit16 = "0000000000000000"
	mine := driver.Ref{Key: "k", Nonce: strings.Repeat("a", 32)}
	good := "1H-" + digit16 + digit16 + digit16 + mine.Nonce + "n\n{}\n\n\n"
	ahead := "1H-9" + digit16[1:] + digit16 + digit16 + mine.Nonce + "n\n{}\n\n\n"
	for _, slot := range []string{
		"1", "1H", "1H" + digit16, good[:83], good[:84], good[:85], strings.Repeat("\n", 100), "1\x00\xff" + good[4:],
		strings.Replace(good, digit16, "not a number at ", 1), "1" + strings.Repeat("9", 200), "2", "0" + good[1:], "x" + good[1:],
		strings.Replace(ahead, "1H-9", "1H-X", 1),
	} {
		t.Run(fmt.Sprintf("%.20q", slot), func(t *testing.T) {
			r.Do(t, "SET", d.slotKey("k"), slot, "PX", "3600000")
			_, acquired := d.Acquire(t.Context(), request("k", time.Minute))
			_, renewed := d.Renew(t.Context(), &driver.RenewRequest{Ref: mine, TTL: time.Minute})
			released := d.Release(t.Context(), &driver.ReleaseRequest{Ref: mine})
			broken := d.Break(t.Context(), &driver.BreakRequest{Ref: mine, By: "test", Now: true})
			var held *driver.HeldError
			if acquired == nil || errors.As(acquired, &held) || errors.Is(acquired, driver.ErrGone) {
				t.Errorf("Acquire: %v, want a failure of the store", acquired)
			}
			if newer := slot == "2"; errors.Is(acquired, driver.ErrNewer) != newer || driver.Damaged(acquired) == newer {
				t.Errorf("Acquire: of a newer version %v, damaged %v: %v", errors.Is(acquired, driver.ErrNewer), driver.Damaged(acquired), acquired)
			}
			for verb, err := range map[string]error{"Renew": renewed, "Release": released, "Break": broken} {
				if err == nil || errors.As(err, &held) {
					t.Errorf("%s: %v, want a failure of the store", verb, err)
				}
			}
			if _, ok, err := d.Inspect(t.Context(), "k"); ok && err == nil {
				t.Error("Inspect shows it as held")
			}
			if got := r.Do(t, "GET", d.slotKey("k")); got != slot {
				t.Errorf("it was changed to %q", got)
			}
		})
	}
	// The control: a slot that is not damaged is granted when its time is over, and shown as held before.
	r.Do(t, "SET", d.slotKey("k"), ahead, "PX", "3600000")
	if term, ok := present(t, d, "k"); !ok || term.Nonce != mine.Nonce {
		t.Errorf("a good slot: %+v, %v", term, ok)
	}
	r.Do(t, "SET", d.slotKey("k"), good, "PX", "3600000")
	grant(t, d, request("k", time.Minute))
}

// A key of another kind is in the place of the slot, or of the line.
func TestKeysOfAnotherKind(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	r.Do(t, "HSET", d.slotKey("slot"), "f", "v")
	ref := request("slot", time.Minute)
	_, acquired := d.Acquire(t.Context(), ref)
	_, renewed := d.Renew(t.Context(), &driver.RenewRequest{Ref: ref.Ref, TTL: time.Minute})
	released := d.Release(t.Context(), &driver.ReleaseRequest{Ref: ref.Ref, Undo: true})
	broken := d.Break(t.Context(), &driver.BreakRequest{Ref: ref.Ref, Now: true})
	_, _, looked := d.Inspect(t.Context(), "slot")
	for verb, err := range map[string]error{
		"Acquire": acquired, "Renew": renewed, "Release": released, "Break": broken, "Inspect": looked,
	} {
		var held *driver.HeldError
		if !errors.Is(err, driver.ErrDamaged) || !errors.Is(err, driver.ErrNotApplied) || errors.As(err, &held) || errors.Is(err, driver.ErrGone) ||
			!strings.Contains(err.Error(), d.slotKey("slot")) || !strings.Contains(err.Error(), "another namespace") {
			t.Errorf("%s of a hash: %v, want ErrDamaged with the name of the key and what to do", verb, err)
		}
	}
	// Nobody can stand in line, and the lock works all the same.
	r.Do(t, "SET", d.lineKey("line"), "a string", "PX", "3600000")
	lease := mustAcquire(t, newLock(t, open(t, r.Addr, nil), "line", time.Minute))
	if _, err := d.Enqueue(t.Context(), request("line", time.Minute)); !errors.Is(err, driver.ErrDamaged) ||
		!strings.Contains(err.Error(), d.lineKey("line")) || !strings.Contains(err.Error(), "another namespace") {
		t.Errorf("Enqueue: %v, want ErrDamaged with the name of the line and what to do", err)
	}
	standing := d.Attend(t.Context(), []*driver.AcquireRequest{request("line", time.Minute)})
	if s := standing[0]; s.Err != nil || s.Granted || s.Place != 0 {
		t.Errorf("Attend without a line: %+v, want a place that is unknown, so that its waiter asks anew", s)
	}
	if left, err := strconv.Atoi(r.Do(t, "PTTL", d.lineKey("line"))); err != nil || left <= 60_000 {
		t.Errorf("somebody else's key was given another expiry: %d ms, %v", left, err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("Release without a line: %v", err)
	}
	// Without a list of watchers nobody can be woken, and waiters poll.
	watched := &Options{PlainKeys: true}
	d = openDriver(t, r.Addr, watched)
	r.Do(t, "SET", d.watchersKey("line"), "a string", "PX", "3600000")
	l := newLock(t, open(t, r.Addr, watched), "line", time.Minute)
	lease = mustAcquire(t, l)
	if _, _, err := d.Watch(t.Context(), "line"); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("Watch: %v, want the server's WRONGTYPE", err)
	}
	got := make(chan error, 1)
	go func() {
		next, err := l.Acquire(t.Context()) // polls
		if err == nil {
			err = next.Release(t.Context())
		}
		got <- err
	}()
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
	if err := <-got; err != nil {
		t.Errorf("a waiter without a line: %v", err)
	}
}

// What stands at one key and cannot be worked on takes no other lock with it: renewals and heartbeats are for many at a time.
func TestDamagedKeysAmongOthers(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	fine, bad, short := request("fine", time.Minute), request("bad", time.Minute), request("short", time.Minute)
	after, place := request("after", time.Minute), request("fine", time.Minute)
	for _, req := range []*driver.AcquireRequest{fine, after} {
		grant(t, d, req)
	}
	var held *driver.HeldError
	if _, err := d.Enqueue(t.Context(), place); !errors.As(err, &held) || held.Place != 1 {
		t.Fatalf("Enqueue: %v, want the first place", err)
	}
	r.Do(t, "RPUSH", d.slotKey("bad"), "a list")
	r.Do(t, "SET", d.slotKey("short"), "1H")
	check := func(what string, err error, key string) {
		t.Helper()
		switch key {
		case "bad", "short":
			if !errors.Is(err, driver.ErrDamaged) || !strings.Contains(err.Error(), d.slotKey(key)) {
				t.Errorf("%s %s: %v, want ErrDamaged with the name of the key", what, key, err)
			}
		default:
			if err != nil {
				t.Errorf("%s %s: %v", what, key, err)
			}
		}
	}
	var renewals []*driver.RenewRequest
	for _, req := range []*driver.AcquireRequest{fine, bad, short, after} {
		ref := req.Ref
		if req == short {
			ref.Nonce = "" // as the slot has none, it is taken for this one's
		}
		renewals = append(renewals, &driver.RenewRequest{Ref: ref, TTL: time.Minute})
	}
	for i, res := range d.RenewBatch(t.Context(), renewals) {
		check("Renew", res.Err, renewals[i].Ref.Key)
	}
	places := []*driver.AcquireRequest{bad, short, place}
	for i, s := range d.Attend(t.Context(), places) {
		check("Attend", s.Err, places[i].Ref.Key)
		if i == 2 && s.Place != 1 {
			t.Errorf("Attend: %+v, want the first place", s)
		}
	}
	// What the server itself refuses is the answer to all, as client libraries look for it.
	r.Do(t, "REPLICAOF", "127.0.0.1", "1")
	for _, res := range d.RenewBatch(t.Context(), renewals) {
		var reply redis.Error
		if !errors.As(res.Err, &reply) || !strings.HasPrefix(reply.Error(), "READONLY") || errors.Is(res.Err, driver.ErrDamaged) {
			t.Errorf("Renew on a replica: %v, want READONLY", res.Err)
		}
	}
}

// What cannot be read at one key is listed with its name, and hides nothing.
func TestDamagedKeysAreListed(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	grant(t, d, request("a", time.Minute))
	grant(t, d, request("z", time.Minute))
	r.Do(t, "SET", d.slotKey("b"), "garbage")
	r.Do(t, "RPUSH", d.slotKey("c"), "a list")
	grant(t, d, claiming("job", time.Minute, driver.Rerun))
	r.Do(t, "SET", d.slotKey("k")+undoneEnd, "garbage")
	r.Do(t, "RPUSH", d.slotKey("l")+undoneEnd, "a list")
	// The slot of one that would be running, and of one whose record says it all.
	for _, key := range []string{"m", "n", "o"} {
		ref := claiming(key, time.Minute, driver.Rerun)
		grant(t, d, ref)
		if key == "o" {
			finished(t, d, ref.Ref, driver.Record{State: driver.JobSuspended, Why: driver.ByError})
		}
		r.Do(t, "DEL", d.slotKey(key))
		if key == "n" {
			r.Do(t, "SET", d.slotKey(key), "1")
			continue
		}
		r.Do(t, "RPUSH", d.slotKey(key), "a list")
	}

	terms, err := d.List(t.Context(), "", "", 10)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, term := range terms {
		if damaged := strings.Contains("b c m n o", term.Key); damaged != errors.Is(term.Damaged, driver.ErrDamaged) {
			t.Errorf("%s: %v", term.Key, term.Damaged)
		} else if damaged && !strings.Contains(term.Damaged.Error(), d.slotKey(term.Key)) {
			t.Errorf("the message does not name the key: %v", term.Damaged)
		}
		got = append(got, term.Key)
	}
	if want := "a b c job m n o z"; strings.Join(got, " ") != want {
		t.Errorf("listed are %v, want %s", got, want)
	}
	jobs, err := d.Jobs(t.Context(), &driver.JobQuery{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	got = nil
	for _, j := range jobs {
		damaged := j.Key != "job" && j.Key != "o"
		if damaged != errors.Is(j.Damaged, driver.ErrBadRecord) || damaged && !strings.Contains(j.Damaged.Error(), d.slotKey(j.Key)) {
			t.Errorf("%s: %v", j.Key, j.Damaged)
		}
		if j.Key == "o" && j.State != driver.JobSuspended {
			t.Errorf("a job that is suspended is listed as %+v", j)
		}
		got = append(got, j.Key)
	}
	if want := "job k l m n o"; strings.Join(got, " ") != want {
		t.Errorf("listed jobs are %v, want %s", got, want)
	}
	for _, key := range []string{"m", "n"} {
		if _, _, err := d.Job(t.Context(), key); !errors.Is(err, driver.ErrBadRecord) || !strings.Contains(err.Error(), d.slotKey(key)) {
			t.Errorf("Job %s: %v, want ErrBadRecord with the name of the slot", key, err)
		}
	}
	for _, key := range []string{"b", "c"} {
		if _, _, err := d.Inspect(t.Context(), key); !errors.Is(err, driver.ErrDamaged) {
			t.Errorf("Inspect %s: %v, want ErrDamaged", key, err)
		}
		for _, ask := range []func(context.Context, *driver.AcquireRequest) (driver.Grant, error){d.Acquire, d.Enqueue} {
			if _, err := ask(t.Context(), request(key, time.Minute)); !errors.Is(err, driver.ErrDamaged) || !errors.Is(err, driver.ErrNotApplied) {
				t.Errorf("Acquire %s: %v, want ErrDamaged", key, err)
			}
		}
	}
}

// Somebody has taken the expiry from a slot. The next step gives it one again, except for a release, which leaves that to the
// next term, and the term ends when it was to end.
func TestPersistedSlots(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	steps := map[string]func(ref driver.Ref) error{
		"renew": func(ref driver.Ref) error {
			_, err := d.Renew(t.Context(), &driver.RenewRequest{Ref: ref, TTL: time.Minute})
			return err
		},
		"release and acquire": func(ref driver.Ref) error {
			if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: ref}); err != nil {
				return err
			}
			_, err := d.Acquire(t.Context(), request(ref.Key, time.Minute))
			return err
		},
		"break": func(ref driver.Ref) error {
			return d.Break(t.Context(), &driver.BreakRequest{Ref: ref, By: "test"})
		},
		"acquire again": func(ref driver.Ref) error {
			_, err := d.Acquire(t.Context(), &driver.AcquireRequest{Ref: ref, TTL: time.Hour})
			return err
		},
	}
	for name, step := range steps {
		req := request(name, time.Minute)
		grant(t, d, req)
		r.Do(t, "PERSIST", d.slotKey(name))
		if err := step(req.Ref); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := r.Do(t, "PTTL", d.slotKey(name)); got == "-1" {
			t.Errorf("after %s the slot has no expiry", name)
		}
	}
	req := request("lapses", 200*time.Millisecond)
	grant(t, d, req)
	r.Do(t, "PERSIST", d.slotKey("lapses"))
	testenv.Eventually(t, "the term ends", func() bool {
		g, err := d.Acquire(t.Context(), request("lapses", time.Minute))
		return err == nil && g.Previous == driver.Lapsed
	})
	// A plain key without expiry is somebody's lock for ever. It is taken, and an operator can free it.
	plain := openDriver(t, r.Addr, &Options{PlainKeys: true})
	r.Do(t, "SET", "forever", "x")
	var held *driver.HeldError
	if _, err := plain.Acquire(t.Context(), request("forever", time.Minute)); !errors.As(err, &held) || held.Term.Remaining < 24*time.Hour {
		t.Fatalf("a plain key without expiry: %v, want held for long", err)
	}
	if err := plain.Break(t.Context(), &driver.BreakRequest{Ref: driver.Ref{Key: "forever", Nonce: held.Term.Nonce}, Now: true}); err != nil {
		t.Errorf("Break: %v", err)
	}
	grant(t, plain, request("forever", time.Minute))
	if got := r.Do(t, "PTTL", "forever"); got == "-1" {
		t.Error("our plain key has no expiry")
	}
}

// What a holder says about itself may be of any size and of any bytes.
func TestHugeHolders(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	for i, purpose := range []string{
		strings.Repeat("x", 1<<20), strings.Repeat("\n", 10_000), strings.Repeat("\x00\t\r\n\"\\{}", 1000), strings.Repeat("\xff", 1000),
	} {
		req := request(fmt.Sprint("k", i), time.Minute)
		req.Holder = driver.Holder{Host: "h\n", PID: 7, Purpose: purpose}
		grant(t, d, req)
		want := strings.ToValidUTF8(purpose, "")
		if term, ok := present(t, d, req.Ref.Key); !ok || want != "" && term.Holder.Purpose != purpose {
			t.Errorf("holder %d has changed (%d bytes to %d)", i, len(purpose), len(term.Holder.Purpose))
		}
		if err := d.Break(t.Context(), &driver.BreakRequest{Ref: req.Ref, By: purpose, Now: true}); err != nil {
			t.Errorf("Break: %v", err)
		}
		g := grant(t, d, request(req.Ref.Key, time.Minute))
		if g.Previous != driver.Broken || g.Prior == nil || g.Prior.Holder.PID != 7 || want != "" && g.Prior.Broken != purpose {
			t.Errorf("holder %d: the successor is told %v", i, g.Previous)
		}
	}
}

// A wrong login or database is a failure of the store that certainly changed nothing, and is told without the password.
func TestWrongLogins(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t, "--requirepass", "hunter2")
	for want, o := range map[string]redis.Options{
		"NOAUTH":    {},
		"WRONGPASS": {Password: "sesame1"},
		"DB index":  {Password: "hunter2", DB: 99},
		"refused":   {Addr: "127.0.0.1:1"},
		"":          {Password: "hunter2"}, // the control
	} {
		if o.Addr == "" {
			o.Addr = r.Addr
		}
		o.MaxRetries, o.ContextTimeoutEnabled, o.MaintNotificationsConfig = -1, true, noMaintenance
		rdb := redis.NewClient(&o)
		l := newLock(t, openOn(t, rdb, nil), "k", time.Minute)
		_, err := l.TryAcquire(t.Context())
		if want == "" {
			if err != nil {
				t.Errorf("with the right login: %v", err)
			}
			continue
		}
		if !errors.Is(err, holdlock.ErrUnreachable) || errors.Is(err, holdlock.ErrHeld) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "sesame1") {
			t.Errorf("want %s: %v", want, err)
		}
	}
}

// A key of another kind is in the place of a day's records: it is named, it hides no other day, and it is left alone.
func TestUsageKeysOfAnotherKind(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	today := driver.DayOf(time.Now())
	write := func(day driver.Day) error {
		return d.UpdateRecords(t.Context(), day, []string{"a"}, func(string, []byte) []byte { return []byte("x") })
	}
	for day := today - 4; day <= today; day++ {
		if err := write(day); err != nil {
			t.Fatal(err)
		}
	}
	foreign := map[driver.Day][]string{today - 3: {"SET", "v"}, today - 1: {"RPUSH", "v"}}
	for day, args := range foreign {
		r.Do(t, "DEL", d.usageKey(day))
		r.Do(t, args[0], d.usageKey(day), args[1])
	}
	var seen []driver.Day
	err := d.ReadRecords(t.Context(), today-4, today, func(day driver.Day, _ string, _ []byte) error {
		seen = append(seen, day)
		return nil
	})
	if !slices.Equal(seen, []driver.Day{today - 4, today - 2, today}) {
		t.Errorf("read the records of %v, want those of the other days", seen)
	}
	for day := range foreign {
		for what, err := range map[string]error{"reading": err, "writing": write(day)} {
			if !errors.Is(err, driver.ErrDamaged) || !strings.Contains(err.Error(), d.usageKey(day)) || !strings.Contains(err.Error(), "RENAME") {
				t.Errorf("%s: %v, want ErrDamaged, with the key and what to do", what, err)
			}
		}
		if left := r.Do(t, "TTL", d.usageKey(day)); left != "-1" {
			t.Errorf("somebody else's key was given an expiry: %s", left)
		}
	}
	if err := write(today); err != nil {
		t.Errorf("another day: %v", err)
	}
}
