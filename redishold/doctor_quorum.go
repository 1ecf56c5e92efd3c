package redishold

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
)

// Diagnose implements driver.Doctor, for one node. It leaves the node's mark alone, also where it is missing, and so takes its
// lock beside the gate.
func (n *quorumNode) Diagnose(ctx context.Context, opts driver.DoctorOptions) []driver.Diagnosis {
	if opts.TTL == 0 {
		opts.TTL = 30 * time.Second
	}
	x := &examination{d: n.Driver, ctx: ctx, ttl: opts.TTL, quorum: n.quorum}
	if !x.reachable() {
		return x.found
	}
	who, err := n.identify(ctx)
	if err == nil {
		err = n.quorum.admit(n.name, who)
	}
	if err != nil {
		x.say("identity", driver.Refuse, err.Error(), "this node takes no part", "name independent servers, without replicas that could take over; the user needs INFO")
	} else {
		x.fine("identity", "a server of its own, run_id "+who.run)
		n.diagnoseMark(x, who)
	}
	x.useEverything()
	x.roundTrip()
	x.server(n.client, "")
	return x.found
}

// diagnoseMark looks at what the node remembers of the quorum; see gate.lua for how it is judged.
func (n *quorumNode) diagnoseMark(x *examination, who identity) {
	const check = "mark"
	text, err := ask(x, func(ctx context.Context) (string, error) { return n.client.Get(ctx, n.mark()).Result() })
	q := n.quorum
	abstains := fmt.Sprintf("it grants nothing for %s from the first request on; if a majority does so, no lock can be taken", q.span.Round(time.Second))
	if errors.Is(err, redis.Nil) {
		x.say(check, driver.Caution, "none: this node is new, or has lost its data", abstains, "holdlock quorum init if the quorum is new and no job runs; otherwise wait")
		return
	}
	if err != nil {
		x.unseen(check, err)
		return
	}
	lines := strings.Split(text, "\n")
	if len(lines) != 7 || lines[0] != "1" {
		x.say(check, driver.Refuse, "it was written by a newer holdlock", "this node takes no part", "upgrade this one")
		return
	}
	since, _ := strconv.ParseInt(lines[3], 10, 64)
	switch left := time.Until(time.UnixMicro(since).Add(q.span)); {
	case lines[1] != q.print:
		x.say(check, driver.Refuse, "it belongs to a quorum of "+lines[6]+", and here it is one of "+q.members, "this node takes no part",
			"name the same nodes, in the same spelling, with the same MaxTTL in all programs; or another namespace")
	case lines[5] != plain(n.name):
		x.say(check, driver.Refuse, "it bears the name of node "+lines[5], "two of the nodes are one server", "name independent servers, in the same spelling everywhere")
	case lines[2] != who.run && !q.opts.Durable:
		x.say(check, driver.Caution, "the server has restarted since the last grant here", abstains, "wait")
	case since != 0 && left > 0:
		x.say(check, driver.Caution, fmt.Sprintf("it abstains for %s more", left.Round(time.Second)), "it grants nothing meanwhile; while a majority does so, no lock can be taken", "wait")
	default:
		x.fine(check, "of this quorum, and it remembers all grants")
	}
}

// quorumPersistence is about a node that may forget, which a quorum copes with.
func (s *server) quorumPersistence() {
	if s.info["aof_last_write_status"] == "err" || s.info["rdb_last_bgsave_status"] == "err" {
		s.persistence()
		return
	}
	if s.quorum.opts.Durable {
		s.persistence()
		return
	}
	s.fine("persistence", fmt.Sprintf("not needed: after a restart the node abstains for %s", s.quorum.span.Round(time.Second)))
}
