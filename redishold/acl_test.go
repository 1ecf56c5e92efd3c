//go:build unix

package redishold

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// documentedACL returns the rights that docs/stores/redis.md recommends.
func documentedACL(t *testing.T) []string { return documented(t, "ACL SETUSER locks on >PASSWORD ") }

func sentinelACL(t *testing.T) []string { return documented(t, "ACL SETUSER watcher on >PASSWORD ") }

func documented(t *testing.T, command string) []string {
	t.Helper()
	doc, err := os.ReadFile("../docs/stores/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(doc)) {
		if rest, ok := strings.CutPrefix(line, command); ok {
			return strings.Fields(rest)
		}
	}
	t.Fatalf("docs/stores/redis.md has no line that begins with %s", command)
	return nil
}

// restricted starts a server with a user of these rights alone, on an empty cache of scripts.
func restricted(t *testing.T, rights []string, opts *Options) (*testenv.Redis, *Driver, *holdlock.Client) {
	t.Helper()
	r := testenv.StartRedis(t)
	r.Do(t, append([]string{"ACL", "SETUSER", "locks", "on", ">secret"}, rights...)...)
	dial := func() redis.UniversalClient {
		return redis.NewClient(&redis.Options{
			Addr: r.Addr, Username: "locks", Password: "secret", ContextTimeoutEnabled: true, MaxRetries: -1,
			MaintNotificationsConfig: noMaintenance, DisableIdentity: true,
		})
	}
	rdb := dial()
	d, err := NewDriver(rdb, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = d.Close(), rdb.Close() })
	return r, d, openOn(t, dial(), opts)
}

// lifeOf does everything once, also what is rare, and returns the first error. It goes on after one as far as it can.
func lifeOf(t *testing.T, r *testenv.Redis, d *Driver) (first error) {
	ctx := t.Context()
	fail := func(what string, err error) {
		if err != nil && first == nil {
			first = fmt.Errorf("%s: %w", what, err)
		}
	}
	refused := func() bool { return r != nil && r.Do(t, "ACL", "LOG") != "" }
	req := request("k", time.Minute)
	if _, err := d.Acquire(ctx, req); err != nil {
		return err // clear from the beginning
	}
	hints, stop, err := d.Watch(ctx, "k")
	fail("Watch", err)
	_, err = d.Renew(ctx, &driver.RenewRequest{Ref: req.Ref, TTL: time.Minute})
	fail("Renew", err)
	terms, err := d.List(ctx, "", "", 10)
	if err == nil && len(terms) != 1 {
		err = errors.New("one term is to be listed")
	}
	fail("List", err)
	_, _, err = d.Inspect(ctx, "k")
	fail("Inspect", err)
	// Whoever could get the lock can give it back, whatever right is missing.
	if err := d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref, Undo: true}); err != nil {
		t.Errorf("Release: %v, although the acquire went well", err)
	}
	req = request("k", time.Minute)
	_, err = d.Acquire(ctx, req)
	fail("Acquire", err)
	if stop != nil {
		testenv.Eventually(t, "a hint", func() bool { return len(hints) > 0 || refused() })
		if len(hints) > 0 {
			<-hints // and the key is taken again: it goes on waiting, at the front of the line
			testenv.Eventually(t, "it stands in line again", func() bool {
				if refused() {
					return true
				}
				d.hub.mu.Lock()
				defer d.hub.mu.Unlock()
				for _, w := range d.hub.watches {
					return !w.woken
				}
				return false
			})
		}
		stop()
	}
	fail("Break", d.Break(ctx, &driver.BreakRequest{Ref: req.Ref, By: "test", Now: true}))
	today := driver.DayOf(time.Now())
	fail("UpdateRecords", d.UpdateRecords(ctx, today, []string{"k"}, func(string, []byte) []byte { return []byte("x") }))
	fail("ReadRecords", d.ReadRecords(ctx, today, today, func(driver.Day, string, []byte) error { return nil }))
	if d.Traits().FIFO {
		fail("line", lineOf(t, d, 3*time.Second))
	}
	if d.Traits().Records != driver.NoRecords {
		fail("job", jobOf(t, d))
	}
	// On a full server a release needs a command more.
	req = request("full", time.Minute)
	_, err = d.Acquire(ctx, req)
	fail("Acquire", err)
	if r != nil {
		r.Do(t, "CONFIG", "SET", "maxmemory", "1")
		defer r.Do(t, "CONFIG", "SET", "maxmemory", "0")
	}
	fail("Release on a full server", d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref}))
	return first
}

