//go:build unix

package redishold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// echo answers its argument, after it has counted the call in a key, so that tests can see what was done and in which order.
var echo = newScript("redis.call('RPUSH', KEYS[1], ARGV[1]) return {ARGV[1]}")

// gate is a hook that lets a test hold back what is sent, and counts it.
type gate struct {
	mu    sync.Mutex
	shut  chan struct{} // nil: open
	alone int
	piped []int       // the sizes of pipelines
	ends  []time.Time // their deadlines
	again bool        // some commands may be sent again by the client library
}

func (g *gate) DialHook(next redis.DialHook) redis.DialHook { return next }

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			g.pass(1)
		}
		return next(ctx, cmd)
	}
}

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "evalsha" {
			g.look(ctx, cmds)
			g.pass(len(cmds))
		}
		return next(ctx, cmds)
	}
}

func (g *gate) look(ctx context.Context, cmds []redis.Cmder) {
	g.mu.Lock()
	defer g.mu.Unlock()
	end, _ := ctx.Deadline()
	g.ends = append(g.ends, end)
	for _, c := range cmds {
		g.again = g.again || !c.NoRetry()
	}
}

func (g *gate) pass(n int) {
	g.mu.Lock()
	if n == 1 {
		g.alone++
	} else {
		g.piped = append(g.piped, n)
	}
	shut := g.shut
	g.mu.Unlock()
	if shut != nil {
		<-shut
	}
}

func (g *gate) close() (open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	shut := make(chan struct{})
	g.shut = shut
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.shut = nil
		close(shut)
	}
}

// forget opens the gate for those who come from now on.
func (g *gate) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = nil
}

func (g *gate) sent() (alone int, piped []int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.alone, append([]int(nil), g.piped...)
}

// heldBack is a driver whose flights a test can hold back.
func heldBack(t *testing.T, addr string) (*Driver, *gate) {
	t.Helper()
	d := openDriver(t, addr, nil)
	g := &gate{}
	d.client.AddHook(g)
	return d, g
}

type outcome struct {
	reply any
	err   error
}

// aside calls a script from a goroutine of its own.
func aside(ctx context.Context, d *Driver, s *script, key string, args ...any) <-chan outcome {
	c := make(chan outcome, 1)
	go func() {
		reply, err := d.call(ctx, s, []string{key}, args...)
		c <- outcome{reply, err}
	}()
	return c
}

func get(t *testing.T, what string, c <-chan outcome) outcome {
	t.Helper()
	select {
	case o := <-c:
		return o
	case <-time.After(60 * time.Second):
		t.Fatalf("%s: no answer after a minute", what)
		return outcome{}
	}
}

// fill lets as many calls take off as may at a time and returns when all are under way, each by itself.
func fill(t *testing.T, d *Driver, g *gate) []<-chan outcome {
	t.Helper()
	var all []<-chan outcome
	for i := range maxFlights {
		before, _ := g.sent()
		all = append(all, aside(t.Context(), d, echo, "first", fmt.Sprint(i)))
		testenv.Eventually(t, "a call is under way", func() bool { n, _ := g.sent(); return n == before+1 })
	}
	return all
}

// queued waits until n calls queue.
func queued(t *testing.T, d *Driver, n int) {
	t.Helper()
	testenv.Eventually(t, fmt.Sprintf("%d calls queue", n), func() bool {
		d.shared.mu.Lock()
		defer d.shared.mu.Unlock()
		return len(d.shared.queue) == n
	})
}

