package e2e

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// A codeCase is one way to get an exit code.
type codeCase struct {
	name string
	code int
	ran  string // "yes" or "no": whether the command has run; "-" where there is none
	do   func(b *box) result
}

// work is a command that leaves a trace and then does something.
func work(then string) []string { return []string{"sh", "-c", ": >ran; " + then} }

// running makes a case of holdlock run with flags and a command.
func running(name string, code int, ran string, flags []string, argv ...string) codeCase {
	return codeCase{name, code, ran, func(b *box) result {
		return b.run(append(append(append([]string{"run"}, flags...), "--"), argv...)...)
	}}
}

// plain makes a case of a command line.
func plain(name string, code int, args ...string) codeCase {
	return codeCase{name, code, "-", func(b *box) result { return b.run(args...) }}
}

// looking is plain, in a file that has been made: who only looks, or ends what is there, does not make it.
func looking(name string, code int, args ...string) codeCase {
	return codeCase{name, code, "-", func(b *box) result { b.makeStore(); return b.run(args...) }}
}

// inside makes a case of a command that asks holdlock check, and gives its code as its own.
func inside(name string, code int, flags, check string) codeCase {
	ran := "yes"
	if code == 64 {
		ran = "-" // the row speaks of check, not of the command around it
	}
	return codeCase{name, code, ran, func(b *box) result {
		cmd := b.command("run", "job", "--", "sh", "-c", ": >ran; "+flags+` "$HL" check `+check)
		setenv(cmd, "HL="+holdlockPath)
		return b.launch(cmd).wait()
	}}
}

