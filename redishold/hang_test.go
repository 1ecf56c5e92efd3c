//go:build unix

package redishold

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// A subscription that is being made anew at a server that hangs does not hold up the end: the client library waits for the server
// for as long as it may read, and heeds nothing else.
func TestCloseWhileTheServerHangs(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	c := redis.NewClient(&redis.Options{
		Addr: r.Addr, ContextTimeoutEnabled: true, MaxRetries: -1, ReadTimeout: 10 * time.Minute, DisableIdentity: true,
	})
	t.Cleanup(func() { _ = c.Close() })
	d, err := NewDriver(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Listen(t.Context(), func(driver.Push) {}); err != nil {
		t.Fatal(err)
	}
	subscription := func() *redis.PubSub {
		d.hub.mu.Lock()
		defer d.hub.mu.Unlock()
		return d.hub.sub
	}
	first := subscription()
	r.Freeze(t)
	testenv.Eventually(t, "it subscribes anew", func() bool { return subscription() != first })
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("Close waits for a server that hangs")
	}
}
