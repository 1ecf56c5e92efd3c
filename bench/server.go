package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is a redis-server of our own that keeps nothing on disk. All contestants share it, one after the other.
type server struct {
	addr   string
	admin  *redis.Client
	cmd    *exec.Cmd
	folder string
}

func startServer() (*server, error) {
	folder, err := os.MkdirTemp("", "holdlock-bench")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{addr: l.Addr().String(), folder: folder}
	_ = l.Close()
	_, port, _ := net.SplitHostPort(s.addr)
	s.cmd = exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", folder,
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--maxclients", "4000")
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("redis-server does not start: %w", err)
	}
	s.admin = redis.NewClient(&redis.Options{Addr: s.addr, PoolSize: 1})
	for give := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := s.admin.Ping(context.Background()).Err()
		if err == nil {
			return s, nil
		}
		if time.Now().After(give) {
			s.stop()
			return nil, fmt.Errorf("redis-server does not answer: %w", err)
		}
	}
}

func (s *server) stop() {
	_ = s.admin.Close()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	_ = os.RemoveAll(s.folder)
}

// empty forgets all keys and counts.
func (s *server) empty(ctx context.Context) error {
	if err := s.admin.FlushDB(ctx).Err(); err != nil {
		return err
	}
	return s.admin.ConfigResetStat(ctx).Err()
}

// prepare makes the server ready for a scenario with one key.
func (s *server) prepare(ctx context.Context, c contestant) error {
	err := s.empty(ctx)
	if err == nil && c.key != nil {
		err = c.key(ctx, s.admin)
	}
	return err
}

// sent is how often clients sent the given commands since empty. A command that only scripts call is not to be among them:
// the server counts these, too.
func (s *server) sent(ctx context.Context, verbs []string) (n int, err error) {
	info, err := s.info(ctx, "commandstats")
	if err != nil {
		return 0, err
	}
	for _, verb := range verbs {
		_, rest, _ := strings.Cut(info["cmdstat_"+verb], "calls=")
		calls, _, _ := strings.Cut(rest, ",")
		if calls == "" {
			continue // never
		}
		c, err := strconv.Atoi(calls)
		if err != nil {
			return 0, err
		}
		n += c
	}
	return n, nil
}

// cpu is the processor time of the server so far.
func (s *server) cpu(ctx context.Context) (time.Duration, error) {
	info, err := s.info(ctx, "cpu")
	if err != nil {
		return 0, err
	}
	system, err1 := strconv.ParseFloat(info["used_cpu_sys"], 64)
	user, err2 := strconv.ParseFloat(info["used_cpu_user"], 64)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("INFO cpu: %v %v", err1, err2)
	}
	return time.Duration((system + user) * float64(time.Second)), nil
}

func (s *server) version(ctx context.Context) string {
	info, _ := s.info(ctx, "server")
	return info["redis_version"]
}

func (s *server) info(ctx context.Context, section string) (map[string]string, error) {
	text, err := s.admin.Info(ctx, section).Result()
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for line := range strings.SplitSeq(text, "\r\n") {
		if name, value, ok := strings.Cut(line, ":"); ok {
			all[name] = value
		}
	}
	return all, nil
}
