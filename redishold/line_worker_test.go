//go:build unix

package redishold

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// worker is a process of the soak of the line. Several of its waiters take turns at one lock, and write with their tokens to a
// resource on another server.
type worker struct {
	way      string // to the store
	resource string // its address
	name     string
	twin     string // "true", or what is wrong with it
	waiters  int
	cancels  bool // some of its waits are cancelled

	rdb *redis.Client // to the resource
}

const (
	workerTTL = 6 * time.Second // twice a claim
	workerRes = "resource"      // the keys of the resource's server
)

func (w worker) String() string {
	return fmt.Sprint(w.way, " ", w.resource, " ", w.name, " ", w.twin, " ", w.waiters, " ", w.cancels)
}

// workerWrites is the resource: it refuses tokens below the highest one that it has seen. KEYS: resource. ARGV: token, who, and
// 1 for the first write of a turn.
var workerWrites = redis.NewScript(`
local t, last = tonumber(ARGV[1]), tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
if t < last then return 'stale' end
if t == last and (ARGV[3] == '1' or redis.call('HGET', KEYS[1], 'who') ~= ARGV[2]) then return 'shared' end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'who', ARGV[2])
if ARGV[3] == '1' then
  local now = redis.call('TIME')
  redis.call('RPUSH', 'turns', ARGV[2] .. ' ' .. ARGV[1] .. ' ' .. string.format('%.0f', now[1] * 1000000 + now[2]))
  if redis.call('GET', 'stay') == string.match(ARGV[2], '^[^/]*') then
    redis.call('SET', 'stays', ARGV[2])
    return 'stay'
  end
end
return 'taken'`)

func helperWork(args string) {
	var w worker
	if _, err := fmt.Sscan(args, &w.way, &w.resource, &w.name, &w.twin, &w.waiters, &w.cancels); err != nil {
		panic(err)
	}
	ctx := context.Background()
	w.rdb = client(w.resource)
	d, err := NewDriver(client(w.way), nil)
	if err != nil {
		panic(err)
	}
	var store driver.Driver = d
	switch w.twin {
	case "credulous":
		store = credulous{d}
	case "sleepy":
		d.scripts.attend = sleepily(d.scripts.attend)
	case "blind", "unfair":
		for _, s := range []**script{&d.scripts.acquire, &d.scripts.release, &d.scripts.turn, &d.scripts.attend} {
			*s = map[string]func(*script) *script{"blind": blindly, "unfair": unfairly}[w.twin](*s)
		}
	}
	lapses := make(chan string, 1000)
	c, err := holdlock.NewClient(store, &holdlock.ClientOptions{Observer: lapsed(lapses)})
	if err != nil {
		panic(err)
	}
	go func() {
		for l := range lapses {
			w.rdb.RPush(ctx, "lapses", l)
		}
	}()
	l, err := c.NewLock("k", &holdlock.LockOptions{TTL: workerTTL})
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	for w.rdb.Exists(ctx, "go").Val() == 0 {
		time.Sleep(time.Millisecond)
	}
	var all sync.WaitGroup
	for i := range w.waiters {
		all.Go(func() { w.wait(ctx, l, fmt.Sprintf("%s/%d", w.name, i)) })
	}
	all.Wait()
	if err := c.Shutdown(ctx); err != nil {
		panic(err)
	}
}

// wait takes turns until it is over.
func (w *worker) wait(ctx context.Context, l *holdlock.Lock, who string) {
	for w.rdb.Exists(ctx, "over").Val() == 0 {
		lease, err := w.acquire(ctx, l)
		switch {
		case err == nil:
			w.turn(ctx, lease, who)
			err = lease.Release(ctx)
			if err != nil && !errors.Is(err, holdlock.ErrLost) {
				w.count(ctx, who, "releases that failed")
			}
		case errors.Is(err, context.DeadlineExceeded):
			w.count(ctx, who, "cancelled")
		case errors.Is(err, holdlock.ErrUnknown), errors.Is(err, holdlock.ErrUnreachable):
			w.count(ctx, who, "waits that failed")
			time.Sleep(rand.N(10 * time.Millisecond))
		default:
			panic(err)
		}
	}
}

func (w *worker) acquire(ctx context.Context, l *holdlock.Lock) (*holdlock.Lease, error) {
	if w.cancels && rand.N(6) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rand.N(300*time.Millisecond))
		defer cancel()
	}
	return l.Acquire(ctx)
}

// turn writes twice. A write that is refused is no fault as long as its holder does not believe in its lease any more.
func (w *worker) turn(ctx context.Context, lease *holdlock.Lease, who string) {
	for _, first := range []string{"1", "0"} {
		if lease.Check(0) != nil {
			w.count(ctx, who, "leases that were lost")
			return
		}
		said, err := workerWrites.Run(ctx, w.rdb, []string{workerRes}, uint64(lease.Token()), who, first).Text()
		if err != nil {
			panic(err)
		}
		believes := lease.Check(0) == nil
		switch {
		case said == "stay":
			for { // until it is killed
				time.Sleep(time.Hour)
			}
		case said == "shared", said == "stale" && believes:
			w.rdb.RPush(ctx, "overlaps", fmt.Sprintf("%s with token %d: %s", who, lease.Token(), said))
			return
		case said == "stale":
			w.count(ctx, who, "writes that were refused")
			return
		}
		time.Sleep(rand.N(2 * time.Millisecond))
	}
}

func (w *worker) count(ctx context.Context, who, what string) {
	w.rdb.HIncrBy(ctx, "counts", what, 1)
	w.rdb.HIncrBy(ctx, "counts of "+strings.Split(who, "/")[0], what, 1)
}

// lapsed is an observer that notes which terms before ours have ended without a release.
type lapsed chan string

func (l lapsed) Observe(e holdlock.Event) {
	if e.Kind == holdlock.Lapsed && e.Prior != nil {
		l <- fmt.Sprint(e.Prior.Holder.PID, " ", e.Prior.Acquired.UnixMicro(), " ", os.Getpid())
	}
}

// credulous is a twin that believes in a hand-over for longer than the server does, so that a message which was on its way for
// long is good enough.
type credulous struct{ *Driver }

func (c credulous) Listen(ctx context.Context, hear func(driver.Push)) error {
	return c.Driver.Listen(ctx, func(p driver.Push) {
		p.TTL += time.Minute
		hear(p)
	})
}

// unfairly makes a script hand over to whoever came last.
func unfairly(s *script) *script { return newScript(strings.ReplaceAll(s.source, "'LPOP'", "'RPOP'")) }

// sleepily makes a heartbeat that does not pass on a key that is free.
func sleepily(s *script) *script {
	source := strings.Replace(s.source, "if not s or sub(s, 1, 1) == '1' and free(s) <= now then s = promote", "if false then s = promote", 1)
	if source == s.source {
		panic("the script passes on no key")
	}
	return newScript(source)
}

// blindly makes a script hand over to whoever is next in line, without a look whether it is alive.
func blindly(s *script) *script {
	const inTurn, inPromote = "ask('EXISTS', (ALIVE or key .. ':p:') .. process) ~= 0", "if seen ~= 0 then"
	source := strings.ReplaceAll(strings.ReplaceAll(s.source, inTurn, "true"), inPromote, "if true then")
	if source == s.source {
		panic("the script looks at nobody")
	}
	return newScript(source)
}
