package e2e

import (
	"cmp"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdlock/holdlock/internal/testenv"
)

// labBox is a box whose temporary files lie where servers of other users may enter.
func labBox(t *testing.T) (b *box, tmp string) {
	t.Helper()
	testenv.Need(t, "redis-server", "psql")
	tmp, err := os.MkdirTemp("", "holdlock-lab-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	if err := os.Chmod(tmp, 0o711); err != nil {
		t.Fatal(err)
	}
	b = newBox(t)
	b.env = append(b.env, "TMPDIR="+tmp)
	return b, tmp
}

// empty fails the test if a file or a process of the lab is left.
func empty(t *testing.T, b *box, tmp string) {
	t.Helper()
	if left := labProcesses(b, tmp); len(left) > 0 {
		t.Errorf("left running when it had ended: %v", left)
	}
	left, err := filepath.Glob(tmp + "/*")
	if err != nil || len(left) > 0 {
		t.Errorf("left in the directory for temporary files: %v, %v", left, err)
	}
}

// The command runs experiments, tells what they show, and leaves nothing behind.
func TestLab(t *testing.T) {
	t.Parallel()
	b, tmp := labBox(t)
	page := b.path("page.html")
	r := runLab(b, "redis/paused", "redlock-fence/paused", "postgres/duplicate", "--seed", "7", "--html", page)
	if r.code != 0 {
		t.Fatalf("%+v", r)
	}
	for _, want := range []string{"4 D1 O1 S1 L1", "4 O1 F1 L2", "WRITES, though a later run has begun: accepted", "writes: REFUSED", "waits (for the transaction"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("the output lacks %q:\n%s", want, r.out)
		}
	}
	for _, want := range []string{"1 of 3: redis/paused", "3 of 3: postgres/duplicate", "seed 7"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("the progress lacks %q:\n%s", want, r.err)
		}
	}
	empty(t, b, tmp)
	checkPage(t, read(page))
}

// checkPage looks at whether a page needs nothing else, and whether its drawings are well-formed.
func checkPage(t *testing.T, html string) {
	t.Helper()
	for _, foreign := range []string{"<script", "<link", "src=", "url(", "@import", "href=\"http"} {
		if strings.Contains(html, foreign) {
			t.Errorf("the page contains %q", foreign)
		}
	}
	drawings := 0
	for rest := html; ; drawings++ {
		_, after, ok := strings.Cut(rest, "<svg")
		if !ok {
			break
		}
		var svg string
		svg, rest, _ = strings.Cut(after, "</svg>")
		for d := xml.NewDecoder(strings.NewReader("<svg" + svg + "</svg>")); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("a drawing is damaged: %v", err)
			}
		}
	}
	if drawings != 5 {
		t.Errorf("the page has %d drawings, want one for each of 5 cases", drawings)
	}
}

// With --json there is one experiment a line, and its counts are numbers.
func TestLabJSON(t *testing.T) {
	t.Parallel()
	b, tmp := labBox(t)
	r := runLab(b, "no-lock/duplicate", "no-lock/empty", "--json")
	if r.code != 0 {
		t.Fatalf("%+v", r)
	}
	type line struct {
		Mechanism, Fault struct{ ID string }
		NotRun           string `json:"not_run"`
		Counts           struct {
			Jobs   int
			Double int `json:"double_runs"`
		}
		Cases []struct{ Events []struct{ What string } }
	}
	var lines []line
	for d := json.NewDecoder(strings.NewReader(r.out)); ; {
		var l line
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in %s", err, r.out)
		}
		lines = append(lines, l)
	}
	if len(lines) != 2 || lines[0].Counts.Jobs != 1 || lines[0].Counts.Double != 1 || len(lines[0].Cases) != 1 ||
		len(lines[0].Cases[0].Events) < 8 || lines[1].NotRun != "there is no store" {
		t.Errorf("%+v", lines)
	}
	empty(t, b, tmp)
}

// What is missing is said, and the rest is run.
func TestLabMissing(t *testing.T) {
	t.Parallel()
	b, tmp := labBox(t)
	for i, v := range b.env {
		if strings.HasPrefix(v, "PATH=") {
			b.env[i] = "PATH=" + tmp
		}
	}
	r := runLab(b, "no-lock/late", "redis/late", "postgres/late")
	if r.code != 0 || !strings.Contains(r.out, "not run: redis-server was not found") || !strings.Contains(r.out, "2 D1") {
		t.Errorf("%+v", r)
	}
	if r := runLab(b, "redis/late"); r.code != 69 || !strings.Contains(r.err, "nothing could be run") {
		t.Errorf("without anything that can be run: %+v", r)
	}
	if r := runLab(b, "redis/later"); r.code != 64 || !strings.Contains(r.err, "stale-release") {
		t.Errorf("an unknown scenario: %+v", r)
	}
	if r := runLab(b, "redis/late", "--html", b.path("none/x.html")); r.code != 64 {
		t.Errorf("a page that cannot be written: %+v", r)
	}
	empty(t, b, tmp)
}