// codeCases are those of each row of the table in docs/cli.md, by its first column.
func codeCases() map[string][]codeCase {
	job := []string{"job"}
	bad := func(name string, flags ...string) codeCase {
		return running(name, 64, "no", append(flags, "job"), work("")...)
	}
	store := func(name string, prepare func(b *box)) codeCase {
		return codeCase{name, 69, "no", func(b *box) result {
			prepare(b)
			return b.run(append([]string{"run", "job", "--timeout", "300ms", "--"}, work("")...)...)
		}}
	}
	return map[string][]codeCase{
		"0": {
			running("true", 0, "yes", job, work("")...),
			looking("ls", 0, "ls"), looking("inspect", 0, "inspect", "job"), plain("version", 0, "version"),
			plain("help", 0, "--help"), plain("help of a command", 0, "run", "--help"),
			looking("dry run of break", 0, "break", "job"),
			inside("check", 0, "", "--need 1ms"),
			running("the first run of a job", 0, "yes", []string{"job", "--once"}, work("")...),
			{"a job that is done", 0, "no", func(b *box) result {
				b.run("run", "job", "--once", "--", "true")
				return b.run(append([]string{"run", "job", "--once", "--"}, work("")...)...)
			}},
			looking("jobs ls", 0, "jobs", "ls"), looking("jobs inspect", 0, "jobs", "inspect", "job"), looking("dry run of settle", 0, "jobs", "settle", "job"),
			running("skip with --held-exit-code 0", 0, "no", []string{"job", "--held-exit-code", "0"}, work("")...).held(),
		},
		"64": {
			plain("no argument", 64),
			bad("unknown flag", "--frobnicate"), bad("flag without its value", "--ttl"),
			bad("ttl that is no duration", "--ttl", "soon"), bad("ttl without a unit", "--ttl", "5"),
			bad("wait that is no duration", "--wait", "always"), bad("wait below 0", "--wait=-1s"),
			bad("ttl 0", "--ttl", "0s"), bad("ttl below 0", "--ttl=-5s"), bad("ttl under 100 ms", "--ttl", "99ms"),
			bad("ttl over a year", "--ttl", "8761h"), bad("max-hold under ttl", "--max-hold", "1s"),
			bad("min-hold below 0", "--min-hold=-1s"), bad("grace over half of ttl", "--grace", "16s"),
			bad("exit code 256", "--held-exit-code", "256"), bad("exit code no number", "--held-exit-code", "x"),
			bad("timeout 0", "--timeout", "0s"), bad("timeout below 0", "--timeout=-1s"),
			bad("no URL", "--store", "locks.db"), bad("unknown scheme", "--store", "mysql://host/db"), bad("no file", "--store", "sqlite:"),
			bad("no store", "--store="), bad("a blank for a store", "--store", "  "),
			bad("file URL with a host", "--store", "sqlite://host/locks.db"), bad("home as a shell leaves it", "--store", "sqlite:~/locks.db"),
			bad("namespace too long", "--namespace", strings.Repeat("n", 256)), bad("namespace not UTF-8", "--namespace", "\xff"),
			running("empty name", 64, "no", []string{""}, work("")...), running("empty key", 64, "no", []string{"job/"}, work("")...),
			running("long name", 64, "no", []string{strings.Repeat("n", 513)}, work("")...),
			running("long key", 64, "no", []string{"job/" + strings.Repeat("k", 513)}, work("")...),
			running("name not UTF-8", 64, "no", []string{"a\xff"}, work("")...), running("key not UTF-8", 64, "no", []string{"job/\xff"}, work("")...),
			running("two names", 64, "no", []string{"job", "job2"}, work("")...), running("no name", 64, "no", nil, work("")...),
			plain("run without --", 64, "run", "job"), plain("nothing after --", 64, "run", "job", "--"),
			plain("command without --", 64, "run", "job", "touch", "ran"),
			plain("ls of no file", 64, "ls"), plain("doctor of no file", 64, "doctor"), plain("unknown command", 64, "frob"), plain("ls with a command", 64, "ls", "--", "true"),
			plain("inspect without a name", 64, "inspect"), plain("inspect of an empty name", 64, "inspect", ""),
			plain("break without a reason", 64, "break", "job", "--token", "5"),
			plain("break with a token that is none", 64, "break", "job", "--token", "x", "--reason", "y"),
			bad("keep without once", "--keep", "1h"), bad("on-lapse without once", "--on-lapse", "hold"),
			bad("on-error without once", "--on-error", "hold"), bad("max-runs without once", "--max-runs", "2"),
			bad("input without once", "--input", "x"), bad("keep 0", "--once", "--keep", "0s"),
			bad("unknown policy", "--once", "--on-lapse", "pray"), bad("unknown policy after an error", "--once", "--on-error", ""),
			bad("max-runs 0", "--once", "--max-runs", "0"),
			plain("settle without a decision", 64, "jobs", "settle", "job", "--token", "5", "--reason", "x"),
			plain("settle with two decisions", 64, "jobs", "settle", "job", "--token", "5", "--reason", "x", "--done", "--run-again"),
			plain("settle without a reason", 64, "jobs", "settle", "job", "--token", "5", "--done"),
			plain("settle without a token", 64, "jobs", "settle", "job", "--done"), plain("jobs without a verb", 64, "jobs"),
			plain("check outside", 64, "check"), inside("check of less than 0", 64, "", "--need=-1s"),
		},
		"65": {{"another input", 65, "no", func(b *box) result {
			b.run("run", "job", "--once", "--input", "10 EUR", "--", "true")
			return b.run(append([]string{"run", "job", "--once", "--input", "11 EUR", "--"}, work("")...)...)
		}}},
		"77": {
			{"suspended after a lapse", 77, "no", func(b *box) result {
				b.run("run", "job", "--once", "--on-lapse", "hold", "--", "sh", "-c", "kill -KILL $$")
				return b.run(append([]string{"run", "job", "--once", "--"}, work("")...)...)
			}},
			{"suspended after an error", 77, "no", func(b *box) result {
				b.run("run", "job", "--once", "--on-error", "hold", "--", "false")
				return b.run(append([]string{"run", "job", "--once", "--"}, work("")...)...)
			}},
			{"suspended after so many runs", 77, "no", func(b *box) result {
				b.run("run", "job", "--once", "--max-runs", "1", "--", "false")
				return b.run(append([]string{"run", "job", "--once", "--"}, work("")...)...)
			}},
		},
		"69": {
			store("corrupt", func(b *box) { write(b.t, b.db, strings.Repeat("no database ", 1000)) }),
			store("foreign", func(b *box) { write(b.t, b.db, sqliteFile(0x12345678, 3)) }),
			store("newer layout", func(b *box) { write(b.t, b.db, sqliteFile(0x686f6c64, 1000)) }),
			store("directory", func(b *box) { _ = os.Mkdir(b.db, 0o755) }),
			store("below a file", func(b *box) {
				write(b.t, b.path("f"), "")
				b.env = append(b.env, "HOLDLOCK_STORE=sqlite:"+b.path("f/locks.db"))
			}),
			store("locked by a process that does not go on", func(b *box) { b.lockFile() }),
			running("no server, for a job", 69, "no", []string{"job", "--once", "--store", "redis://127.0.0.1:1", "--timeout", "300ms"}, work("")...),
			{"unreadable", 69, "no", func(b *box) result {
				b.makeStore()
				if err := os.Chmod(b.db, 0); err != nil {
					b.t.Fatal(err)
				}
				return b.launch(b.unprivileged(b.command(append([]string{"run", "job", "--"}, work("")...)...))).wait()
			}},
			{"ls of a corrupt store", 69, "-", func(b *box) result { write(b.t, b.db, "no database"); return b.run("ls") }},
			{"inspect of a foreign store", 69, "-", func(b *box) result { write(b.t, b.db, sqliteFile(1, 1)); return b.run("inspect", "job") }},
		},
		"70": {
			{"broken", 70, "yes", func(b *box) result {
				p := b.start(append([]string{"run", "job", "--ttl", "3s", "--"}, work("sleep 60")...)...)
				b.eventuallyRan()
				if r := b.run("break", "job", "--token", b.token("job"), "--reason", "test", "--now"); r.code != 0 {
					b.t.Errorf("break: %+v", r)
				}
				return p.wait()
			}},
			inside("check of too much", 70, "", "--need 1h"),
			inside("check with a lease that nobody has written", 70, "HOLDLOCK_LEASE=x", "--need 1ms"),
			inside("check without a lease", 70, "HOLDLOCK_LEASE=", "--need 1ms"),
		},
		"75": {
			running("held", 75, "no", job, work("")...).held(),
			running("held until the wait was over", 75, "no", []string{"job", "--wait", "50ms"}, work("")...).held(),
			plain("break of another term", 75, "break", "job", "--token", "5", "--reason", "test").held(),
			running("a job that runs", 75, "no", []string{"job", "--once"}, work("")...).held(),
			looking("settle of nothing", 75, "jobs", "settle", "job", "--token", "5", "--reason", "test", "--done"),
			{"settle of a job that runs", 75, "-", func(b *box) result {
				p, let := b.holder("job", "--once")
				r := b.run("jobs", "settle", "job", "--token", b.jobToken("job"), "--reason", "test", "--done")
				let()
				p.wait()
				return r
			}},
			looking("break of nothing", 75, "break", "job", "--token", "5", "--reason", "test"),
		},
		"126": {
			{"no execute bit", 126, "no", func(b *box) result {
				write(b.t, b.path("cmd"), "#!/bin/sh\n: >ran\n")
				return b.run("run", "job", "--", "./cmd")
			}},
			{"directory", 126, "no", func(b *box) result { return b.run("run", "job", "--", b.dir) }},
			{"no program", 126, "no", func(b *box) result {
				write(b.t, b.path("cmd"), "\x7fELF but not really\x00")
				_ = os.Chmod(b.path("cmd"), 0o755)
				return b.run("run", "job", "--", "./cmd")
			}},
		},
		"127": {
			running("not in PATH", 127, "no", job, "no-such-command-anywhere"),
			running("no such file", 127, "no", job, "./no-such-file"),
			{"no interpreter", 127, "no", func(b *box) result {
				write(b.t, b.path("cmd"), "#!/no/such/interpreter\n")
				_ = os.Chmod(b.path("cmd"), 0o755)
				return b.run("run", "job", "--", "./cmd")
			}},
		},
		"128+n": {
			running("command ended by TERM", 128+15, "yes", job, work("kill -TERM $$")...),
			running("command ended by KILL", 128+9, "yes", job, work("kill -KILL $$")...),
			{"TERM to holdlock", 128 + 15, "yes", func(b *box) result {
				p := b.start(append([]string{"run", "job", "--"}, work("exec sleep 60")...)...)
				b.eventuallyRan()
				p.signal(syscall.SIGTERM)
				return p.wait()
			}},
			{"TERM while it waits", 128 + 15, "no", whileWaiting(syscall.SIGTERM)},
			{"INT while it waits", 128 + 2, "no", whileWaiting(syscall.SIGINT)},
			{"HUP while it waits", 128 + 1, "no", whileWaiting(syscall.SIGHUP)},
		},
		"other": {
			running("7", 7, "yes", job, work("exit 7")...), running("1", 1, "yes", job, "sh", "-c", ": >ran; false"),
			running("255", 255, "yes", job, work("exit 255")...), running("75 of its own", 75, "yes", job, work("exit 75")...),
			{"70 of its own with --json", 70, "yes", func(b *box) result {
				r := b.run(append([]string{"run", "job", "--json", "--"}, work("exit 70")...)...)
				if r.err != "" {
					b.t.Errorf("holdlock says something of the command's own code: %s", r.err)
				}
				return r
			}},
		},
	}
}

