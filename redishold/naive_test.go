//go:build unix

package redishold

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
)

// naive is the Redis lock that is three lines and easy to get wrong: the twin of a Driver on which a test has to fail. What
// is wrong with it: a failure counts as "taken", its own nonce is not known again, the token is a mere counter, a renewal
// writes without looking, a release deletes whoever's the key is, and nothing says how the last term ended.
type naive struct{ client redis.UniversalClient }

func naiveKey(key string) string   { return "naive:{" + key + "}" }
func naiveToken(key string) string { return naiveKey(key) + ":token" }

func (n naive) Traits() driver.Traits {
	return driver.Traits{
		Name: "naive", Location: "naive", Scope: driver.Cluster, Fencing: driver.WhileDataSurvives, Forgets: driver.OnFailover,
		Clock: driver.WallClock, MinTTL: 100 * time.Millisecond,
	}
}

func (n naive) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	key := req.Ref.Key
	if ok, err := n.client.SetNX(ctx, naiveKey(key), req.Ref.Nonce, req.TTL).Result(); err != nil || !ok {
		return driver.Grant{}, &driver.HeldError{Term: driver.Term{Key: key}}
	}
	token, err := n.client.Incr(ctx, naiveToken(key)).Uint64()
	return driver.Grant{Token: driver.Token(token)}, err
}

func (n naive) Renew(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
	token, _ := n.client.Get(ctx, naiveToken(req.Ref.Key)).Uint64()
	return driver.Grant{Token: driver.Token(token)}, n.client.Set(ctx, naiveKey(req.Ref.Key), req.Ref.Nonce, req.TTL).Err()
}

func (n naive) Release(ctx context.Context, req *driver.ReleaseRequest) error {
	return n.client.Del(ctx, naiveKey(req.Ref.Key)).Err()
}

func (n naive) Close() error { return nil }

// inTwoSteps is how SET NX PX was done before there was one command for it. Whoever dies in between leaves a lock for ever.
func (n naive) inTwoSteps(ctx context.Context, key string) {
	if ok, err := n.client.SetNX(ctx, naiveKey(key), "x", 0).Result(); err == nil && ok {
		time.Sleep(time.Millisecond)
		n.client.PExpire(ctx, naiveKey(key), 300*time.Millisecond)
	}
}

// helperNaiveHold is helperHold with a naive lock. It looks at no clock, and stops by itself.
func helperNaiveHold(s site) {
	n := naive{s.dial()}
	g, err := n.Acquire(context.Background(), request("k", time.Second))
	if err != nil {
		panic(err)
	}
	fmt.Println(g.Token)
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // a pause at the worst moment
	time.Sleep(10 * time.Millisecond)              // the other threads stop a little later
	fmt.Println("works")
	fmt.Println(n.Release(context.Background(), &driver.ReleaseRequest{Ref: driver.Ref{Key: "k"}}))
	select {}
}

// helperNaiveChurn is helperChurn with a naive lock.
func helperNaiveChurn(s site) {
	n := naive{s.dial()}
	for i := 0; ; i++ {
		n.inTwoSteps(context.Background(), fmt.Sprint("k", i))
		fmt.Println(i)
	}
}
