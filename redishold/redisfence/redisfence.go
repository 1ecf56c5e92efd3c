// Package redisfence refuses writes to Redis keys by holders that have been overtaken. See package fence for what a fence is
// and what it does not do.
//
// Beside each key there is its mark, the largest token seen and the lock it belongs to, in a key of its own in the same hash
// slot. A script compares it and runs the command, in one step.
//
// Only what goes through Do is protected: any other client can write the key. A mark that is evicted, expires or is lost with
// the server's data lets an overtaken holder through, so do not keep marks in a Redis that evicts. After a failover to a
// replica the mark may be an older one.
package redisfence

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/fence"
)

// Options are for New; nil means all defaults.
type Options struct {
	// Keep is how long a mark outlives the last use of its key, at least. Choose it far above the longest time that a holder can be
	// paused or a message delayed. Default 0: for ever, one mark a key.
	Keep time.Duration
}

// A Fence guards keys of one Redis. It is safe for concurrent use.
type Fence struct {
	client redis.UniversalClient
	keep   time.Duration
}

// New returns a fence on a client, which stays yours. It connects to nothing yet.
func New(client redis.UniversalClient, opts *Options) (*Fence, error) {
	if opts == nil {
		opts = &Options{}
	}
	if client == nil || opts.Keep < 0 || opts.Keep > 0 && opts.Keep < time.Millisecond {
		return nil, fmt.Errorf("redisfence: a client is needed, and Keep is 0 or at least 1ms, not %s", opts.Keep)
	}
	return &Fence{client, opts.Keep}, nil
}

//go:embed do.lua
var source string

var sha = func() string { sum := sha1.Sum([]byte(source)); return hex.EncodeToString(sum[:]) }()

// Do moves the mark of a key up to the claim's token and runs one command on the key, in one step: Do(ctx, c, "report",
// "SET", "text", "EX", 60) or Do(ctx, c, "totals", "HINCRBY", "sum", 5). The key goes first after the command's name. A command
// that reads marks too, as it must before work that reads and then writes. The result is the command's, redis.Nil included.
//
// A stale claim gets a *fence.StaleError and changes nothing. A key whose mark belongs to another lock gets an error: tokens of
// two locks cannot be compared. If the command itself fails the mark has moved all the same. It is sent once only, so after an
// error of the network it may have run or not.
func (f *Fence) Do(ctx context.Context, c fence.Claim, key, command string, args ...any) (any, error) {
	if err := c.Valid(); err != nil {
		return nil, err
	}
	mark, err := markOf(key)
	if err != nil {
		return nil, fmt.Errorf("redisfence: lock %s: %w", c.Lock(), err)
	}
	argv := append([]any{uint64(c.Token), c.Lock(), f.keep.Milliseconds(), command}, args...)
	v, err := f.run(ctx, "evalsha", sha, key, mark, argv)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		v, err = f.run(ctx, "eval", source, key, mark, argv)
	}
	if err != nil {
		return nil, fmt.Errorf("redisfence: %s of key %q under lock %s: %w", command, key, c.Lock(), err)
	}
	reply, ok := v.([]any)
	if !ok || len(reply) != 2 {
		return nil, fmt.Errorf("redisfence: %s of key %q under lock %s: unexpected reply %.80v", command, key, c.Lock(), v)
	}
	switch {
	case reply[0] == "ok" && reply[1] == nil:
		return nil, redis.Nil
	case reply[0] == "ok":
		return reply[1], nil
	}
	token, lock, _ := strings.Cut(fmt.Sprint(reply[1]), " ")
	seen, err := strconv.ParseUint(token, 10, 53)
	switch {
	case err != nil:
		return nil, fmt.Errorf("redisfence: key %q holds %.40q, which is not a mark: another program uses it, or it is damaged", mark, reply[1])
	case lock != c.Lock():
		return nil, fmt.Errorf("redisfence: key %q is guarded by lock %s, and this is a claim of lock %s: tokens of two locks cannot "+
			"be compared; delete %q when neither is in use", key, lock, c.Lock(), mark)
	}
	return nil, &fence.StaleError{Lock: c.Lock(), Token: c.Token, Seen: holdlock.Token(seen)}
}

// once is a command that the client library does not repeat by itself: an INCR must not run twice.
type once struct{ *redis.Cmd }

// NoRetry is part of redis.Cmder.
func (once) NoRetry() bool { return true }

func (f *Fence) run(ctx context.Context, verb, script, key, mark string, argv []any) (any, error) {
	cmd := redis.NewCmd(ctx, append([]any{verb, script, 2, key, mark}, argv...)...)
	cmd.SetFirstKeyPos(3)
	err := f.client.Process(ctx, once{cmd})
	return cmd.Val(), err
}

// markOf names the mark of a key, which has to be in the same slot of a Cluster.
func markOf(key string) (string, error) {
	open := strings.IndexByte(key, '{')
	if key == "" {
		return "", errors.New("the key is empty: a fence guards one key, which a command takes first")
	}
	if open >= 0 && strings.IndexByte(key[open:], '}') > 1 {
		return key + ":fence:", nil // the key has a hash tag; the last sign keeps {a} and a apart
	}
	if strings.Contains(key, "}") {
		return "", fmt.Errorf("key %q cannot be fenced: its mark could not be in the same slot of a Cluster; "+
			"use a name without }, or with a {tag}", key)
	}
	return "{" + key + "}:fence", nil
}
