package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/cmd/lab/child"
)

// A Redis is one redis-server that keeps nothing on disk.
type Redis struct {
	Addr   string
	Client *redis.Client

	dir  *Dir
	home string
	port int
	proc *child.Process
	out  *output
}

// StartRedis starts one.
func (d *Dir) StartRedis(ctx context.Context) (*Redis, error) {
	var failed error
	for range attempts {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		r := &Redis{Addr: "127.0.0.1:" + strconv.Itoa(port), dir: d, home: d.Path("redis"), port: port}
		if err := os.Mkdir(r.home, 0o700); err != nil {
			return nil, err
		}
		if failed = r.start(ctx); failed == nil {
			return r, nil
		}
		if ctx.Err() != nil || errors.As(failed, new(*MissingError)) {
			break
		}
	}
	return nil, failed
}

func (r *Redis) start(ctx context.Context) error {
	program, err := find("redis-server", "apt-get install redis-server")
	if err != nil {
		return err
	}
	cmd := exec.Command(program, "--port", strconv.Itoa(r.port), "--bind", "127.0.0.1", "--dir", r.home, "--save", "",
		"--appendonly", "no", "--daemonize", "no", "--logfile", "", "--repl-diskless-sync-delay", "0")
	r.out = &output{}
	cmd.Stdout, cmd.Stderr = r.out, r.out
	proc, err := child.Start(cmd)
	if err != nil {
		return err
	}
	r.proc = proc
	r.Client = redis.NewClient(&redis.Options{Addr: r.Addr, ContextTimeoutEnabled: true, DialerRetries: 1, DisableIdentity: true})
	// The answer could be that of another server which has taken the port. This one then says so and ends.
	err = until(ctx, "redis-server is ready", func() bool {
		return r.proc.Err() != nil || r.out.contains("Ready to accept connections") && r.Client.Ping(ctx).Err() == nil
	})
	if err == nil {
		err = r.proc.Err()
	}
	if err != nil {
		r.Kill()
		return fmt.Errorf("%w: %s", err, r.out.last())
	}
	return nil
}

// Kill ends it at once. Everything in it is gone.
func (r *Redis) Kill() {
	r.proc.Kill()
	_ = r.Client.Close()
}

// Restart kills it and starts it again, empty, on the same port.
func (r *Redis) Restart(ctx context.Context) error {
	r.Kill()
	return until(ctx, "redis-server starts again", func() bool { return r.start(ctx) == nil })
}

// Follow makes it a replica of another server and waits until it has caught up.
func (r *Redis) Follow(ctx context.Context, primary *Redis) error {
	if err := r.Client.ReplicaOf(ctx, "127.0.0.1", strconv.Itoa(primary.port)).Err(); err != nil {
		return err
	}
	return until(ctx, "the replica has caught up", func() bool {
		info, err := r.Client.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
}

// StopReplication cuts its replicas off for good: from here on they get nothing more.
func (r *Redis) StopReplication(ctx context.Context) error {
	err := errors.Join(
		r.Client.Do(ctx, "ACL", "SETUSER", "default", "-psync", "-sync").Err(),
		r.Client.Do(ctx, "CLIENT", "KILL", "TYPE", "replica").Err())
	if err != nil {
		return err
	}
	return until(ctx, "no replica is connected", func() bool {
		info, err := r.Client.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(info, "connected_slaves:0")
	})
}

// Promote makes a replica a primary.
func (r *Redis) Promote(ctx context.Context) error {
	if err := r.Client.ReplicaOf(ctx, "no", "one").Err(); err != nil {
		return err
	}
	return until(ctx, "the replica is the primary", func() bool {
		info, err := r.Client.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(info, "role:master")
	})
}

// until polls until cond holds.
func until(ctx context.Context, what string, cond func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not so: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}
