package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// audited is a Go file with one lock and one fault.
const audited = `package a

import (
	"context"
	"database/sql"
)

func Lock(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, "SELECT pg_advisory_lock(42)")
	return err
}
`

// auditing makes a case of holdlock audit in a module with this file.
func auditing(name string, code int, file string, args ...string) codeCase {
	return codeCase{name, code, "-", func(b *box) result {
		write(b.t, b.path("go.mod"), "module example.com/m\n\ngo 1.26.0\n")
		write(b.t, b.path("a.go"), file)
		cmd := b.command(append([]string{"audit"}, args...)...)
		setenv(cmd, "GOWORK=off", "GOFLAGS=", "GOTELEMETRY=off")
		return b.launch(cmd).wait()
	}}
}

func auditCodes(code string) []codeCase {
	broken := strings.Replace(audited, "return err", "return undefined", 1)
	switch code {
	case "0":
		return []codeCase{
			auditing("audit with a fault", 0, audited),
			auditing("audit with another fault", 0, audited, "--fail-on", "no-expiry,release-ctx"),
			auditing("audit without a lock", 0, "package a\n", "--fail-on", "any"),
		}
	case "1":
		return []codeCase{
			auditing("any fault", 1, audited, "--fail-on", "any"),
			auditing("this fault", 1, audited, "--fail-on", "no-expiry,session-on-pool", "./..."),
			auditing("with --json", 1, audited, "--fail-on", "any", "--json"),
		}
	case "64":
		return []codeCase{
			auditing("audit with an unknown fault", 64, audited, "--fail-on", "everything"),
			auditing("audit with an unknown flag", 64, audited, "--fail"),
		}
	case "65":
		return []codeCase{
			auditing("does not compile", 65, broken),
			auditing("does not compile, and has a fault", 65, broken, "--fail-on", "any"),
			auditing("no such package", 65, audited, "./nowhere"),
			{"no module", 65, "-", func(b *box) result {
				cmd := b.command("audit")
				setenv(cmd, "GOWORK=off")
				return b.launch(cmd).wait()
			}},
			{"no go command", 65, "-", func(b *box) result {
				cmd := b.command("audit")
				setenv(cmd, "PATH="+b.dir)
				return b.launch(cmd).wait()
			}},
		}
	}
	return nil
}

// TestAudit compares what a person reads with what a program does.
func TestAudit(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	r := auditing("", 0, audited).do(b)
	contains(t, "the report", r.out, "1 lock in 1 package, 1 fault", "session-on-pool", "a.go:9", "pg-advisory", "42", "change:")
	if r.err != "" {
		t.Errorf("on stderr: %s", r.err)
	}
	r = auditing("", 0, audited, "--explain").do(b)
	contains(t, "the report", r.out, "Cannot tell", "release-ctx: no release is seen in this package")

	r = auditing("", 65, audited, "./nowhere").do(b)
	contains(t, "the report about nothing", r.out, "nothing could be read: 0 locks in 0 packages", "INCOMPLETE", "nowhere")

	r = auditing("", 0, audited, "--json").do(b)
	var records []string
	for line := range strings.Lines(r.out) {
		var rec struct{ Record string }
		if err := json.Unmarshal([]byte(line), &rec); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		records = append(records, rec.Record)
	}
	if got := strings.Join(records, " "); got != "lock finding summary" {
		t.Errorf("records %q", got)
	}

	r = auditing("", 0, strings.Replace(audited, "return err", "return undefined", 1), "--json").do(b)
	contains(t, "the report", r.out, `"name":"42"`, `"fault":"session-on-pool"`, `"record":"problem"`, "undefined", `"incomplete":true`)
	contains(t, "the message", r.err, `"event":"incomplete"`)
}