// Whenever it is told to end, it ends what it has started. All of these would go on for much longer.
func TestLabInterrupted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		at     string // the process that shows how far it is, or empty: an experiment is over
		args   []string
		signal syscall.Signal
		group  bool // as ^C in a terminal does
	}{
		{"redis-server", []string{"redlock", "--full"}, syscall.SIGINT, true},
		{"lab-worker", []string{"redis/paused", "--full"}, syscall.SIGTERM, false},
		{"lab-worker", []string{"redlock-fence/killed", "--full"}, syscall.SIGINT, true},
		{"initdb", []string{"postgres", "--full"}, syscall.SIGINT, true},
		{"redis-server", []string{"redlock", "--full"}, syscall.SIGQUIT, true},
		{"unix_socket_directories", []string{"postgres", "--full"}, syscall.SIGTERM, false},
		{"", []string{"redis", "--full"}, syscall.SIGHUP, false},
	} {
		t.Run(fmt.Sprintf("%v at %s", c.signal, cmp.Or(c.at, "progress")), func(t *testing.T) {
			b, tmp := labBox(t)
			cmd := b.command(append([]string{"lab"}, c.args...)...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			p := b.launch(cmd)
			reaches(t, b, tmp, p, c.at)
			pid := p.pid()
			if c.group {
				pid = -pid
			}
			if err := syscall.Kill(pid, c.signal); err != nil {
				t.Fatal(err)
			}
			r := labEnds(p)
			if r.code != 128+int(c.signal) || !strings.Contains(r.err, "have ended") {
				t.Errorf("%+v, want %d", r, 128+int(c.signal))
			}
			empty(t, b, tmp)
		})
	}
}

// Killed, it cannot remove its files; its processes end all the same.
func TestLabKilled(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ at, arg string }{{"lab-worker", "redlock-fence/paused"}, {"unix_socket_directories", "postgres"}} {
		t.Run(c.arg, func(t *testing.T) {
			b, tmp := labBox(t)
			p := b.launch(b.command("lab", "--full", c.arg))
			reaches(t, b, tmp, p, c.at)
			if err := syscall.Kill(p.pid(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			labEnds(p)
			eventually(t, "all have ended", func() bool { return len(labProcesses(b, tmp)) == 0 })
		})
	}
}

// labEnough is for what has to make a database first, on a machine that is busy with other tests.
const labEnough = 4 * time.Minute

// reaches waits until the lab is at some point.
func reaches(t *testing.T, b *box, tmp string, p *proc, at string) {
	t.Helper()
	ok := poll(labEnough, func() bool {
		return p.ended() || at == "" && strings.Contains(p.stderr(), "1 of ") || at != "" && runs(b, tmp, at)
	})
	if !ok || p.ended() {
		t.Fatalf("it does not reach %q: ended: %v, %s", at, p.ended(), p.stderr())
	}
}

// labEnds waits for the end.
func labEnds(p *proc) result {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(labEnough):
		p.t.Fatalf("%v does not end: %s", p.cmd.Args, p.stderr())
	}
	return result{code: exitCode(p.cmd.ProcessState), out: p.stdout(), err: p.stderr()}
}

// runLab runs it to its end.
func runLab(b *box, args ...string) result {
	b.t.Helper()
	return labEnds(b.start(append([]string{"lab"}, args...)...))
}

// labProcesses returns the processes of the lab that live. Servers write over their environment, and with it the mark of the
// box, but they are in directories of the lab.
func labProcesses(b *box, tmp string) map[int]string {
	found := b.marked()
	dirs, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range dirs {
		if dir, err := os.Readlink(link); err != nil || !strings.HasPrefix(dir, tmp) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
			found[pid] = strings.ReplaceAll(read(filepath.Join(filepath.Dir(link), "cmdline")), "\x00", " ")
		}
	}
	return found
}

// runs says whether a process of the lab has something in its command line.
func runs(b *box, tmp, what string) bool {
	for _, line := range labProcesses(b, tmp) {
		if strings.Contains(line, what) {
			return true
		}
	}
	return false
}
