package watermillonce_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A fleet is the worker processes of one test, with a queue and a diary of their own.
type fleet struct {
	t        *testing.T
	settings settings
	broker   *amqp091.Channel
	reader   *os.File // of the diary
	children []*child
	dead     map[int]bool // killed while they were at work
	paused   map[int]bool
}

// A child is a worker.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error
	log  string // file of what it says
}

// words are the last ones of a worker.
func (c *child) words() string {
	text, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	state := "at work"
	select {
	case <-c.done:
		state = fmt.Sprint(c.err)
	default:
	}
	lines := slices.Collect(strings.Lines(string(text)))
	return fmt.Sprintf("worker %d: %s\n%s", c.cmd.Process.Pid, state, strings.Join(lines[max(0, len(lines)-20):], ""))
}

func newFleet(t *testing.T, s settings) *fleet {
	t.Helper()
	s.Dir = t.TempDir()
	s.Topic = fmt.Sprintf("jobs-%d", rand.Int64())
	d, err := openDiary(s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.file.Close()
	f := &fleet{t: t, settings: s, dead: map[int]bool{}, paused: map[int]bool{}}
	if f.reader, err = os.Open(d.file.Name()); err != nil {
		t.Fatal(err)
	}
	conn, err := amqp091.DialConfig(s.Broker, *amqpConfig(0))
	if err != nil {
		t.Fatal(err)
	}
	if f.broker, err = conn.Channel(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range f.children {
			_ = c.cmd.Process.Kill()
			<-c.done
		}
		_ = conn.Close()
		_ = f.reader.Close()
		f.races()
	})
	if _, err := f.broker.QueueDeclare(s.Topic, true, false, false, false, s.queue().Queue.Arguments); err != nil {
		t.Fatal(err)
	}
	return f
}

// races fails for data races in the workers, but for those of watermill-amqp, which reads without a lock what its reconnecting changes.
func (f *fleet) races() {
	logs, _ := filepath.Glob(filepath.Join(f.settings.Dir, "race.*"))
	for _, name := range logs {
		text, _ := os.ReadFile(name)
		for report := range strings.SplitSeq(string(text), "==================") {
			if strings.Contains(report, "DATA RACE") && !strings.Contains(report, "watermill-amqp") {
				f.t.Errorf("a worker has a data race:\n%s", report)
			}
		}
	}
}

func (f *fleet) start() *child {
	f.t.Helper()
	text, err := json.Marshal(f.settings)
	if err != nil {
		f.t.Fatal(err)
	}
	c := &child{
		cmd: exec.Command(os.Args[0]), done: make(chan struct{}),
		log: filepath.Join(f.settings.Dir, fmt.Sprintf("worker-%d.log", len(f.children))),
	}
	c.cmd.Env = append(os.Environ(), workerEnv+"="+string(text),
		"GORACE=atexit_sleep_ms=0 exitcode=0 log_path="+filepath.Join(f.settings.Dir, "race"))
	log, err := os.Create(c.log)
	if err != nil {
		f.t.Fatal(err)
	}
	defer log.Close()
	c.cmd.Stderr = log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the death signal is tied to the thread that forked
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		started <- err
		if err == nil {
			c.err = c.cmd.Wait()
			close(c.done)
		}
	}()
	if err := <-started; err != nil {
		f.t.Fatal(err)
	}
	f.children = append(f.children, c)
	return c
}

// publish sends each job so many times, the copies next to each other.
func (f *fleet) publish(jobs []string, copies int) {
	f.t.Helper()
	for _, job := range jobs {
		for n := range copies {
			msg := message.NewMessage(job, []byte("work on "+job))
			msg.Metadata.Set("copy", fmt.Sprint(n+1))
			p, err := amqp.DefaultMarshaler{}.Marshal(msg)
			if err == nil {
				err = f.broker.PublishWithContext(f.t.Context(), "", f.settings.Topic, false, false, p)
			}
			if err != nil {
				f.t.Fatal(err)
			}
		}
	}
}

func jobNames(n int) (jobs []string) {
	for i := range n {
		jobs = append(jobs, fmt.Sprint(i))
	}
	return jobs
}

