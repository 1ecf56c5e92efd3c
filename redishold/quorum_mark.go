package redishold

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/quorumhold"
)

// keepMark is how long a mark stays without a grant: a job may be due once a year.
const keepMark = 400 * 24 * time.Hour

// mark is what a node bears, and what it is judged by, as in gate.lua. That has to be done here too for whoever only looks.
type mark struct {
	missing bool
	print   string
	run     string // of the server, when it was seen last
	since   int64  // µs since 1970
	name    string
	members string

	server string // its run now
	up     time.Duration
	now    time.Time // by its clock
}

// readMark asks a node for its mark and leaves it alone.
func (n *quorumNode) readMark(ctx context.Context) (mark, error) {
	return bounded(ctx, n.Driver, func(ctx context.Context) (m mark, err error) {
		var text, server *redis.StringCmd
		var now *redis.TimeCmd
		_, err = n.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			text, server, now = p.Get(ctx, n.mark()), p.Info(ctx, "server"), p.Time(ctx)
			return nil
		})
		if redis.HasErrorPrefix(text.Err(), "WRONGTYPE") {
			return m, n.damagedMark()
		}
		missing := errors.Is(text.Err(), redis.Nil)
		if missing {
			err = errors.Join(server.Err(), now.Err())
		}
		if err != nil {
			return m, err
		}
		if !missing {
			if m, err = n.parseMark(text.Val()); err != nil {
				return m, err
			}
		}
		info := fields(server.Val())
		up, _ := strconv.ParseInt(info["uptime_in_seconds"], 10, 64)
		m.missing, m.server, m.up, m.now = missing, info["run_id"], time.Duration(up)*time.Second, now.Val()
		return m, nil
	})
}

var (
	markOfOne   = regexp.MustCompile(`^1\n([[:xdigit:]]+)\n([[:xdigit:]]+)\n([0-9]+)\n[0-9]+\n([^\n]*)\n([^\n]*)$`)
	markOfOther = regexp.MustCompile(`^([02-9]|1[0-9])[0-9]*\n`)
)

func (n *quorumNode) parseMark(text string) (m mark, err error) {
	parts := markOfOne.FindStringSubmatch(text)
	switch {
	case parts != nil:
	case markOfOther.MatchString(text):
		return m, n.newerMark()
	default:
		return m, n.damagedMark()
	}
	m.print, m.run, m.name, m.members = parts[1], parts[2], parts[4], parts[5]
	m.since, err = strconv.ParseInt(parts[3], 10, 64)
	if err != nil {
		return m, n.damagedMark()
	}
	return m, nil
}

// abstains says for how much longer the node grants nothing. One without a mark abstains from the first request on.
func (q *quorum) abstains(m mark) time.Duration {
	if m.missing {
		return q.span
	}
	began := time.UnixMicro(m.since)
	switch {
	case q.restarted(m):
		began = m.now.Add(-max(0, m.up-time.Second)) // it shows whole seconds
	case began.After(m.now):
		began = m.now
	}
	return max(0, began.Add(q.span).Sub(m.now))
}

func (q *quorum) restarted(m mark) bool { return m.run != m.server && !q.opts.Durable }

// What is wrong with a mark that keeps a node out, and what to do. markAdvice stands between the two.
const markAdvice = "; what to do: "

func (n *quorumNode) keptOut(what, advice string) error {
	return fmt.Errorf("%w: %s%s%s", quorumhold.ErrMismatch, what, markAdvice, advice)
}

func (n *quorumNode) newerMark() error {
	return n.keptOut("its mark, the key "+n.mark()+", was written by a newer holdlock", "upgrade this one")
}

func (n *quorumNode) damagedMark() error {
	return n.keptOut("its mark, the key "+n.mark()+", is damaged", "look for who has written there, then "+n.unmark())
}

// foreignMark is about a node of another quorum.
func (n *quorumNode) foreignMark(members string) error {
	return n.keptOut("it belongs to a quorum of "+members+", and here it is one of "+n.quorum.members, n.foreignAdvice())
}

func (n *quorumNode) foreignAdvice() string {
	return "name the same nodes, in the same spelling, with the same MaxTTL in all programs, or another namespace. If that quorum is a mistake, " +
		"or is no more, and none of its jobs has run for its MaxTTL: " + n.unmark()
}

func (n *quorumNode) twinMark(name string) error {
	return n.keptOut("it bears the mark of node "+name+": it is the same server, or a replica or a copy of it", n.twinAdvice())
}

func (n *quorumNode) twinAdvice() string {
	return "name independent servers, in the same spelling everywhere. If this one has a copy of that one's data: " + n.unmark()
}

func (n *quorumNode) unmark() string {
	return fmt.Sprintf("DEL %s at this node, which then abstains for %s", n.mark(), n.quorum.span.Round(time.Second))
}