// TestAuditEndedBySignal ends an audit while the go command lists packages, and while it reads code itself: in the second
// case a file has become a pipe into which nobody writes, so that reading it never ends.
func TestAuditEndedBySignal(t *testing.T) {
	t.Parallel()
	real, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"listing": "echo $$ >listing\nexec sleep 600\n",
		"reading": `"` + real + `" "$@"; code=$?; case "$*" in *" -deps"*) rm a.go; mkfifo a.go ;; esac; exit $code` + "\n",
	} {
		for sig, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
			t.Run(name+" "+sig.String(), func(t *testing.T) {
				t.Parallel()
				b := newBox(t)
				write(t, b.path("go.mod"), "module example.com/m\n\ngo 1.26.0\n")
				write(t, b.path("a.go"), audited)
				if err := os.Mkdir(b.path("bin"), 0o755); err != nil {
					t.Fatal(err)
				}
				write(t, b.path("bin/go"), "#!/bin/sh\n"+script)
				if err := os.Chmod(b.path("bin/go"), 0o755); err != nil {
					t.Fatal(err)
				}
				cmd := b.command("audit", "--json")
				setenv(cmd, "PATH="+b.path("bin")+":"+os.Getenv("PATH"), "GOWORK=off", "GOFLAGS=", "GOTELEMETRY=off")
				p := b.launch(cmd)
				eventually(t, "the audit is busy", func() bool {
					if p.ended() {
						t.Fatalf("it has ended: %s", p.stderr())
					}
					if name == "listing" {
						return read(b.path("listing")) != ""
					}
					if info, err := os.Stat(b.path("a.go")); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
						return false
					}
					// This opens once somebody reads, who then waits for what is never written.
					fd, err := syscall.Open(b.path("a.go"), syscall.O_WRONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
					if err == nil {
						t.Cleanup(func() { _ = syscall.Close(fd) })
					}
					return err == nil
				})
				p.signal(sig)
				r := p.wait()
				if r.code != code || r.out != "" {
					t.Errorf("exit code %d, stdout %q", r.code, r.out)
				}
				contains(t, "the message", r.err, `"event":"signal"`, "ended by signal")
				b.nothingLeft()
			})
		}
	}
}

// declaring is a Go file with three locks of holdlock.
const declaring = `package a

import "github.com/holdlock/holdlock"

func Locks(c *holdlock.Client, tenant string) (locks []*holdlock.Lock) {
	for _, name := range []func() (*holdlock.Lock, error){
		func() (*holdlock.Lock, error) { return c.NewLock("used", nil) },
		func() (*holdlock.Lock, error) { return c.NewLock("idle", nil) },
		func() (*holdlock.Lock, error) { return c.NewLock("tenant-"+tenant, nil) },
	} {
		l, _ := name()
		locks = append(locks, l)
	}
	return locks
}
`

// TestAuditWithUsage compares what code declares with what the store has counted.
func TestAuditWithUsage(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	write(t, b.path("go.mod"), "module example.com/m\n\ngo 1.26.0\n")
	write(t, b.path("go.work"), "go 1.26.0\n\nuse .\n\nuse "+strconv.Quote(root)+"\n")
	write(t, b.path("a.go"), declaring)
	for _, lock := range []string{"used", "tenant-7/key", "removed"} {
		if r := b.run("run", lock, "--", "true"); r.code != 0 {
			t.Fatalf("run %s: %+v", lock, r)
		}
	}
	audit := func(code int, args ...string) result {
		t.Helper()
		cmd := b.command(append([]string{"audit", "--with-usage"}, args...)...)
		setenv(cmd, "GOFLAGS=", "GOTELEMETRY=off", "GOPROXY=off", "GOWORK=", "GOCACHE="+os.Getenv("GOCACHE"))
		r := b.launch(cmd).wait()
		if r.code != code {
			t.Fatalf("audit: %+v, want %d", r, code)
		}
		return r
	}
	r := audit(0)
	_, table, _ := strings.Cut(r.out, "Use of holdlock's locks")
	var got []string
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); strings.HasPrefix(line, "    ") {
			got = append(got, f[0])
		} else if strings.HasPrefix(line, "  ") {
			got = append(got, strings.TrimSpace(line)[:13]+":")
		}
	}
	want := "Declared here: idle Used, and not: removed Used, and dec: tenant-7 Declared unde: tenant-… Declared and : used"
	if strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q, from %s", strings.Join(got, " "), want, r.out)
	}
	contains(t, "the report", r.out, "a.go:8", "last used 2", "in sqlite:"+b.db)

	states := map[string]string{}
	for line := range strings.Lines(audit(0, "--json").out) {
		var rec struct{ Record, State, Lock string }
		if err := json.Unmarshal([]byte(line), &rec); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if rec.Record == "usage" {
			states[rec.Lock] = rec.State
		}
	}
	if len(states) != 5 || states["idle"] != "unused" || states["removed"] != "undeclared" || states["tenant-7"] != "perhaps" {
		t.Errorf("states %v", states)
	}
	audit(69, "--store", "redis://127.0.0.1:1")
}
