package audit

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkColdAgainstGoVet runs holdlock audit and go vet on the same code, each with a build cache of its own that is
// empty, and reports what they took and the ratio, in processor time (of the go command and compilers too) and as the
// clock shows it. go vet needs the compiled form of every dependency; the audit reads them from source.
func BenchmarkColdAgainstGoVet(b *testing.B) {
	holdlock := filepath.Join(b.TempDir(), "holdlock")
	if out, err := exec.Command("go", "build", "-o", holdlock, "../holdlock").CombinedOutput(); err != nil {
		b.Fatalf("cannot build: %v: %s", err, out)
	}
	var real []string
	for _, m := range publics {
		real = append(real, m.patterns...)
	}
	for name, c := range map[string]struct {
		dir      string
		patterns []string
	}{
		"fixtures": {fixturesDir, []string{"./..."}},
		"public":   {"testdata/public", real},
	} {
		b.Run(name, func(b *testing.B) {
			var cpu, wall [2]time.Duration
			for b.Loop() {
				for i, args := range [][]string{{holdlock, "audit"}, {"go", "vet"}} {
					cmd := exec.Command(args[0], append(args[1:], c.patterns...)...)
					cmd.Dir, cmd.Env = c.dir, append(moduleEnv(), "GOCACHE="+b.TempDir())
					start := time.Now()
					out, err := cmd.CombinedOutput()
					wall[i] += time.Since(start)
					cpu[i] += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
					if err != nil && (i == 0 || bytes.Contains(out, []byte("go.sum"))) {
						b.Fatalf("%v: %s", err, out)
					} else if err != nil { // it may have something to say of other people's code
						b.Logf("go vet: %s", out)
					}
				}
			}
			b.ReportMetric(cpu[0].Seconds()/float64(b.N), "audit-cpu-s")
			b.ReportMetric(cpu[1].Seconds()/float64(b.N), "vet-cpu-s")
			b.ReportMetric(cpu[0].Seconds()/cpu[1].Seconds(), "cpu-ratio")
			b.ReportMetric(wall[0].Seconds()/wall[1].Seconds(), "wall-ratio")
		})
	}
}

// BenchmarkLoad is the cost of reading the fixtures, which import etcd's client, gRPC, rueidis, pgx and gorm, from source.
func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		if _, err := load(b.Context(), &LoadOptions{Dir: fixturesDir, Env: moduleEnv()}, []string{"./..."}); err != nil {
			b.Fatal(err)
		}
	}
}
