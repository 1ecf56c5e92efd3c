package drivertest

import (
	"bytes"
	"errors"

	"github.com/holdlock/holdlock/driver"
)

// R11: the record of a job changes in the one step in which its term starts or ends. The verbs of the cases.

// journal returns nil if the store keeps no records. What it claims must fit.
func (r *rig) journal(d driver.Driver) driver.Journal {
	j, _ := driver.As[driver.Journal](d)
	if (j != nil) != (r.traits.Records != driver.NoRecords) {
		r.Errorf("R11: the store is a Journal: %v, and Traits.Records is %q", j != nil, r.traits.Records)
	}
	return j
}

// journaled opens two drivers on a store that keeps records; ok is false if it keeps none.
func (r *rig) journaled() (a, b driver.Driver, ok bool) {
	a, b = r.open(), r.open()
	return a, b, r.journal(a) != nil
}

// claim is a request for a run of a job.
func (r *rig) claim(key string, c driver.Claim) *driver.AcquireRequest {
	req := r.request(key, r.long)
	if c.Keep == 0 {
		c.Keep = 4 * r.long
	}
	req.Once = &c
	return req
}

// begin begins what must be run number runs of a job, after lapses that were not reported by their holders.
func (r *rig) begin(d driver.Driver, req *driver.AcquireRequest, runs, lapses int) term {
	r.Helper()
	t := r.grant(d, req)
	j := t.Job
	switch {
	case j == nil:
		r.Fatalf("R11: a grant of %q with Once has no Job", req.Ref.Key)
	case j.Runs != runs || j.Lapses != lapses:
		r.Errorf("R11: %q is told to be in run %d after %d lapses, want run %d after %d", req.Ref.Key, j.Runs, j.Lapses, runs, lapses)
	case j.State != driver.JobRunning || j.Key != req.Ref.Key || j.Token != t.Token || j.Holder != req.Holder:
		r.Errorf("R11: the job of a grant with token %d is %+v", t.Token, *j)
	}
	return t
}

func (r *rig) run(d driver.Driver, key string, runs, lapses int) term {
	r.Helper()
	return r.begin(d, r.claim(key, driver.Claim{}), runs, lapses)
}

func (r *rig) recording(t term, rec driver.Record) error {
	if rec.Keep == 0 {
		rec.Keep = r.long
	}
	return t.d.Release(r.ctx, &driver.ReleaseRequest{Ref: t.ref, Record: &rec})
}

// finish ends a run whose term stands.
func (r *rig) finish(t term, rec driver.Record) {
	r.Helper()
	if err := r.recording(t, rec); err != nil {
		r.Fatalf("R11: Release of the current term of %q with a Record (%v): %v", t.ref.Key, rec.State, err)
	}
}

var done = driver.Record{State: driver.JobDone, Result: []byte("receipt 17")}

// answered asks for a run that must be refused because of the record.
func (r *rig) answered(d driver.Driver, req *driver.AcquireRequest, want error) driver.JobError {
	r.Helper()
	g, err := d.Acquire(r.ctx, req)
	var about *driver.JobError
	switch {
	case err == nil:
		r.Fatalf("R11: a run of %q was granted (run %+v), want: %v", req.Ref.Key, g.Job, want)
	case !errors.As(err, &about) || !errors.Is(err, want):
		r.Fatalf("R11: Acquire of %q with Once: want *JobError with %q, got %v", req.Ref.Key, want, err)
	}
	if about.Job.Key != req.Ref.Key {
		r.Errorf("R11: the answer about %q is about %q", req.Ref.Key, about.Job.Key)
	}
	return *about
}

func (r *rig) refusedRun(d driver.Driver, req *driver.AcquireRequest) {
	r.Helper()
	g, err := d.Acquire(r.ctx, req)
	var held *driver.HeldError
	if !errors.As(err, &held) {
		r.Fatalf("R11: Acquire with Once of %q, which is taken: want *HeldError, got %+v, %v", req.Ref.Key, g.Job, err)
	}
}

// jobIs checks what the journal says of a job.
func (r *rig) jobIs(d driver.Driver, key string, state driver.JobState, runs, lapses int) driver.Job {
	r.Helper()
	j, ok, err := r.journal(d).Job(r.ctx, key)
	switch {
	case err != nil || !ok:
		r.Fatalf("R11: Job(%q): there is one: %v, error %v", key, ok, err)
	case j.Key != key || j.State != state || j.Runs != runs || j.Lapses != lapses:
		r.Errorf("R11: job %q is %q, %v after %d runs and %d lapses; want %v after %d and %d", key, j.Key, j.State, j.Runs, j.Lapses,
			state, runs, lapses)
	}
	return j
}

// forgotten checks that there is no record.
func (r *rig) forgotten(d driver.Driver, key string) {
	r.Helper()
	if j, ok, err := r.journal(d).Job(r.ctx, key); ok || err != nil {
		r.Errorf("R11: job %q should not be known: %+v, error %v", key, j, err)
	}
}

func (r *rig) settle(d driver.Driver, req driver.SettleRequest) error {
	if req.By == "" {
		req.By = "ops: looked at the books"
	}
	if req.Keep == 0 {
		req.Keep = r.long
	}
	return r.journal(d).Settle(r.ctx, &req)
}

// lapsing begins a run with a short term and lets it run out.
func (r *rig) lapsing(d driver.Driver, req *driver.AcquireRequest, runs, lapses int) term {
	r.Helper()
	req.TTL = r.short
	t := r.begin(d, req, runs, lapses)
	r.lapse(t)
	return t
}

func (r *rig) hasResult(j driver.Job, want []byte) {
	r.Helper()
	if !bytes.Equal(j.Result, want) {
		r.Errorf("R11: job %q has a result of %d bytes, want %d: %.40q", j.Key, len(j.Result), len(want), j.Result)
	}
}