// Whoever comes while enough are under way goes with the next one that returns, in the order in which they came, and
// everybody gets his own answer. The first ones wait for nobody.
func TestConcurrentCallersShareAPipeline(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d, g := heldBack(t, r.Addr)
	open := g.close()
	all := fill(t, d, g)
	var want []string
	long := time.Now().Add(2 * time.Hour)
	for i := range 10 {
		end := long
		if i != 5 {
			end = end.Add(-time.Hour)
		}
		ctx, cancel := context.WithDeadline(t.Context(), end)
		defer cancel()
		all = append(all, aside(ctx, d, echo, "then", fmt.Sprint(i)))
		queued(t, d, i+1)
		want = append(want, fmt.Sprint(i))
	}
	open()
	for i, c := range all {
		arg := fmt.Sprint(i)
		if i >= maxFlights {
			arg = fmt.Sprint(i - maxFlights)
		}
		if o := get(t, arg, c); o.err != nil || fmt.Sprint(o.reply) != "["+arg+"]" {
			t.Errorf("call %s: %v, %v", arg, o.reply, o.err)
		}
	}
	if got := strings.Fields(r.Do(t, "LRANGE", "then", "0", "-1")); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("they arrived in the order %v", got)
	}
	if alone, piped := g.sent(); alone != maxFlights+0 || len(piped) == 0 || piped[0] != 10 {
		t.Errorf("%d went alone and pipelines were of %v, want %d alone and 10 together", alone, piped, maxFlights)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.ends) == 0 || !g.ends[0].Equal(long) {
		t.Errorf("the pipeline's deadline is %v, want the last one of its members", g.ends)
	}
	if g.again {
		t.Error("the client library may send a call twice")
	}
}

// No member's call ends before its own time because of another one.
func TestAPipelineHasTheLastDeadline(t *testing.T) {
	now := time.Now()
	near, cancel := context.WithDeadline(t.Context(), now.Add(time.Minute))
	defer cancel()
	far, cancel := context.WithDeadline(t.Context(), now.Add(2*time.Minute))
	defer cancel()
	if got := (&sharer{}).lastDeadline([]*member{{ctx: near}, {ctx: far}, {ctx: near}}); !got.Equal(now.Add(2 * time.Minute)) {
		t.Errorf("it is %v, want that of the last one", got.Sub(now))
	}
	if got := (&sharer{}).lastDeadline([]*member{{ctx: near}, {ctx: t.Context()}}); got.Sub(now) < noDeadline {
		t.Errorf("with a member without deadline it is %v", got.Sub(now))
	}
}

// A caller who finds nobody under way is sent alone, and if nobody can cancel him, without a goroutine.
func TestASingleCallerNeedsNoGoroutine(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d, g := heldBack(t, r.Addr)
	if !d.shared.direct {
		t.Fatal("the client keeps deadlines, and is not called directly")
	}
	budget, cancel := driver.WithBudget(context.Background(), time.Minute)
	defer cancel()
	cancellable, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, ctx := range []context.Context{budget, cancellable} {
		var direct atomic.Bool
		stack := stackHook(func(s string) { direct.Store(strings.Contains(s, "TestASingleCallerNeedsNoGoroutine")) })
		d2 := openDriver(t, r.Addr, nil)
		d2.client.AddHook(stack)
		if _, err := d2.call(ctx, echo, []string{"k"}, "x"); err != nil {
			t.Fatal(err)
		}
		if got, want := direct.Load(), ctx == budget; got != want {
			t.Errorf("called on the caller's goroutine: %v, want %v", got, want)
		}
	}
	if _, err := d.call(budget, echo, []string{"k"}, "x"); err != nil {
		t.Fatal(err)
	}
	if alone, piped := g.sent(); alone != 1 || piped != nil {
		t.Errorf("%d alone, pipelines of %v", alone, piped)
	}
	for name, o := range map[string]*redis.Options{
		"a client that ignores contexts": {Addr: r.Addr},
		"a client without deadlines":     {Addr: r.Addr, ContextTimeoutEnabled: true, ReadTimeout: -2},
	} {
		rdb := redis.NewClient(o)
		if newSharer(rdb).direct {
			t.Errorf("%s is called directly", name)
		}
		_ = rdb.Close()
	}
}

