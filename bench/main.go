// Command bench measures holdlock beside the other Redis locks for Go, on one private redis-server, in one run, and
// writes a table of ratios to RESULTS.md.
//
//	cd bench && go run .
//
// Needs redis-server 7. Absolute figures are the machine's; the ratios are what counts. Contestants take turns in rounds,
// forwards and backwards, and a ratio is the median of the ratios within a round.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// plan is what a run measures.
type plan struct {
	rounds  int
	window  time.Duration // of one reading
	callers []int         // at the same time, on keys of their own
	waiters []int         // for one key
	idle    int
	leases  int
	ttl     time.Duration // of the leases
	keep    time.Duration // how long the leases are held
	only    string        // contestants whose name contains it, and the floors
}

func main() {
	if os.Getenv(workerVariable) != "" {
		if err := work(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		return
	}
	p := plan{callers: []int{1, 64, 512}, waiters: []int{8, 64}, idle: 200, ttl: 30 * time.Second}
	flag.IntVar(&p.rounds, "rounds", 7, "rounds of readings; the table has medians")
	flag.DurationVar(&p.window, "window", 700*time.Millisecond, "length of one reading")
	flag.IntVar(&p.leases, "leases", 10_000, "how many locks one process holds")
	flag.DurationVar(&p.keep, "keep", 20*time.Second, "how long it holds them")
	flag.StringVar(&p.only, "only", "", "measure contestants with this in their name, and the floors")
	parts := flag.String("parts", "pairs,line,idle,leases", "what to measure")
	out := flag.String("out", "RESULTS.md", "where to write the table; - is standard output only")
	flag.Parse()
	for part, off := range map[string]func(){
		"pairs": func() { p.callers = nil }, "line": func() { p.waiters = nil },
		"idle": func() { p.idle = 0 }, "leases": func() { p.leases = 0 },
	} {
		if !strings.Contains(*parts, part) {
			off()
		}
	}
	if err := run(context.Background(), p, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, p plan, out string) error {
	s, err := startServer()
	if err != nil {
		return err
	}
	defer s.stop()
	r, err := measure(ctx, s, p, func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) })
	if err != nil {
		return err
	}
	text := r.markdown(fmt.Sprintf("%s, Redis %s, %s/%s, %d cores shared by clients and server",
		runtime.Version(), s.version(ctx), runtime.GOOS, runtime.GOARCH, runtime.NumCPU()))
	fmt.Println(text)
	if out == "-" {
		return nil
	}
	return os.WriteFile(out, []byte(text), 0o644) //nolint:gosec // a page of the documentation
}
