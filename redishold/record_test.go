//go:build unix

package redishold

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// claiming is a request for a run of a job.
func claiming(key string, ttl time.Duration, onLapse driver.Policy) *driver.AcquireRequest {
	req := request(key, ttl)
	req.Once = &driver.Claim{OnLapse: onLapse, Keep: time.Hour}
	return req
}

// finished ends a run.
func finished(t *testing.T, d driver.Driver, ref driver.Ref, rec driver.Record) {
	t.Helper()
	if rec.Keep == 0 {
		rec.Keep = time.Hour
	}
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: ref, Record: &rec}); err != nil {
		t.Fatalf("Release with a Record: %v", err)
	}
}

// asked asks for a run that must be refused for want, because of the record.
func asked(t *testing.T, d driver.Driver, req *driver.AcquireRequest, want error) driver.Job {
	t.Helper()
	g, err := d.Acquire(t.Context(), req)
	var about *driver.JobError
	if !errors.As(err, &about) || !errors.Is(err, want) {
		t.Fatalf("Acquire with Once of %q: %+v, %v; want %v", req.Ref.Key, g.Job, err, want)
	}
	return about.Job
}

// recordOf is the key that has the record of a job, of which there may be one only.
func recordOf(t *testing.T, r *testenv.Redis, d *Driver, key string) string {
	t.Helper()
	var found []string
	for _, at := range d.withRecord(key)[1:] {
		if r.Do(t, "EXISTS", at) == "1" {
			found = append(found, at)
		}
	}
	if len(found) != 1 {
		t.Fatalf("the record of %q is in %q, want one key", key, found)
	}
	return found[0]
}

