//go:build soak && unix

package redishold

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// TestSoakMillionLocks measures what docs/stores/redis.md says of a million locks: the memory of each, how long a list takes,
// and how long others wait meanwhile. It fails if a list is not complete, and never because of a time.
//
//	go test -tags soak -run TestSoakMillionLocks -v ./redishold
func TestSoakMillionLocks(t *testing.T) {
	const n = 1_000_000
	for _, state := range []string{"ended", "held"} {
		t.Run(state, func(t *testing.T) {
			r := testenv.StartRedis(t)
			d := openDriver(t, r.Addr, nil)
			before := memoryOf(t, r)
			fillStore(t, r, d, n, state == "held")
			keys := r.Do(t, "DBSIZE")
			t.Logf("%s %s slots: %d bytes each; the first alone: %s", keys, state, (memoryOf(t, r)-before)/n,
				r.Do(t, "MEMORY", "USAGE", d.slotKey(name(1))))

			quiet := beside(t, r, func() { time.Sleep(2 * time.Second) })
			var terms []driver.Term
			var first, all time.Duration
			cpu := cpuOf(t, r)
			busy := beside(t, r, func() {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				for after := ""; ; after = terms[len(terms)-1].Key {
					page, err := d.List(ctx, "", after, 500)
					if err != nil {
						t.Fatalf("List after %q: %v", after, err)
					}
					if first == 0 {
						first = time.Since(began)
					}
					if terms = append(terms, page...); len(page) < 500 {
						break
					}
				}
				all = time.Since(began)
			})
			t.Logf("a list: first page %v, all %v; the server worked for %v", first.Round(time.Millisecond),
				all.Round(time.Millisecond), cpuOf(t, r)-cpu)
			t.Logf("another caller's acquire and release, alone:          %s", quiet)
			t.Logf("another caller's acquire and release, beside the list: %s", busy)
			for line := range strings.Lines(r.Do(t, "INFO", "commandstats")) {
				if strings.HasPrefix(line, "cmdstat_scan:") || strings.HasPrefix(line, "cmdstat_evalsha:") {
					t.Logf("%s", strings.TrimSpace(line))
				}
			}
			want := 0
			if state == "held" {
				want = n
			}
			sorted := slices.IsSortedFunc(terms, func(a, b driver.Term) int { return strings.Compare(a.Key, b.Key) })
			if got := len(terms); got < want || got > want+1 || !sorted { // one more is the other caller's
				t.Errorf("%d terms are listed, want %d; in order: %v", got, want, sorted)
			}
		})
	}
}

func name(i int) string { return fmt.Sprintf("charge-card/%08d", i) }

// fillStore makes the slots of so many locks, as copies of one that a driver has made.
func fillStore(t *testing.T, r *testenv.Redis, d *Driver, n int, held bool) {
	t.Helper()
	req := request(name(1), 24*time.Hour)
	req.Holder = driver.Holder{Host: "worker-17.example.internal", PID: 4711, Label: "billing", Purpose: "calls the payments API"}
	grant(t, d, req)
	if !held {
		if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
			t.Fatal(err)
		}
	}
	const step = 10_000
	for i := 1; i <= n; i += step {
		r.Do(t, "EVAL", `local v, ms = redis.call('GET', ARGV[4]), redis.call('PTTL', ARGV[4])
			for i = ARGV[1], ARGV[2] do redis.call('SET', ARGV[3] .. string.format('%08d', i) .. '}', v, 'PX', ms) end`,
			"0", strconv.Itoa(i), strconv.Itoa(i+step-1), d.prefix+"charge-card/", d.slotKey(name(1)))
	}
}

func memoryOf(t *testing.T, r *testenv.Redis) (bytes int) {
	t.Helper()
	_, line, _ := strings.Cut(r.Do(t, "INFO", "memory"), "used_memory:")
	if _, err := fmt.Sscan(line, &bytes); err != nil {
		t.Fatal(err)
	}
	return bytes
}

// cpuOf returns how long a server has worked, whoever else uses the machine.
func cpuOf(t *testing.T, r *testenv.Redis) time.Duration {
	t.Helper()
	var all float64
	info := r.Do(t, "INFO", "cpu")
	for _, field := range []string{"used_cpu_sys:", "used_cpu_user:"} {
		_, line, _ := strings.Cut(info, field)
		var seconds float64
		if _, err := fmt.Sscan(line, &seconds); err != nil {
			t.Fatal(err)
		}
		all += seconds
	}
	return time.Duration(all * float64(time.Second)).Round(time.Millisecond)
}

// beside lets another caller acquire and release while f runs, and says how long that took.
func beside(t *testing.T, r *testenv.Redis, f func()) string {
	t.Helper()
	d := openDriver(t, r.Addr, nil)
	ctx, stop := context.WithCancel(t.Context())
	var took []time.Duration
	var caller sync.WaitGroup
	caller.Go(func() {
		for ctx.Err() == nil {
			req := request("another", time.Minute)
			began := time.Now()
			_, err := d.Acquire(context.Background(), req)
			if err == nil {
				err = d.Release(context.Background(), &driver.ReleaseRequest{Ref: req.Ref})
			}
			if err != nil {
				t.Error(err)
				return
			}
			took = append(took, time.Since(began))
			time.Sleep(time.Millisecond)
		}
	})
	f()
	stop()
	caller.Wait()
	slices.Sort(took)
	return fmt.Sprintf("median %v, 99%% %v, longest %v of %d", took[len(took)/2], took[len(took)*99/100], took[len(took)-1], len(took))
}