// held makes the case happen while the lock is held.
func (c codeCase) held() codeCase {
	do := c.do
	c.do = func(b *box) result {
		p, let := b.holder("job")
		r := do(b)
		let()
		if h := p.wait(); h.code != 0 {
			b.t.Errorf("the holder: %+v", h)
		}
		return r
	}
	return c
}

func whileWaiting(sig syscall.Signal) func(b *box) result {
	return func(b *box) result {
		holder, let := b.holder("job")
		p := b.start(append([]string{"run", "job", "--wait", "forever", "--"}, work("")...)...)
		p.waits()
		p.signal(sig)
		r := p.wait()
		let()
		holder.wait()
		contains(b.t, "the message", r.err, "job", "nothing was run")
		return r
	}
}

func (b *box) ran() bool {
	_, err := os.Stat(b.path("ran"))
	return err == nil
}

func (b *box) eventuallyRan() {
	b.t.Helper()
	eventually(b.t, "the command runs", b.ran)
}

var tokenField = regexp.MustCompile(`"token":"([0-9]+)"`)

// token returns the token of the present term of a lock.
func (b *box) token(lock string) string {
	b.t.Helper()
	m := tokenField.FindStringSubmatch(b.run("inspect", lock, "--json").out)
	if m == nil {
		b.t.Fatalf("lock %s is not held", lock)
	}
	return m[1]
}

