//go:build unix

package redishold

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// documentedACL returns the rights that docs/stores/redis.md recommends.
func documentedACL(t *testing.T) []string {
	t.Helper()
	doc, err := os.ReadFile("../docs/stores/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(doc)) {
		if rest, ok := strings.CutPrefix(line, "ACL SETUSER locks on >PASSWORD "); ok {
			return strings.Fields(rest)
		}
	}
	t.Fatal("docs/stores/redis.md has no line that begins with ACL SETUSER locks on >PASSWORD")
	return nil
}

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

// lifeOf does everything once and returns the first error. A hint that does not come within patience is one.
func lifeOf(t *testing.T, d *Driver, patience time.Duration) error {
	ctx := t.Context()
	req := request("k", time.Minute)
	if _, err := d.Acquire(ctx, req); err != nil {
		return err
	}
	hints, stop, err := d.Watch(ctx, "k")
	if err != nil {
		return err
	}
	defer stop()
	if _, err := d.Renew(ctx, &driver.RenewRequest{Ref: req.Ref, TTL: time.Minute}); err != nil {
		return err
	}
	if terms, err := d.List(ctx, "", "", 10); err != nil || len(terms) != 1 {
		return errors.Join(err, errors.New("one term is to be listed"))
	}
	if err := d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref, Undo: true}); err != nil {
		return err
	}
	select {
	case <-hints:
	case <-time.After(patience):
		return errors.New("no hint")
	}
	req = request("k", time.Minute)
	if _, err := d.Acquire(ctx, req); err != nil {
		return err
	}
	if err := d.Break(ctx, &driver.BreakRequest{Ref: req.Ref, By: "test", Now: true}); err != nil || !d.Traits().FIFO {
		return err
	}
	return lineOf(t, d, patience)
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
	rights := documentedACL(t)
	r, d, _ := restricted(t, rights, nil)
	if err := lifeOf(t, d, 20*time.Second); err != nil {
		t.Errorf("with the documented rights: %v", err)
	}
	// On a full server a release needs one command more.
	req := request("full", time.Minute)
	grant(t, d, req)
	r.Do(t, "CONFIG", "SET", "maxmemory", "1")
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
		t.Errorf("on a full server: %v", err)
	}
	if log := r.Do(t, "ACL", "LOG"); log != "" {
		t.Errorf("the server has refused something: %s", log)
	}
}

func TestDocumentedACLHasNothingTooMuch(t *testing.T) {
	t.Parallel()
	rights := documentedACL(t)
	for i, right := range rights {
		if !strings.HasPrefix(right, "+") || right == "+eval" || right == "+pexpire" ||
			right == "+lpush" || right == "+ping" || right == "+unsubscribe" || right == "+hello" {
			continue // needed at times only, or by the client library
		}
		t.Run(right, func(t *testing.T) {
			t.Parallel()
			without := append(append([]string{}, rights[:i]...), rights[i+1:]...)
			r, d, _ := restricted(t, without, nil)
			err := lifeOf(t, d, time.Second)
			if log, _ := r.Try("ACL", "LOG"); err == nil && log == "" {
				t.Errorf("it works without %s", right)
			}
			var held *driver.HeldError
			if errors.As(err, &held) || errors.Is(err, driver.ErrGone) {
				t.Errorf("a lack of rights is answered as %v", err)
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
		_, d, _ := restricted(t, append([]string{"~k", "+pttl", "+del"}, rights...), &Options{PlainKeys: true})
		if err := lifeOf(t, d, 20*time.Second); err != nil {
			t.Error(err)
		}
	})
	t.Run("replicas", func(t *testing.T) {
		_, d, _ := restricted(t, append([]string{"+wait"}, rights...), &Options{Replicas: 1})
		if _, err := d.Acquire(t.Context(), request("k", time.Minute)); err == nil || !strings.Contains(err.Error(), "0 of 1 replicas") {
			t.Error(err)
		}
	})
	t.Run("cluster", func(t *testing.T) {
		nodes := testenv.StartCluster(t)
		for _, r := range nodes {
			r.Do(t, append([]string{
				"ACL", "SETUSER", "locks", "on", ">secret", "+cluster|slots", "+cluster|shards", "+command",
			}, rights...)...)
		}
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: testenv.Addrs(nodes), Username: "locks", Password: "secret", ContextTimeoutEnabled: true,
			MaintNotificationsConfig: noMaintenance,
		})
		defer rdb.Close()
		d, err := NewDriver(rdb, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if err := lifeOf(t, d, 20*time.Second); err != nil {
			t.Error(err)
		}
	})
}
