//go:build unix

package riverlock

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"
	"go.uber.org/goleak"

	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/pghold"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(workerEnv); spec != "" {
		if err := work(spec); err != nil {
			fmt.Fprintln(os.Stderr, "a worker:", err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(suite{m})
}

// suite ends the shared server before leaks are looked for.
type suite struct{ m *testing.M }

func (s suite) Run() int {
	code := s.m.Run()
	testenv.End()
	return code
}

const patience = 90 * time.Second // for what must come, on machines that may be busy

func argsOf(row *rivertype.JobRow) (a args, err error) {
	err = json.Unmarshal(row.EncodedArgs, &a)
	return a, err
}

var databases atomic.Int64

// A rig is a database with River's tables and ours, a diary, and workers.
type rig struct {
	t    *testing.T
	url  string
	dir  string
	pool *pgxpool.Pool
	// client inserts only.
	client *river.Client[pgx.Tx]
}

func newRig(t *testing.T) *rig {
	t.Helper()
	p := testenv.SharedPostgres(t)
	name := fmt.Sprintf("river%d", databases.Add(1))
	p.Do(t, "CREATE DATABASE "+name)
	r := &rig{t: t, url: strings.Replace(p.URL(), "/postgres?", "/"+name+"?", 1), dir: t.TempDir()}
	ctx := t.Context()
	var err error
	if r.pool, err = newPool(ctx, r.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.pool.Close)
	driver := riverpgxv5.New(r.pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		t.Fatal(err)
	}
	err = r.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return pghold.Migrate(ctx, c.Conn(), "") })
	if err != nil {
		t.Fatal(err)
	}
	r.do("CREATE TABLE ledger (job text)")
	if r.client, err = river.NewClient(driver, &river.Config{}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) do(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.pool.Exec(context.Background(), sql, args...); err != nil {
		r.t.Fatal(err)
	}
}

// number reads one number.
func (r *rig) number(sql string, args ...any) (n int) {
	r.t.Helper()
	if err := r.pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// insert inserts one River job and returns its number.
func (r *rig) insert(a args, opts *river.InsertOpts) int64 {
	r.t.Helper()
	res, err := r.client.Insert(context.Background(), a, opts)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.Job.ID
}

// row returns a River job as it is.
func (r *rig) row(id int64) *rivertype.JobRow {
	r.t.Helper()
	row, err := r.client.JobGet(context.Background(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	return row
}

// is waits until a River job is in a state.
func (r *rig) is(id int64, state rivertype.JobState) *rivertype.JobRow {
	r.t.Helper()
	var row *rivertype.JobRow
	r.eventually(fmt.Sprintf("River job %d is %s", id, state), func() bool { row = r.row(id); return row.State == state })
	return row
}

// snoozes is how often River has snoozed a job.
func (r *rig) snoozes(id int64) int {
	r.t.Helper()
	return r.number(`SELECT coalesce((metadata ->> 'snoozes')::int, 0) FROM river_job WHERE id = $1`, id)
}

func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	wait := patience
	if strings.HasPrefix(what, "all ") {
		wait = 20 * time.Minute // of soaks
	}
	for end := time.Now().Add(wait); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("not within %v: %s", wait, what)
		}
	}
}

// lines returns what the diary has of a kind.
func (r *rig) lines(kind string) (found [][]string) {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, "diary"))
	if err != nil && !os.IsNotExist(err) {
		r.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == kind && strings.HasSuffix(line, "\n") {
			found = append(found, words[1:])
		}
	}
	return found
}

// count counts the lines of a kind for each job.
func (r *rig) count(kind string) map[string]int {
	r.t.Helper()
	n := map[string]int{}
	for _, words := range r.lines(kind) {
		n[words[0]]++
	}
	return n
}

// tooSoon returns River jobs that came again within less than half a second after they were put off, and how many were put off.
func (r *rig) tooSoon() (wrong []string, off int) {
	r.t.Helper()
	last := map[string]int64{} // when it was put off, in ms
	for _, words := range r.lines("delivery") {
		at, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			r.t.Fatal(err)
		}
		switch words[2] {
		case "off":
			last[words[0]] = at
			off++
			continue
		case "back":
			delete(last, words[0])
			continue
		}
		if before, again := last[words[0]]; again && at-before < 500 {
			wrong = append(wrong, fmt.Sprintf("River job %s after %d ms", words[0], at-before))
		}
		delete(last, words[0])
	}
	return wrong, off
}

// A child is a worker process.
type child struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func (r *rig) start(mode string) *child {
	r.t.Helper()
	c := &child{cmd: exec.Command(os.Args[0]), done: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s", workerEnv, mode, r.dir, r.url), "GORACE=atexit_sleep_ms=0")
	c.cmd.Stderr = os.Stderr
	if _, err := c.cmd.StdinPipe(); err != nil { // closed by our end, whatever that is, and then the worker ends too
		r.t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func() { defer close(c.done); _ = c.cmd.Wait() }()
	r.t.Cleanup(c.kill)
	return c
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.done
}

func (c *child) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// stop lets the worker finish what it is at.
func (r *rig) stop(c *child) {
	r.t.Helper()
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
		if !c.cmd.ProcessState.Success() {
			r.t.Errorf("a worker has failed: %v", c.cmd.ProcessState)
		}
	case <-time.After(patience):
		r.t.Error("a worker does not stop")
	}
}