// jobOf does everything once that there is to the record of a job.
func jobOf(t *testing.T, d *Driver) error {
	ctx := t.Context()
	var tokens [3]driver.Token
	for i, rec := range []*driver.Record{nil, {State: driver.JobOpen, Keep: time.Hour}, {State: driver.JobDone, Keep: time.Hour}} {
		req := claiming("job", time.Minute, driver.Rerun)
		g, err := d.Acquire(ctx, req)
		if err == nil {
			err = d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref, Record: rec, Undo: rec == nil})
		}
		if err != nil {
			return err
		}
		tokens[i] = g.Token
	}
	if _, err := d.Acquire(ctx, claiming("job", time.Minute, driver.Rerun)); !errors.Is(err, driver.ErrDone) {
		return errors.Join(err, errors.New("a done job is not done"))
	}
	if _, _, err := d.Job(ctx, "job"); err != nil {
		return err
	}
	if jobs, err := d.Jobs(ctx, &driver.JobQuery{Limit: 10}); err != nil || len(jobs) != 1 {
		return errors.Join(err, errors.New("one job is to be listed"))
	}
	return d.Settle(ctx, &driver.SettleRequest{Key: "job", Token: tokens[2], By: "test", Keep: time.Hour})
}

// lineOf does everything once that there is to a waiting line.
func lineOf(t *testing.T, d *Driver, patience time.Duration) error {
	ctx := t.Context()
	pushes := make(chan driver.Push, 10)
	if err := d.Listen(ctx, func(p driver.Push) { pushes <- p }); err != nil {
		return err
	}
	first, second := request("line", time.Minute), request("line", time.Minute)
	if _, err := d.Acquire(ctx, first); err != nil {
		return err
	}
	var held *driver.HeldError
	if _, err := d.Enqueue(ctx, second); !errors.As(err, &held) || held.Place != 1 {
		return errors.Join(err, errors.New("no place in line"))
	}
	if s := d.Attend(ctx, []*driver.AcquireRequest{second}); s[0].Err != nil || s[0].Place != 1 {
		return errors.Join(s[0].Err, errors.New("no place in line"))
	}
	third := request("line", time.Minute)
	if _, err := d.Enqueue(ctx, third); !errors.As(err, &held) {
		return err
	}
	for _, ref := range []driver.Ref{third.Ref, first.Ref} { // one leaves the line, one the key
		if err := d.Release(ctx, &driver.ReleaseRequest{Ref: ref}); err != nil {
			return err
		}
	}
	for {
		select {
		case p := <-pushes:
			if p.Nonce == "" {
				continue
			}
			return d.Release(ctx, &driver.ReleaseRequest{Ref: second.Ref})
		case <-time.After(patience):
			return errors.New("no push")
		}
	}
}

func TestDocumentedACLIsEnough(t *testing.T) {
	t.Parallel()
	r, d, _ := restricted(t, documentedACL(t), nil)
	before := pings(t, r)
	if err := lifeOf(t, r, d); err != nil {
		t.Errorf("with the documented rights: %v", err)
	}
	pinged(t, r, before)
	if log := r.Do(t, "ACL", "LOG"); log != "" {
		t.Errorf("the server has refused something: %s", log)
	}
}

// pinged waits until the client library has tested its idle subscription.
func pinged(t *testing.T, r *testenv.Redis, before int) {
	t.Helper()
	testenv.Eventually(t, "the subscription is tested", func() bool { return pings(t, r) > before || r.Do(t, "ACL", "LOG") != "" })
}