// One member's error is nobody else's: a script that the server has forgotten is sent again for those who need it, and one
// that fails, fails for its caller.
func TestMembersHaveTheirOwnErrors(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d, g := heldBack(t, r.Addr)
	r.Do(t, "SET", "text", "x") // RPUSH gives WRONGTYPE
	if got := r.Do(t, "SCRIPT", "LOAD", echo.source); got != echo.sha {
		t.Fatal(got)
	}
	forgotten := newScript("redis.call('INCR', KEYS[1]) return {'was forgotten', ARGV[1]}")
	open := g.close()
	first := fill(t, d, g)
	good := aside(t.Context(), d, echo, "list", "good")
	queued(t, d, 1)
	wrong := aside(t.Context(), d, echo, "text", "wrong")
	queued(t, d, 2)
	again := aside(t.Context(), d, forgotten, "count", "again")
	queued(t, d, 3)
	last := aside(t.Context(), d, echo, "list", "last")
	queued(t, d, 4)
	open()
	for name, c := range map[string]<-chan outcome{"[good]": good, "[was forgotten again]": again, "[last]": last} {
		if o := get(t, name, c); o.err != nil || fmt.Sprint(o.reply) != name {
			t.Errorf("%s: %v, %v", name, o.reply, o.err)
		}
	}
	if o := get(t, "wrong", wrong); o.err == nil || !strings.Contains(o.err.Error(), "WRONGTYPE") || !certain(o.err) {
		t.Errorf("wrong: %v, %v", o.reply, o.err)
	}
	if got := r.Do(t, "GET", "count"); got != "1" {
		t.Errorf("the forgotten script ran %s times", got)
	}
	if _, piped := g.sent(); len(piped) == 0 || piped[0] != 4 {
		t.Errorf("pipelines of %v, so the test tells nothing", piped)
	}
	for _, c := range first {
		get(t, "first", c)
	}
}

// Whoever gives up, gives up for himself: his companions on the way get their answers, and what was not yet sent never is.
func TestGivingUpHarmsNobody(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d, g := heldBack(t, r.Addr)
	open := g.close()
	first := fill(t, d, g)
	impatient, cancel := context.WithCancel(t.Context())
	given := aside(impatient, d, echo, "list", "given up in the queue")
	queued(t, d, 1)
	cancel()
	if o := get(t, "given up", given); !errors.Is(o.err, context.Canceled) || !errors.Is(o.err, driver.ErrNotApplied) {
		t.Errorf("given up in the queue: %v, want that nothing was changed", o.err)
	}
	impatient, cancel = context.WithCancel(t.Context())
	defer cancel()
	given = aside(impatient, d, echo, "list", "given up on the way")
	queued(t, d, 1)
	stays := aside(t.Context(), d, echo, "list", "stays")
	queued(t, d, 2)
	open2 := func() func() { open(); return g.close() }()
	testenv.Eventually(t, "both are on their way", func() bool { _, p := g.sent(); return len(p) == 1 })
	cancel()
	if o := get(t, "given up", given); !errors.Is(o.err, context.Canceled) || errors.Is(o.err, driver.ErrNotApplied) {
		t.Errorf("given up on the way: %v, want no certainty", o.err)
	}
	open2()
	if o := get(t, "stays", stays); o.err != nil {
		t.Errorf("his companion: %v", o.err)
	}
	for _, c := range first {
		get(t, "first", c)
	}
	if got := r.Do(t, "LRANGE", "list", "0", "-1"); got != "given up on the way\nstays" {
		t.Errorf("the server did %q", got)
	}
}

// A server that stands still costs everybody his own budget, alone and in pipelines, and does not take from those who come
// later, over connections that work.
func TestHungFlightsAreReplaced(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d, g := heldBack(t, r.Addr)
	open := g.close()
	hang := fill(t, d, g)
	late := aside(t.Context(), d, echo, "list", "late")
	queued(t, d, 1)
	// The gate stands for connections that have died; the next ones live.
	g.forget()
	if o := get(t, "behind hung flights", late); o.err != nil {
		t.Errorf("behind hung flights: %v", o.err)
	}
	d.shared.mu.Lock()
	if d.shared.late != maxFlights || d.shared.underWay() > 1 {
		t.Errorf("%d flights are late and %d under way", d.shared.late, d.shared.underWay())
	}
	d.shared.mu.Unlock()
	open()
	for _, c := range hang {
		if o := get(t, "hung", c); o.err != nil {
			t.Errorf("a late one: %v", o.err)
		}
	}
	testenv.Eventually(t, "nobody is under way", func() bool {
		d.shared.mu.Lock()
		defer d.shared.mu.Unlock()
		return d.shared.late == 0 && len(d.shared.flights) == 0
	})
}

