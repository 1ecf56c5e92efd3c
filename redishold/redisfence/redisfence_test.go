//go:build unix

package redisfence

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/fence"
	"github.com/holdlock/holdlock/fence/fencetest"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/redishold"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv("REDISFENCE_HELPER"); addr != "" {
		writeLate(addr, os.Getenv("REDISFENCE_FENCED") == "1")
		return
	}
	os.Exit(m.Run())
}

// text is a string key behind a fence, or behind none.
type text struct {
	rdb    redis.UniversalClient
	key    string
	fenced bool
}

func (x *text) do(ctx context.Context, c fence.Claim, args ...any) (any, error) {
	if !x.fenced {
		return x.rdb.Do(ctx, append([]any{args[0], x.key}, args[1:]...)...).Result()
	}
	f, err := New(x.rdb, nil)
	if err != nil {
		return nil, err
	}
	return f.Do(ctx, c, x.key, args[0].(string), args[1:]...)
}

func (x *text) Begin(ctx context.Context, c fence.Claim) (string, error) {
	v, err := x.do(ctx, c, "GET")
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return fmt.Sprint(v), err
}

func (x *text) Write(ctx context.Context, c fence.Claim, content string) error {
	_, err := x.do(ctx, c, "SET", content)
	return err
}

func (x *text) Read(ctx context.Context) (string, error) {
	s, err := x.rdb.Get(ctx, x.key).Result()
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	return s, err
}

func client(t *testing.T, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func TestRedis(t *testing.T) {
	rdb := client(t, testenv.StartRedis(t).Addr)
	fencetest.Run(t, func(t *testing.T) fencetest.Resource { return &text{rdb, t.Name(), true} })
}

func TestCluster(t *testing.T) {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{testenv.StartCluster(t)[0].Addr}})
	defer rdb.Close()
	fencetest.Run(t, func(t *testing.T) fencetest.Resource { return &text{rdb, t.Name(), true} })
	for _, key := range []string{"plain", "{tag}rest", "a{b}c", "a{b", "with space"} {
		if err := (&text{rdb, key, true}).Write(t.Context(), fence.Claim{Name: "l", Token: 5}, "x"); err != nil {
			t.Errorf("key %q: %v", key, err)
		}
	}
}