func pings(t *testing.T, r *testenv.Redis) int {
	t.Helper()
	return count(r.Do(t, "INFO", "commandstats"), "cmdstat_ping")
}

// Without any one of the rights the server refuses something, and it is an error of the store or none, but never an answer.
func TestDocumentedACLHasNothingTooMuch(t *testing.T) {
	t.Parallel()
	rights := documentedACL(t)
	for i, right := range rights {
		t.Run(right, func(t *testing.T) {
			t.Parallel()
			without := append(append([]string{}, rights[:i]...), rights[i+1:]...)
			r, d, _ := restricted(t, without, nil)
			before := pings(t, r)
			err := lifeOf(t, r, d)
			switch right {
			case "+ping":
				pinged(t, r, before)
			case "+setrange", "+lpos":
				releasesWithout(t, r, d, right)
			case "+pexpire": // what fails half-way leaves no key for ever
				_, err := d.call(t.Context(), d.scripts.watch, d.withAll("line"), "watcher", "0", "60000")
				n, looked := (site{servers: []*testenv.Redis{r}}).eternal()
				if err == nil || looked != nil || n != 0 {
					t.Errorf("standing in line: %v; then %d keys have no expiry, %v", err, n, looked)
				}
			}
			var held *driver.HeldError
			if errors.As(err, &held) || errors.Is(err, driver.ErrGone) {
				t.Errorf("a lack of rights is answered as %v", err)
			}
			want := "\nobject\n" + strings.TrimPrefix(right, "+") + "\n"
			switch right[0] {
			case '~':
				want = "\nreason\nkey\n"
			case '&':
				want = "\nreason\nchannel\n"
			}
			if log := r.Do(t, "ACL", "LOG"); !strings.Contains(log, want) {
				t.Errorf("without %s the server has refused %q, want %q; error %v", right, log, want, err)
			}
		})
	}
}

// Without rights to channels it works by polling, and says so once.
func TestWithoutPubSubRights(t *testing.T) {
	t.Parallel()
	var rights []string
	for _, right := range documentedACL(t) {
		if !strings.HasPrefix(right, "&") {
			rights = append(rights, right)
		}
	}
	var said bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&said, nil))
	_, d, c := restricted(t, rights, &Options{Logger: logger})
	for range 2 {
		if _, _, err := d.Watch(t.Context(), "k"); err == nil {
			t.Fatal("Watch without rights: no error, so nobody would poll")
		}
	}
	if n := strings.Count(said.String(), "polling"); n != 1 {
		t.Errorf("it was said %d times: %s", n, said.String())
	}
	l := newLock(t, c, "k", time.Minute)
	lease := mustAcquire(t, l)
	granted := make(chan error)
	go func() {
		next, err := l.Acquire(t.Context())
		if err == nil {
			err = next.Release(t.Context())
		}
		granted <- err
	}()
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
	if err := <-granted; err != nil {
		t.Errorf("the waiter: %v", err)
	}
}