// see waits until cond holds of the diary.
func (f *fleet) see(what string, within time.Duration, cond func([]entry) bool) []entry {
	f.t.Helper()
	for give := time.Now().Add(within); ; {
		begin := time.Now()
		entries := readDiary(f.t, f.settings.Dir)
		if cond(entries) {
			return entries
		}
		if time.Now().After(give) {
			f.t.Fatalf("%s: not so after %s; the diary has %d entries: began %d, effect %d, ended %d, rerun %d, later %d, acked %d", what, within, len(entries),
				count(entries, began), count(entries, effect), count(entries, ended), count(entries, rerun), count(entries, later), count(entries, acked))
		}
		f.noneHasEnded()
		time.Sleep(20*time.Millisecond + 10*time.Since(begin)) // a long diary takes its time, and the workers need it
	}
}

// noneHasEnded ends the test if a worker has ended unasked: nothing that is waited for need come any more.
func (f *fleet) noneHasEnded() {
	f.t.Helper()
	for _, c := range f.children {
		select {
		case <-c.done:
			if !f.dead[c.cmd.Process.Pid] {
				f.t.Fatalf("a worker has ended unasked; %s", c.words())
			}
		default:
		}
	}
}

// allReady waits until all workers sit in all of their seats.
func (f *fleet) allReady() {
	f.t.Helper()
	f.see("all workers are ready", patience, func(entries []entry) bool { return count(entries, ready) == len(f.children) })
}

// settled waits until every copy of every job is acknowledged.
func (f *fleet) settled(jobs []string, copies int, within time.Duration) []entry {
	f.t.Helper()
	return f.see("every copy is acknowledged", within, func(entries []entry) bool {
		seen := map[string]bool{}
		for _, e := range entries {
			if e.kind == acked {
				seen[fmt.Sprint(e.job, "/", e.token)] = true
			}
		}
		return len(seen) >= len(jobs)*copies
	})
}

// atWork waits until a worker has begun one more run.
func (f *fleet) atWork(c *child) {
	f.t.Helper()
	at, _ := f.reader.Seek(0, io.SeekEnd)
	mark := fmt.Sprintf(" %d ", c.cmd.Process.Pid)
	for give := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		text, err := io.ReadAll(io.NewSectionReader(f.reader, at, 1<<30))
		if err != nil {
			f.t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, began) && strings.Contains(line, mark) {
				return
			}
		}
		f.noneHasEnded()
		if time.Now().After(give) {
			f.t.Fatalf("it begins nothing; %s", c.words())
		}
	}
}

// kill ends a worker as kill -9 does.
func (f *fleet) kill(c *child) {
	f.dead[c.cmd.Process.Pid] = true
	_ = c.cmd.Process.Kill()
	<-c.done
}

// pause stops a worker and returns when all its threads stand still.
func (f *fleet) pause(c *child) {
	f.t.Helper()
	_ = c.cmd.Process.Signal(syscall.SIGSTOP)
	f.standsStill(c)
}

func (f *fleet) standsStill(c *child) {
	f.t.Helper()
	for give := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", c.cmd.Process.Pid))
		still := len(stats) > 0
		for _, path := range stats {
			text, err := os.ReadFile(path)
			_, state, _ := strings.Cut(string(text), ") ")
			still = still && err == nil && strings.HasPrefix(state, "T")
		}
		if still {
			return
		}
		if time.Now().After(give) {
			f.t.Fatal("a stopped worker goes on")
		}
	}
}

// stop ends the workers that live as an orchestrator does.
func (f *fleet) stop() {
	f.t.Helper()
	for _, c := range f.children {
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, c := range f.children {
		select {
		case <-c.done:
			if c.err != nil && !f.dead[c.cmd.Process.Pid] {
				f.t.Errorf("a worker has failed; %s", c.words())
			}
		case <-time.After(patience):
			f.t.Errorf("it does not end; %s", c.words())
		}
	}
}

// left returns how many messages are in the queue, when nobody consumes it.
func (f *fleet) left() int {
	f.t.Helper()
	q, err := f.broker.QueueDeclarePassive(f.settings.Topic, true, false, false, false, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return q.Messages
}

// interrupted counts the killed workers that had a run at work which was not recorded.
func interrupted(entries []entry, dead map[int]bool) int {
	open := map[string]int{} // by job and token
	for _, e := range entries {
		name := fmt.Sprint(e.job, "/", e.token)
		switch e.kind {
		case began:
			if dead[e.pid] {
				open[name] = e.pid
			}
		case ended:
			delete(open, name)
		}
	}
	pids := map[int]bool{}
	for _, pid := range open {
		pids[pid] = true
	}
	return len(pids)
}
