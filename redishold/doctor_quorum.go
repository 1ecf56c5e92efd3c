package redishold

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/quorumhold"
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
		found := strings.TrimSuffix(err.Error(), " ("+driver.ErrNotApplied.Error()+")") // nothing was to be changed
		x.say("identity", driver.Refuse, found, "this node takes no part", "name independent servers, without replicas that could take over; the user needs INFO")
	} else {
		x.fine("identity", "a server of its own, run_id "+who.run)
		n.diagnoseMark(x)
	}
	x.useEverything()
	x.roundTrip()
	x.server(n.client, "")
	return x.found
}

// diagnoseMark looks at what the node remembers of the quorum.
func (n *quorumNode) diagnoseMark(x *examination) {
	const check, noPart = "mark", "this node takes no part"
	m, err := ask(x, func(ctx context.Context) (mark, error) { return n.readMark(ctx) })
	q := n.quorum
	const harm = "it grants nothing meanwhile; while a majority does so, no lock can be taken"
	left := time.Duration(math.Ceil(q.abstains(m).Seconds())) * time.Second
	switch {
	case errors.Is(err, quorumhold.ErrMismatch):
		what, todo, _ := strings.Cut(strings.TrimPrefix(err.Error(), quorumhold.ErrMismatch.Error()+": "), markAdvice)
		x.say(check, driver.Refuse, what, noPart, todo)
	case err != nil:
		x.unseen(check, err)
	case m.missing:
		x.say(check, driver.Caution, "none: this node is new, or has lost its data", fmt.Sprintf("it grants nothing for %s from the first request on; "+
			"if a majority does so, no lock can be taken", left), "holdlock quorum init if the quorum is new and no job runs; otherwise wait")
	case m.print != q.print:
		x.say(check, driver.Refuse, "it belongs to a quorum of "+m.members+", and here it is one of "+q.members, noPart, n.foreignAdvice())
	case m.name != plain(n.name):
		x.say(check, driver.Refuse, "it bears the name of node "+m.name, "two of the nodes are one server", n.twinAdvice())
	case left > 0 && q.restarted(m):
		x.say(check, driver.Caution, fmt.Sprintf("the server has restarted since the last grant here, and abstains for %s more", left), harm, "wait")
	case left > 0:
		x.say(check, driver.Caution, fmt.Sprintf("it abstains for %s more", left), harm, "wait")
	case q.restarted(m):
		x.fine(check, "of this quorum; the server has restarted since the last grant here, long enough ago to grant again")
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
