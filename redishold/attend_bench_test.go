//go:build unix

package redishold

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// BenchmarkAttendOneLine is the heartbeat of a process that has many places in the line of one key, which it sends once a second.
func BenchmarkAttendOneLine(b *testing.B) {
	for _, n := range []int{1, 100, 2000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := testenv.StartRedis(b)
			rdb := client(r.Addr)
			d, err := NewDriver(rdb, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _, _ = d.Close(), rdb.Close() }()
			ctx := context.Background()
			if _, err := d.Acquire(ctx, attendRequest(0)); err != nil {
				b.Fatal(err)
			}
			reqs := make([]*driver.AcquireRequest, n)
			for i := range reqs {
				reqs[i] = attendRequest(i + 1)
				if _, err := d.Enqueue(ctx, reqs[i]); err == nil {
					b.Fatal("a key that is held was granted")
				}
			}
			busy := scriptTime(b, r)
			for b.Loop() {
				for i, s := range d.Attend(ctx, reqs) {
					if s.Place != i+1 {
						b.Fatalf("place %d is told %+v", i+1, s)
					}
				}
			}
			b.ReportMetric(float64((scriptTime(b, r)-busy).Microseconds())/float64(b.N), "server-µs/op")
		})
	}
}

func attendRequest(i int) *driver.AcquireRequest {
	return &driver.AcquireRequest{
		Ref: driver.Ref{Key: "k", Nonce: fmt.Sprintf("%032x", i)}, TTL: time.Hour,
		Holder: driver.Holder{Host: "host.example.org", PID: 4711, Label: "worker", Purpose: "the nightly report"},
	}
}

// scriptTime is how long the server has run scripts.
func scriptTime(tb testing.TB, r *testenv.Redis) (sum time.Duration) {
	tb.Helper()
	for line := range strings.Lines(r.Do(tb, "INFO", "commandstats")) {
		if name, rest, _ := strings.Cut(line, ":calls="); name == "cmdstat_evalsha" || name == "cmdstat_eval" {
			_, usec, _ := strings.Cut(rest, "usec=")
			usec, _, _ = strings.Cut(usec, ",")
			n, err := strconv.ParseInt(usec, 10, 64)
			if err != nil {
				tb.Fatal(err)
			}
			sum += time.Duration(n) * time.Microsecond
		}
	}
	return sum
}