// Any command runs behind the fence, and its own answers and errors come through.
func TestCommands(t *testing.T) {
	r := testenv.StartRedis(t)
	f, err := New(client(t, r.Addr), &Options{Keep: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	c := fence.Claim{Name: "l", Key: "with space", Token: 5}
	if v, err := f.Do(t.Context(), c, "n", "INCRBY", 3); err != nil || v != int64(3) {
		t.Errorf("INCRBY = %v, %v", v, err)
	}
	r.Do(t, "SCRIPT", "FLUSH")
	if v, err := f.Do(t.Context(), c, "n", "INCRBY", 3); err != nil || v != int64(6) {
		t.Errorf("INCRBY after SCRIPT FLUSH = %v, %v; want 6: once, not twice", v, err)
	}
	if _, err := f.Do(t.Context(), c, "none", "GET"); !errors.Is(err, redis.Nil) {
		t.Errorf("GET of a missing key: %v, want redis.Nil", err)
	}
	if _, err := f.Do(t.Context(), c, "n", "LPUSH", "x"); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("LPUSH on a string: %v, want the words of the server", err)
	}
	if ms := r.Do(t, "PTTL", "{n}:fence"); ms == "-1" || ms == "-2" {
		t.Errorf("PTTL of the mark is %s, want at most an hour", ms)
	}
	var stale *fence.StaleError
	c.Token = 4
	if _, err := f.Do(t.Context(), c, "n", "INCRBY", 3); !errors.As(err, &stale) || stale.Seen != 5 || stale.Lock != "l/with space" {
		t.Errorf("a stale INCRBY: %v", err)
	}
	if got := r.Do(t, "GET", "n"); got != "6" {
		t.Errorf("n is %s after a stale INCRBY, want 6", got)
	}
}

// Keys that differ in their braces have marks of their own.
func TestMarksOfTaggedKeys(t *testing.T) {
	r := testenv.StartRedis(t)
	f, err := New(client(t, r.Addr), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range []string{"a", "{a}", "{a}b", "a:fence", "{a}:fence"} {
		claim := fence.Claim{Name: fmt.Sprint("l", i), Token: holdlock.Token(9 - i)}
		if _, err := f.Do(t.Context(), claim, key, "APPEND", "x"); err != nil {
			t.Errorf("key %q under a lock of its own: %v", key, err)
		}
	}
}

func TestBadInput(t *testing.T) {
	r := testenv.StartRedis(t)
	rdb := client(t, r.Addr)
	f, err := New(rdb, nil)
	if err != nil {
		t.Fatal(err)
	}
	ok := fence.Claim{Name: "l", Token: 5}
	r.Do(t, "SET", "{damaged}:fence", "what")
	r.Do(t, "LPUSH", "{list}:fence", "what")
	if _, err := f.Do(t.Context(), fence.Claim{Name: "other", Token: 1}, "taken", "SET", "x"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		claim fence.Claim
		key   string
		want  string
	}{
		{ok, "", "key is empty"},
		{ok, "a}b", "cannot be fenced"},
		{ok, "{}b", "cannot be fenced"},
		{fence.Claim{Name: "l"}, "k", "no claim"},
		{ok, "damaged", "is not a mark"},
		{ok, "list", "WRONGTYPE"},
		{ok, "taken", "guarded by lock other"},
	} {
		_, err := f.Do(t.Context(), c.claim, c.key, "SET", "x")
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, fence.ErrStale) {
			t.Errorf("key %q: %v, want %q", c.key, err, c.want)
		}
	}
	if got := r.Do(t, "GET", "taken"); got != "x" || r.Do(t, "EXISTS", "damaged", "list") != "0" {
		t.Errorf("something was written")
	}
	for _, o := range []*Options{{Keep: -1}, {Keep: 5}} {
		if _, err := New(rdb, o); err == nil {
			t.Errorf("%+v is accepted", *o)
		}
	}
	if _, err := New(nil, nil); err == nil {
		t.Error("no client is accepted")
	}
}

func openLock(addr string) (*holdlock.Client, *redis.Client, *holdlock.Lock, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	locks, err := redishold.Open(rdb, nil)
	if err != nil {
		return nil, nil, nil, err
	}
	l, err := locks.NewLock("report", &holdlock.LockOptions{TTL: 300 * time.Millisecond, Wait: time.Minute})
	return locks, rdb, l, err
}

func writeLate(addr string, fenced bool) {
	_, rdb, l, err := openLock(addr)
	if err != nil {
		panic(err)
	}
	lease, err := l.TryAcquire(context.Background())
	if err != nil {
		panic(err)
	}
	x := &text{rdb, "report", fenced}
	fmt.Println("holding")
	bufio.NewScanner(os.Stdin).Scan()
	if err := x.Write(context.Background(), fence.Of(lease), "old"); err != nil {
		fmt.Println("refused:", err)
		return
	}
	fmt.Println("written")
}

// A holder that is stopped past its TTL writes when it goes on. The fence refuses it; without the fence the new is lost.
func TestPaused(t *testing.T) {
	for name, fenced := range map[string]bool{"fenced": true, "unfenced": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := testenv.StartRedis(t).Addr
			locks, rdb, l, err := openLock(addr)
			if err != nil {
				t.Fatal(err)
			}
			defer rdb.Close()
			defer locks.Shutdown(context.Background())
			x := &text{rdb, "report", fenced}
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "REDISFENCE_HELPER="+addr)
			if fenced {
				cmd.Env = append(cmd.Env, "REDISFENCE_FENCED=1")
			}
			cmd.Stderr = os.Stderr
			said := fencetest.Paused(t, cmd, func() {
				err := l.Do(t.Context(), func(ctx context.Context, lease *holdlock.Lease) error {
					return x.Write(ctx, fence.Of(lease), "new")
				})
				if err != nil {
					t.Fatal(err)
				}
			})
			want, content := "written", "old"
			if fenced {
				want, content = "refused", "new"
			}
			if got, err := x.Read(t.Context()); !strings.HasPrefix(said, want) || got != content || err != nil {
				t.Errorf("the holder says %q, the key holds %q, %v; want %q, %q", said, got, err, want, content)
			}
		})
	}
}
