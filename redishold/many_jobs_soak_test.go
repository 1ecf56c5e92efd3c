//go:build soak && unix

package redishold

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// TestSoakManyJobs measures what docs/stores/redis.md says of many jobs: the memory of each, and how long an operator's list
// takes. It fails if a list is not complete, and never because of a time.
//
//	go test -tags soak -run TestSoakManyJobs -v ./redishold
func TestSoakManyJobs(t *testing.T) {
	const n, waiting = 200_000, 50
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	before := memoryOf(t, r)
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for i := range next {
				req := claiming(fmt.Sprintf("mail/%08d", i), time.Minute, driver.Rerun)
				rec := &driver.Record{State: driver.JobDone, Result: []byte("receipt"), Keep: 24 * time.Hour}
				if i%(n/waiting) == 0 {
					rec = &driver.Record{State: driver.JobSuspended, Why: driver.ByError}
				}
				_, err := d.Acquire(context.Background(), req)
				if err == nil {
					err = d.Release(context.Background(), &driver.ReleaseRequest{Ref: req.Ref, Record: rec})
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d jobs: %d bytes each, slot and record", n, (memoryOf(t, r)-before)/n)
	for _, undone := range []bool{true, false} {
		want := n
		if undone {
			want = waiting
		}
		began, first, got := time.Now(), time.Duration(0), 0
		for after := ""; ; {
			page, err := d.Jobs(t.Context(), &driver.JobQuery{After: after, Limit: 500, Undone: undone})
			if err != nil {
				t.Fatal(err)
			}
			if got += len(page); first == 0 {
				first = time.Since(began)
			}
			if len(page) < 500 {
				break
			}
			after = page[len(page)-1].Key
		}
		if got != want {
			t.Errorf("%d jobs are listed, want %d", got, want)
		}
		t.Logf("a list, undone only %v: %d jobs, first page %v, all %v", undone, got, first.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	}
}