// stoppedServer: every caller is back soon after his deadline, the direct ones too, also if the connection is new.
func TestStoppedServerCostsEveryCallerHisBudget(t *testing.T) {
	t.Parallel()
	for _, callers := range []int{1, 40} {
		for _, warm := range []bool{true, false} {
			r := testenv.StartRedis(t)
			d := openDriver(t, r.Addr, nil)
			if warm {
				grant(t, d, request("warm", time.Minute))
			}
			r.Freeze(t)
			began := time.Now()
			var all sync.WaitGroup
			for i := range callers {
				all.Go(func() {
					ctx, cancel := driver.WithBudget(context.Background(), 200*time.Millisecond)
					defer cancel()
					_, err := d.Acquire(ctx, request(fmt.Sprint("k", i), time.Hour))
					if err == nil {
						t.Error("granted by a server that stands still")
					}
				})
			}
			all.Wait()
			if took := time.Since(began); took > 4*time.Second { // the client's own limits are 5 s
				t.Errorf("%d callers, warm %v: the last one was back after %v", callers, warm, took)
			}
			r.Thaw(t)
		}
	}
}

// The connection is cut in the middle of the answers. Those before have theirs, and the others no certainty.
func TestCutInThePipeline(t *testing.T) {
	t.Parallel()
	if wrong := cutInThePipeline(t, broken{}); len(wrong) > 0 {
		t.Error(strings.Join(wrong, "\n"))
	}
	// The control: the client library by itself drops the answers before the cut.
	if wrong := cutInThePipeline(t, broken{bare: true}); len(wrong) == 0 {
		t.Error("with bare commands nothing was wrong, so the test tells nothing")
	}
}

func cutInThePipeline(t *testing.T, b broken) (wrong []string) {
	t.Helper()
	r := testenv.StartRedis(t)
	r.Do(t, "SCRIPT", "LOAD", echo.source)
	p := testenv.StartProxy(t, r.Addr, nil)
	d, g := heldBack(t, p.Addr)
	d.shared.broken = b
	open := g.close()
	first := fill(t, d, g)
	var all []<-chan outcome
	big := strings.Repeat("x", 300_000) // so that its answer does not come in one piece with those before
	for i, arg := range []string{"a", "b", big, "c"} {
		all = append(all, aside(t.Context(), d, echo, "list", arg))
		queued(t, d, i+1)
	}
	p.SetScript(func(up bool, data []byte) testenv.Verdict {
		if !up && bytes.Contains(data, []byte("xxxx")) && !bytes.Contains(data, []byte("\r\nb\r\n")) {
			return testenv.Cut
		}
		return testenv.Pass
	})
	open()
	for i, c := range all {
		o := get(t, fmt.Sprint(i), c)
		if answered := i < 2; answered != (o.err == nil) {
			wrong = append(wrong, fmt.Sprintf("call %d: %.20v, %v", i, o.reply, o.err))
		}
		if o.err != nil && certain(o.err) {
			wrong = append(wrong, fmt.Sprintf("call %d: %v is certain", i, o.err))
		}
	}
	for _, c := range first {
		get(t, "first", c)
	}
	return wrong
}

// Close ends calls in the queue and under way, and leaves nothing behind (see TestMain).
func TestCloseEndsSharedCalls(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d, g := heldBack(t, r.Addr)
	open := g.close()
	defer open()
	all := fill(t, d, g)
	all = append(all, aside(t.Context(), d, echo, "list", "queued"))
	queued(t, d, 1)
	_ = d.Close()
	for i, c := range all {
		o := get(t, fmt.Sprint(i), c)
		if !errors.Is(o.err, driver.ErrClosed) || errors.Is(o.err, driver.ErrNotApplied) != (i == maxFlights) {
			t.Errorf("call %d: %v", i, o.err)
		}
	}
}

// stackHook is a hook that shows from where commands are sent.
type stackHook func(stack string)

func (stackHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (stackHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s stackHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			frames := string(debug.Stack())
			frames, _, _ = strings.Cut(frames, "created by") // which would name the test too
			s(frames)
		}
		return next(ctx, cmd)
	}
}
