//go:build unix

package redishold

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// helperContend tries for a key whenever it is told to, says how many votes that took, and releases on the next line.
func helperContend(addr string) {
	clients, closeAll := dialAll(strings.Fields(addr))
	defer closeAll()
	d, err := NewQuorumDriver(clients, nil)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var key string
		var at int64
		if _, err := fmt.Sscan(lines.Text(), &key, &at); err != nil {
			panic(err)
		}
		time.Sleep(time.Until(time.UnixMicro(at)))
		before := d.Stats().Rounds
		req := request(key, 10*time.Second)
		_, err := d.Acquire(ctx, req)
		rounds := d.Stats().Rounds - before
		var held *driver.HeldError
		switch {
		case err == nil:
			fmt.Println("won", rounds)
		case errors.As(err, &held):
			fmt.Println("held", rounds)
		default:
			fmt.Println("failed", rounds, err)
		}
		lines.Scan()
		if err == nil {
			_ = d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref})
		}
	}
}

// contention lets processes begin at the same moment, again and again, and returns after how many votes one of them held.
func contention(t *testing.T, processes, trials int) (rounds []int) {
	addrs := testenv.Addrs(startServers(t, 5))
	initQuorum(t, addrs, nil)
	type process struct {
		*helper
		tell func(format string, args ...any)
	}
	var all []process
	for range processes {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "REDISHOLD_HELPER=contend", "REDISHOLD_ADDR="+strings.Join(addrs, " "))
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		all = append(all, process{&helper{cmd, bufio.NewScanner(out)}, func(format string, args ...any) {
			if _, err := fmt.Fprintf(in, format+"\n", args...); err != nil {
				t.Fatal(err)
			}
		}})
	}
	for trial := range trials {
		total, won := 0, 0
		for try := 0; won == 0; try++ {
			at := time.Now().Add(3 * time.Millisecond).UnixMicro()
			for _, p := range all {
				p.tell("trial-%d-%d %d", trial, try, at)
			}
			most := 0
			for _, p := range all {
				var what string
				var n int
				line := p.line(t)
				if _, err := fmt.Sscan(line, &what, &n); err != nil || what == "failed" {
					t.Fatalf("trial %d: %s", trial, line)
				}
				if what == "won" {
					won++
					most = n
				} else if won == 0 {
					most = max(most, n)
				}
			}
			total += most
			for _, p := range all {
				p.tell("release")
			}
		}
		if won != 1 {
			t.Fatalf("trial %d: %d hold the lock", trial, won)
		}
		rounds = append(rounds, total)
	}
	slices.Sort(rounds)
	return rounds
}

func TestQuorumContention(t *testing.T) {
	t.Parallel()
	checkContention(t, contention(t, 8, 40))
}

func checkContention(t *testing.T, rounds []int) {
	t.Helper()
	p50, p99, worst := rounds[len(rounds)/2], rounds[len(rounds)*99/100], rounds[len(rounds)-1]
	t.Logf("votes until one of 8 processes holds, %d trials: p50 %d, p99 %d, at most %d", len(rounds), p50, p99, worst)
	if p50 > 2 || p99 > 8 || worst > 30 {
		t.Error("too many: want p50 ≤ 2, p99 ≤ 8, none over 30")
	}
}