// Every record has an expiry: the end of its Keep, or ten years after it was last asked for, if it is to last until settled.
func TestRecordsExpire(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	left := func(key string) time.Duration {
		t.Helper()
		ms, err := strconv.ParseInt(r.Do(t, "PTTL", recordOf(t, r, d, key)), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(ms) * time.Millisecond
	}
	is := func(what, key string, want time.Duration) {
		t.Helper()
		if got := left(key); got > want+time.Second || got < want-time.Minute {
			t.Errorf("the record of %s expires in %v, want %v", what, got, want)
		}
	}
	run := func(key string, keep time.Duration, hold driver.Policy) driver.Ref {
		t.Helper()
		req := claiming(key, time.Minute, hold)
		req.Once.Keep = keep
		grant(t, d, req)
		return req.Ref
	}
	ref := run("k", 2*time.Hour, driver.Rerun)
	is("a running job", "k", 2*time.Hour)
	finished(t, d, ref, driver.Record{State: driver.JobDone, Keep: 3 * time.Hour})
	is("a done job", "k", 3*time.Hour)
	asked(t, d, claiming("k", time.Minute, driver.Rerun), driver.ErrDone)
	is("a done job that was asked for", "k", 3*time.Hour)
	run("held", time.Hour, driver.Hold)
	is("a job to be held", "held", forever)
	finished(t, d, run("suspended", time.Hour, driver.Rerun), driver.Record{State: driver.JobSuspended, Why: driver.ByError})
	is("a suspended job", "suspended", forever)
	finished(t, d, run("always", math.MaxInt64, driver.Rerun), driver.Record{State: driver.JobDone, Keep: math.MaxInt64})
	is("a job that is to be done for ever", "always", forever)
	for key, want := range map[string]error{"suspended": driver.ErrSuspended, "always": driver.ErrDone} {
		r.Do(t, "PEXPIRE", recordOf(t, r, d, key), "3600000") // years have passed
		asked(t, d, claiming(key, time.Minute, driver.Rerun), want)
		is(key+" that was asked for", key, forever)
	}
}

// A record that is damaged, of another version or another kind is an error, and never taken for none; it is left as it is.
func TestDamagedRecords(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	req := claiming("k", time.Minute, driver.Rerun)
	req.Once.Input = "input"
	grant(t, d, req)
	undoneAt, at := d.slotKey("k")+undoneEnd, d.slotKey("k")+doneEnd
	running := r.Do(t, "GET", undoneAt)
	finished(t, d, req.Ref, driver.Record{State: driver.JobDone, Result: []byte("result")})
	good := r.Do(t, "GET", at)
	changed := func(s string, i int, c byte) string { return s[:i] + string(c) + s[i+1:] }
	bad := map[string]string{
		"empty": "", "another version": "2" + good[1:], "something else": "hello", "cut": good[:len(good)-1], "longer": good + "x",
		"header alone": good[:recordHeader], "no header": good[:recordHeader-1], "half": good[:len(good)/2],
	}
	for i := 1; i < recordHeader; i++ {
		if i < 6 || i%5 == 2 {
			bad[fmt.Sprintf("sign %d", i)] = changed(good, i, 'z')
			bad[fmt.Sprintf("sign %d, NUL", i)] = changed(good, i, 0)
		}
	}
	for name, record := range bad {
		r.Do(t, "DEL", undoneAt, at)
		if len(name)%2 == 0 {
			at, undoneAt = undoneAt, at // either of them
		}
		refused := func(verb string, err error) {
			t.Helper()
			var held *driver.HeldError
			if !errors.Is(err, driver.ErrBadRecord) || !errors.Is(err, driver.ErrNotApplied) || errors.As(err, &held) ||
				errors.Is(err, driver.ErrGone) || !strings.Contains(err.Error(), `"k"`) {
				t.Errorf("%s: %s: %v, want ErrBadRecord and ErrNotApplied", name, verb, err)
			}
			if newer := name == "another version"; errors.Is(err, driver.ErrNewer) != newer || driver.Damaged(err) == newer {
				t.Errorf("%s: %s: of a newer version %v, damaged %v: %v", name, verb, errors.Is(err, driver.ErrNewer), driver.Damaged(err), err)
			}
		}
		r.Do(t, "SET", at, record, "PX", "3600000")
		_, err := d.Acquire(t.Context(), claiming("k", time.Minute, driver.Rerun))
		refused("Acquire", err)
		if term, held := present(t, d, "k"); held {
			t.Errorf("%s: a term has started: %+v", name, term)
		}
		_, _, err = d.Job(t.Context(), "k")
		refused("Job", err)
		refused("Jobs", damagedJob(t, d))
		refused("Settle", d.Settle(t.Context(), &driver.SettleRequest{Key: "k", Token: 1, Done: true, Keep: time.Hour}))
		if got := r.Do(t, "GET", at); got != record {
			t.Errorf("%s: it was changed to %q", name, got)
		}
	}
	// While it runs its record is damaged: neither the same request nor its end is taken for another thing.
	undoneAt, at = d.slotKey("k")+undoneEnd, d.slotKey("k")+doneEnd
	r.Do(t, "DEL", undoneAt, at)
	req = claiming("k", time.Minute, driver.Rerun)
	grant(t, d, req)
	for what, record := range map[string]string{"damaged": changed(running, 1, 'z'), "of another run": changed(running, 54, running[54]^1)} {
		r.Do(t, "SET", undoneAt, record, "PX", "3600000")
		if _, err := d.Acquire(t.Context(), req); !errors.Is(err, driver.ErrBadRecord) {
			t.Errorf("Acquire again, its record %s: %v, want ErrBadRecord", what, err)
		}
		err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref, Record: &driver.Record{State: driver.JobDone, Keep: time.Hour}})
		if !errors.Is(err, driver.ErrBadRecord) && !errors.Is(err, driver.ErrUnclaimed) {
			t.Errorf("Release with a Record, that of the job %s: %v", what, err)
		}
		if _, held := present(t, d, "k"); !held {
			t.Errorf("the record is %s, and the term was ended", what)
		}
	}
	// What was undone is undone, whatever the record is.
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref, Undo: true}); err != nil {
		t.Errorf("Undo: %v", err)
	}
	r.Do(t, "DEL", undoneAt)
	r.Do(t, "HSET", at, "f", "v")
	if _, err := d.Acquire(t.Context(), claiming("k", time.Minute, driver.Rerun)); !errors.Is(err, driver.ErrBadRecord) {
		t.Errorf("a hash in the place of the record: %v", err)
	}
	if err := damagedJob(t, d); !errors.Is(err, driver.ErrBadRecord) {
		t.Errorf("a list with a hash: %v", err)
	}
	// The control: one that is not damaged is read.
	r.Do(t, "DEL", at)
	r.Do(t, "SET", at, good, "PX", "3600000")
	if j := asked(t, d, claiming("k", time.Minute, driver.Rerun), driver.ErrDone); string(j.Result) != "result" || j.Input != "input" {
		t.Errorf("a good record is %+v", j)
	}
}

