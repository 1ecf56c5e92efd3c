package redishold

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
)

// failure makes the error of a call that the store did not answer. The server's or the client library's own error stays
// reachable with errors.As.
func failure(verb, key string, err error) error {
	err = adviseRights(adviseMemory(adviseTLS(err)))
	if damaged(err) {
		err = fmt.Errorf("%w: %w", driver.ErrDamaged, err)
	}
	if certain(err) && !errors.Is(err, driver.ErrNotApplied) {
		return fmt.Errorf("redishold: %s %q: %w (%w)", verb, key, err, driver.ErrNotApplied)
	}
	return fmt.Errorf("redishold: %s %q: %w", verb, key, err)
}

// failure is the failure of a call about one lock. It names the key of what stands there and cannot be read.
func (d *Driver) failure(verb, key string, err error) error {
	if errors.Is(err, driver.ErrNewer) { // not to be deleted
		err = fmt.Errorf("key %s: %w", strings.Join(d.keys(key), " and key "), err)
	} else if damaged(err) || errors.Is(err, driver.ErrDamaged) {
		if !strings.Contains(err.Error(), "look at ") { // turn.lua and errLine have named it
			err = fmt.Errorf("look at key %s, and delete it or use another namespace: %w", strings.Join(d.keys(key), " and key "), err)
		}
	}
	return d.failed(verb, key, err)
}

// failed is the failure of a call about no lock, about several, or about what there is of one.
func (d *Driver) failed(verb, what string, err error) error {
	if d.cluster == nil {
		err = adviseCluster(err)
	}
	return failure(verb, what, err)
}

// errLine is for what stands in the place of the line of a lock.
func (d *Driver) errLine(key string) error {
	return fmt.Errorf("%w: key %s, where the line of those who wait would be, is not a list, so of another program: look at it, and delete it "+
		"or use another namespace", driver.ErrDamaged, d.lineKey(key))
}

// damaged says whether the server has refused to work on what stands at a key, or a script could not.
func damaged(err error) bool {
	var reply redis.Error
	if errors.Is(err, driver.ErrDamaged) || !errors.As(err, &reply) {
		return false
	}
	has := func(part string) bool { return strings.Contains(reply.Error(), part) }
	return has("WRONGTYPE") || has(damagedSlot) || has("user_script") && (has("attempt to ") || has("bad argument"))
}

// damagedSlot is how turn.lua says so.
const damagedSlot = "what stands there is damaged"

// adviseMemory says what a server means that refuses to write.
func adviseMemory(err error) error {
	var reply redis.Error
	if errors.As(err, &reply) && strings.Contains(reply.Error(), "OOM command not allowed") {
		return fmt.Errorf("the server is out of memory: make room, or raise its maxmemory: %w", err)
	}
	return err
}

// adviseRights says where to look for a right that is missing, and that a login is wrong. A script is not told which one it was.
func adviseRights(err error) error {
	text := err.Error()
	for _, sign := range []string{"NOPERM", "can't run this command", "can't access at least one of the keys", "Unknown Redis command called from script"} {
		if strings.Contains(text, sign) {
			return &denied{fmt.Errorf("this user lacks a right, see Rights in docs/stores/redis.md (the server's ACL LOG says which): %w", err)}
		}
	}
	if wrongLogin(err) {
		return &denied{err}
	}
	return err
}

// adviseCluster says what a client for one server has met that is told of the slots of a Cluster. One lock at a time would work on a
// Cluster of one node; calls for several cannot.
func adviseCluster(err error) error {
	if redis.HasErrorPrefix(err, "CROSSSLOT") || redis.HasErrorPrefix(err, "MOVED") {
		return &denied{fmt.Errorf("the server is a node of a Cluster (cluster-enabled), which takes a client for Clusters, also with one node: "+
			"redis+cluster:// or redis.NewClusterClient: %w", err)}
	}
	return err
}

// denied makes an error driver.ErrDenied too, which says no more than it does.
type denied struct{ error }

func (d *denied) Unwrap() []error { return []error{d.error, driver.ErrDenied} }

func wrongLogin(err error) bool {
	return redis.HasErrorPrefix(err, "NOAUTH") || redis.HasErrorPrefix(err, "WRONGPASS")
}

// adviseTLS says what a handshake that met no TLS most likely means.
func adviseTLS(err error) error {
	var header tls.RecordHeaderError
	if errors.As(err, &header) {
		return fmt.Errorf("the server does not speak TLS at this port: use redis:// or its TLS port: %w", err)
	}
	return err
}

// certain says whether a failed call has certainly changed nothing. Every command is sent once (see single). In a script the write
// that counts is the last one that can fail it: what goes before, such as the sign that somebody may wait, decides nothing, and what
// comes after, such as taking that sign away, fails in silence. So an error that the server answers came before it: READONLY, OOM,
// MISCONF, NOREPLICAS, LOADING, NOPERM, MOVED, CLUSTERDOWN and the like. A connection that failed after it stood may have carried the request.
func certain(err error) bool {
	var reply redis.Error
	var network *net.OpError
	var certificate *tls.CertificateVerificationError
	var header tls.RecordHeaderError
	switch {
	case errors.As(err, &reply):
		return true
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted), errors.Is(err, redis.ErrClosed):
		return true // it never got a connection
	case errors.As(err, &certificate):
		return true // nothing is sent before
	case errors.As(err, &header):
		return strings.HasPrefix(header.Msg, "first record") // so, too
	case errors.As(err, &network):
		return network.Op == "dial"
	}
	return false
}

// A refusal is what the server has answered about one lock of several. Scripts make a text of it, see apart in lua/common.lua.
type refusal string

func (r refusal) Error() string { return string(r) }

// RedisError is part of redis.Error.
func (refusal) RedisError() {}

// refused returns the refusal that a part of a reply is, or nil.
func refused(reply any) error {
	if parts, ok := reply.([]any); ok && len(parts) == 2 && parts[0] == "!" {
		if text, ok := parts[1].(string); ok {
			return refusal(text)
		}
	}
	return nil
}

// answer checks the reply of a script and returns its parts: a word and what belongs to it.
func answer(reply any) (word string, rest []string, err error) {
	if err := refused(reply); err != nil {
		return "", nil, err
	}
	parts, ok := reply.([]any)
	if !ok || len(parts) == 0 {
		return "", nil, fmt.Errorf("the script answered %v", reply)
	}
	all := make([]string, len(parts))
	for i, p := range parts {
		if all[i], ok = p.(string); !ok {
			return "", nil, fmt.Errorf("the script answered %v", reply)
		}
	}
	switch all[0] {
	case "V":
		return "", nil, fmt.Errorf("%w: %w", driver.ErrDamaged, errVersion(strings.Join(all[1:], "")))
	default:
		return all[0], all[1:], nil
	}
}

// goneError is ErrGone, or ErrBroken with by whom.
func goneError(verb, key, word string, rest []string) error {
	if word == "b" && len(rest) == 1 {
		by := parseText(rest[0])
		return fmt.Errorf("redishold: %s %q: %w: %s", verb, key, driver.ErrBroken, by)
	}
	return fmt.Errorf("redishold: %s %q: %w", verb, key, driver.ErrGone)
}