// TestExitCodes reads the table of docs/cli.md and tests it row by row.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	rows := documentedCodes(t)
	cases := codeCases()
	for _, code := range []string{"0", "1", "64", "65"} {
		cases[code] = append(cases[code], auditCodes(code)...)
	}
	for code := range cases {
		if _, ok := rows[code]; !ok {
			t.Errorf("docs/cli.md has no row for %s", code)
		}
	}
	for code, ran := range rows {
		if len(cases[code]) == 0 {
			t.Errorf("the row for %s of docs/cli.md is not tested", code)
		}
		for _, c := range cases[code] {
			t.Run(code+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				b := newBox(t)
				r := c.do(b)
				if r.code != c.code || code != "other" && code != "128+n" && strconv.Itoa(r.code) != code {
					t.Errorf("%+v, want code %d", r, c.code)
				}
				if c.ran == "-" {
					return
				}
				if ran := map[bool]string{true: "yes", false: "no"}[b.ran()]; ran != c.ran {
					t.Errorf("was the command run: %s, want %s", ran, c.ran)
				}
				if code != "0" && !strings.Contains(ran, c.ran) {
					t.Errorf("docs/cli.md says of %s that the command was run: %s; here it is %s", code, ran, c.ran)
				}
				if c.code != 0 && c.ran == "no" && !strings.HasPrefix(r.err, "holdlock: ") {
					t.Errorf("nothing was run, and the reason is %q", r.err)
				}
			})
		}
	}
}

// documentedCodes returns the first and the last column of the table of exit codes.
func documentedCodes(t *testing.T) map[string]string {
	t.Helper()
	doc, err := os.ReadFile("../../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, ok := strings.Cut(string(doc), "\n## Exit codes\n")
	if !ok {
		t.Fatal("docs/cli.md has no section Exit codes")
	}
	part, _, _ = strings.Cut(part, "\n## ")
	rows := make(map[string]string)
	for line := range strings.Lines(part) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 || strings.Contains(cells[0], "---") || strings.TrimSpace(cells[0]) == "code" {
			continue
		}
		rows[strings.TrimSpace(cells[0])] = strings.TrimSpace(cells[2])
	}
	if len(rows) < 8 {
		t.Fatalf("only %d rows were read: %v", len(rows), rows)
	}
	return rows
}