// What the documentation adds for plain keys, for Replicas and for a Cluster.
func TestDocumentedACLForMore(t *testing.T) {
	t.Parallel()
	rights := documentedACL(t)
	t.Run("plain keys", func(t *testing.T) {
		t.Parallel()
		more := []string{"~k", "~full", "+pttl"}
		r, d, _ := restricted(t, append(more, rights...), &Options{PlainKeys: true})
		if err := lifeOf(t, r, d); err != nil {
			t.Error(err)
		}
		if log := r.Do(t, "ACL", "LOG"); log != "" {
			t.Errorf("the server has refused something: %s", log)
		}
		for i, right := range more {
			without := append(append(append([]string{}, more[:i]...), more[i+1:]...), rights...)
			r, d, _ := restricted(t, without, &Options{PlainKeys: true})
			if err := lifeOf(t, r, d); err == nil {
				t.Errorf("it works without %s", right)
			}
		}
	})
	t.Run("another database", func(t *testing.T) {
		t.Parallel()
		for _, more := range []string{"+select", "-select"} {
			r, _, _ := restricted(t, append([]string{more}, rights...), nil)
			rdb := redis.NewClient(&redis.Options{
				Addr: r.Addr, DB: 3, Username: "locks", Password: "secret", ContextTimeoutEnabled: true, MaxRetries: -1,
				MaintNotificationsConfig: noMaintenance, DisableIdentity: true,
			})
			defer rdb.Close()
			d, err := NewDriver(rdb, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			_, err = d.Acquire(t.Context(), request("k", time.Minute))
			if (err == nil) != (more == "+select") {
				t.Errorf("with %s: %v", more, err)
			}
		}
	})
	t.Run("replicas", func(t *testing.T) {
		t.Parallel()
		_, d, _ := restricted(t, append([]string{"+wait"}, rights...), &Options{Replicas: 1})
		if _, err := d.Acquire(t.Context(), request("k", time.Minute)); err == nil || !strings.Contains(err.Error(), "0 of 1 replicas") {
			t.Error(err)
		}
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		nodes := testenv.StartCluster(t)
		more := []string{"+cluster|slots", "+command"}
		for i := range len(more) + 1 { // without each of them, and with all
			some := slices.Clone(more)
			if i < len(more) {
				some = slices.Delete(some, i, i+1)
			}
			for _, r := range nodes {
				r.Do(t, append(append([]string{"ACL", "SETUSER", "locks", "reset", "on", ">secret"}, some...), rights...)...)
				r.Do(t, "ACL", "LOG", "RESET")
			}
			rdb := redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: testenv.Addrs(nodes), Username: "locks", Password: "secret", ContextTimeoutEnabled: true,
				MaintNotificationsConfig: noMaintenance, DisableIdentity: true,
			})
			d, err := NewDriver(rdb, nil)
			if err != nil {
				t.Fatal(err)
			}
			life := lifeOf(t, nil, d)
			_, _ = d.Close(), rdb.Close()
			refused := ""
			for _, r := range nodes {
				refused += r.Do(t, "ACL", "LOG")
			}
			if complete := i == len(more); complete != (refused == "") || complete && life != nil {
				t.Errorf("with %q: %v; the servers have refused: %q", some, life, refused)
			}
		}
	})
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := testenv.StartSentinel(t)
		for _, r := range s.Servers {
			r.Do(t, append([]string{"ACL", "SETUSER", "locks", "on", ">secret"}, rights...)...)
		}
		more := sentinelACL(t)
		for i := range len(more) + 1 {
			some := slices.Clone(more)
			if i < len(more) {
				some = slices.Delete(some, i, i+1)
			}
			for _, r := range s.Sentinels {
				r.Do(t, append([]string{"ACL", "SETUSER", "watcher", "reset", "on", ">secret"}, some...)...)
				r.Do(t, "ACL", "LOG", "RESET")
			}
			rdb := redis.NewFailoverClient(&redis.FailoverOptions{
				MasterName: s.Primary, SentinelAddrs: s.Addrs(), SentinelUsername: "watcher", SentinelPassword: "secret",
				Username: "locks", Password: "secret", ContextTimeoutEnabled: true, MaxRetries: -1, DisableIdentity: true,
			})
			d, err := NewDriver(rdb, nil)
			if err != nil {
				t.Fatal(err)
			}
			life := lifeOf(t, nil, d)
			refused := func() (all string) {
				for _, r := range append(slices.Clone(s.Sentinels), s.Servers[0]) {
					all += r.Do(t, "ACL", "LOG")
				}
				return all
			}
			if i < len(more) {
				testenv.Eventually(t, "a sentinel refuses what is done without "+more[i], func() bool { return refused() != "" })
			} else if all := refused(); life != nil || all != "" {
				t.Errorf("with %q: %v; the servers have refused: %q", some, life, all)
			}
			_, _ = d.Close(), rdb.Close()
		}
	})
}
