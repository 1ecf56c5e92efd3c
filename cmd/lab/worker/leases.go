package worker

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/bootclock"
	"github.com/holdlock/holdlock/quorumhold"
	"github.com/holdlock/holdlock/redishold"
)

// leases are locks of holdlock on Redis: on one server or on a quorum.
type leases struct {
	post    *poster
	locks   *holdlock.Client
	clients []redis.UniversalClient
}

func dial(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, DialerRetries: 1, DisableIdentity: true})
}

func openLeases(cfg Config, post *poster) (*leases, error) {
	l := &leases{post: post}
	for _, addr := range cfg.Redis {
		l.clients = append(l.clients, dial(addr))
	}
	var err error
	switch cfg.Mechanism {
	case Redis:
		l.locks, err = redishold.Open(l.clients[0], &redishold.Options{Failover: cfg.Failover})
	case NoRule:
		l.locks, err = openNoRule(l.clients, cfg.MaxTTL)
	default:
		l.locks, err = redishold.OpenQuorum(l.clients, &redishold.QuorumOptions{MaxTTL: cfg.MaxTTL})
	}
	return l, err
}

// openNoRule makes a quorum over bare drivers: there is nothing in front of the nodes that would make them abstain.
func openNoRule(clients []redis.UniversalClient, maxTTL time.Duration) (*holdlock.Client, error) {
	var nodes []driver.Driver
	for _, c := range clients {
		d, err := redishold.NewDriver(c, nil)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, d)
	}
	return quorumhold.Open(nodes, &quorumhold.Options{MaxTTL: maxTTL})
}

func (l *leases) acquire(ctx context.Context, s Step) (hold, error) {
	opts := &holdlock.LockOptions{TTL: s.TTL, Purpose: "an experiment", DoubleRun: holdlock.Costly}
	if s.NoRenew {
		opts.Renew = holdlock.RenewOff
	}
	lock, err := l.locks.NewLock(lockName, opts)
	if err != nil {
		return nil, err
	}
	get := lock.For(s.Job).TryAcquire
	if s.Wait {
		get = lock.For(s.Job).Acquire
	}
	lease, err := get(ctx)
	if err != nil {
		return nil, err
	}
	return &leaseHold{l.post, lease}, nil
}

func (l *leases) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = l.locks.Shutdown(ctx) // what is left is left to expire
	for _, c := range l.clients {
		_ = c.Close()
	}
}

type leaseHold struct {
	*poster
	lease *holdlock.Lease
}

func (h *leaseHold) token() uint64                     { return uint64(h.lease.Token()) }
func (h *leaseHold) check() error                      { return h.lease.Check(0) }
func (h *leaseHold) release(ctx context.Context) error { return h.lease.Release(ctx) }

// until is when trust ends, unless it has ended already: the store may have told that the lock is gone.
func (h *leaseHold) until() time.Duration {
	now := bootclock.Now()
	left := time.Until(h.lease.Deadline())
	if h.lease.Err() != nil {
		left = min(left, -1)
	}
	return now + left
}