// damagedJob is what a list says of the one record that there is.
func damagedJob(t *testing.T, d *Driver) error {
	t.Helper()
	jobs, err := d.Jobs(t.Context(), &driver.JobQuery{Limit: 10})
	if err != nil || len(jobs) != 1 {
		t.Fatalf("listed are %+v, %v", jobs, err)
	}
	return fmt.Errorf("%q: %w", jobs[0].Key, jobs[0].Damaged)
}

// These bytes were written by a program of record layout 1, and will be for as long as one runs anywhere.
func TestReadsRecordLayout1(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	const nonce = "0123456789abcdef0123456789abcdef"
	r.Do(t, "SET", "holdlock:{:mail/7}:j", "1Se-l-"+"0000000000000000"+"0001700000000000"+"0001699999999999"+nonce+"00000003"+"00000002"+
		"0002"+"0003"+"0004"+"00000014"+"00000001"+"in"+"err"+"whom"+`{"host":"old"}`+"x", "PX", "86400000")
	want := driver.Job{
		Key: "mail/7", State: driver.JobSuspended, Why: driver.ByError, Input: "in", Runs: 3, Lapses: 2, Before: driver.JobLapsed,
		Token: 1_700_000_000_000, Holder: driver.Holder{Host: "old"}, Changed: time.UnixMicro(1_699_999_999_999), Result: []byte("x"),
		Error: "err", Settled: "whom",
	}
	if got := asked(t, d, claiming("mail/7", time.Minute, driver.Rerun), driver.ErrSuspended); fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("it is read as %+v, want %+v", got, want)
	}
}

func FuzzParseRecord(f *testing.F) {
	d, err := NewDriver(client("127.0.0.1:1"), nil)
	if err != nil {
		f.Fatal(err)
	}
	head := "1D----" + strings.Repeat("0", 48) + strings.Repeat("a", 32) + strings.Repeat("0", 16)
	f.Add(head+"0000"+"0000"+"0000"+"00000002"+"00000001"+"{}x", true, true)
	f.Add(head+"9999"+"0000"+"0000"+"00000002"+"00000001"+"{}x", false, false)
	f.Fuzz(func(t *testing.T, s string, stands, whole bool) {
		j, err := d.parseRecord("k", s, stands, whole)
		if err != nil && !errors.Is(err, driver.ErrBadRecord) {
			t.Errorf("%q: %v", s, err)
		}
		if err == nil && (j.Key != "k" || j.State < driver.JobOpen || j.State > driver.JobDone || !whole && j.Result != nil) {
			t.Errorf("%q: %+v", s, j)
		}
	})
}

// A holder of any size and any bytes, and the largest texts and result, go through a record unchanged.
func TestLargeRecords(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	text := strings.Repeat("\x00\n\"\\é", 170)
	result := bytes.Repeat([]byte("\x00\xff\n1"), driver.MaxResult/4)
	req := claiming("k", time.Minute, driver.Rerun)
	req.Holder, req.Once.Input = driver.Holder{Host: "h\n", Purpose: strings.Repeat("p\n", 1<<19)}, text
	g := grant(t, d, req)
	finished(t, d, req.Ref, driver.Record{State: driver.JobDone, Result: result, Error: text})
	if err := d.Settle(t.Context(), &driver.SettleRequest{Key: "k", Token: g.Token, By: text, Done: true, Result: result, Keep: time.Hour}); err != nil {
		t.Fatal(err)
	}
	j := asked(t, d, claiming("k", time.Minute, driver.Rerun), driver.ErrDone)
	if j.Holder != req.Holder || j.Input != text || j.Error != text || j.Settled != text || !bytes.Equal(j.Result, result) {
		t.Errorf("something has changed: %d bytes of result, texts of %d, %d, %d", len(j.Result), len(j.Input), len(j.Error), len(j.Settled))
	}
	jobs, err := d.Jobs(t.Context(), &driver.JobQuery{Limit: 1})
	if err != nil || len(jobs) != 1 || jobs[0].Holder != req.Holder || jobs[0].Settled != text || jobs[0].Result != nil {
		t.Errorf("it is listed otherwise: %v", err)
	}
}
