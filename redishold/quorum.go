package redishold

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/quorumhold"
)

// A server that is a node of a quorum bears a mark, the key NAMESPACE:q:quorum, with an expiry of 400 days that grants push
// on, once a day: a quorum that is used once a year keeps it, and one that is no more leaves nothing for ever. It says which
// quorum the node belongs to, under which name, in which run of the server it was seen last, and since when all grants are
// remembered:
//
//	1
//	print     of the members and MaxTTL, 32 hex digits
//	run_id    of the server
//	since     µs since 1970, by the server's clock; 0 if the quorum was declared new in this run
//	armed     when the mark was written
//	name      of this node
//	members   for people
//
// Every script that grants or raises a token first looks at the mark, in the same step, so no node depends on its clients
// for this. It refuses if the quorum is another one, or the name is (the server stands in the list twice, or is a replica of
// another node). A mark that is missing means that the node has no memory of what was before; a run_id that is not the one
// noted means that it has restarted. In both cases the node abstains until every term that it may have granted before is
// over. Renewals look at the first two only: a term that stands was not forgotten.

//go:embed lua/gate.lua
var luaGate string

// quorum is what the nodes of one driver have in common.
type quorum struct {
	names   []string
	print   string
	members string
	span    time.Duration // how long a node abstains
	ns      string
	opts    *QuorumOptions

	mu   sync.Mutex
	runs map[string]string // names by run_id
}

// NewQuorumDriver returns a driver on a majority of servers, for tests and combinators; programs use OpenQuorum. Close does
// not close the Redis clients.
func NewQuorumDriver(clients []redis.UniversalClient, opts *QuorumOptions) (*quorumhold.Driver, error) {
	q, nodes, err := quorumNodes(clients, opts)
	if err != nil {
		return nil, err
	}
	drivers := make([]driver.Driver, len(nodes))
	for i, n := range nodes {
		drivers[i] = n
	}
	return quorumhold.NewDriver(drivers, &quorumhold.Options{
		MaxTTL: q.opts.MaxTTL, NodeTimeout: q.opts.NodeTimeout, AllowWeak: q.opts.AllowWeak, Names: q.names, Abstaining: true,
		Location: fmt.Sprintf("redis quorum of %d: %s, namespace %s", len(nodes), strings.Join(slices.Sorted(slices.Values(q.names)), " "),
			strings.TrimSuffix(q.ns, ":q")),
	})
}

func quorumNodes(clients []redis.UniversalClient, opts *QuorumOptions) (*quorum, []*quorumNode, error) {
	o := QuorumOptions{}
	if opts != nil {
		o = *opts
	}
	if o.MaxTTL == 0 {
		o.MaxTTL = 30 * time.Second
	}
	if o.Namespace == "" {
		o.Namespace = "holdlock"
	}
	q := &quorum{ns: o.Namespace + ":q", opts: &o, runs: map[string]string{}, span: o.MaxTTL + o.MaxTTL/50 + 10*time.Millisecond}
	for i, c := range clients {
		one, ok := c.(*redis.Client)
		if !ok || one == nil || one.Options().Addr == "FailoverClient" {
			return nil, nil, fmt.Errorf("redishold: node %d of the quorum is a %T: the nodes have to be single servers, "+
				"because one that a replica can replace may forget what it has granted", i+1, c)
		}
		q.names = append(q.names, fmt.Sprintf("%s/%d", one.Options().Addr, one.Options().DB))
	}
	if len(o.Names) > 0 {
		if len(o.Names) != len(clients) {
			return nil, nil, fmt.Errorf("redishold: %d names for %d nodes", len(o.Names), len(clients))
		}
		q.names = o.Names
	}
	sorted := slices.Sorted(slices.Values(q.names))
	if twice := len(sorted) - len(slices.Compact(slices.Clone(sorted))); twice > 0 {
		return nil, nil, fmt.Errorf("redishold: a node of the quorum is named twice: %s", strings.Join(sorted, " "))
	}
	sum := sha256.Sum256([]byte(strings.Join(sorted, "\n") + "\n" + o.MaxTTL.String()))
	q.print = hex.EncodeToString(sum[:16])
	q.members = plain(fmt.Sprintf("%d nodes with MaxTTL %s: %s", len(sorted), o.MaxTTL, strings.Join(sorted, " ")))
	var nodes []*quorumNode
	for i, c := range clients {
		n := &quorumNode{quorum: q, name: q.names[i], client: c.(*redis.Client)}
		for _, part := range []struct {
			driver **Driver
			gate   string
		}{{&n.Driver, ""}, {&n.granting, n.gate(true)}, {&n.renewing, n.gate(false)}} {
			d, err := NewDriver(c, &Options{Namespace: q.ns, Logger: o.logger(), Location: q.names[i]})
			if err != nil {
				return nil, nil, err
			}
			d.traits.Records = driver.NoRecords // a majority of records is none, so nothing asks for them
			if part.gate != "" {
				d.scripts = newScripts(false, d.channel(), d.alive(), part.gate)
			}
			if n.Driver != nil {
				d.shared = n.shared // one way to the server for all
			}
			*part.driver = d
		}
		nodes = append(nodes, n)
	}
	return q, nodes, nil
}

// plain keeps what can stand in a mark and between the quotes of Lua.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return '?'
		}
		return r
	}, s)
}

func (n *quorumNode) mark() string { return n.quorum.ns + ":quorum" }

func (n *quorumNode) gate(strict bool) string {
	q := n.quorum
	return fmt.Sprintf("local MARK, NAME, PRINT, MEMBERS, KEEP, SPAN, DURABLE, STRICT = \"%s\", \"%s\", \"%s\", \"%s\", %d, %d, %t, %t\n",
		n.mark(), plain(n.name), q.print, q.members, keepMark.Milliseconds(), q.span.Microseconds(), q.opts.Durable, strict) + luaGate
}

// A quorumNode is one server of a quorum. What is not written out here goes to the server as it is.
type quorumNode struct {
	*Driver
	granting *Driver // its scripts look at the mark, and abstain
	renewing *Driver // its scripts look at the mark
	quorum   *quorum
	name     string
	client   *redis.Client

	mu    sync.Mutex
	known time.Time // when the server was last asked who it is
}

// Acquire implements driver.Driver.
func (n *quorumNode) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	if err := n.identified(ctx); err != nil {
		return driver.Grant{}, failure("acquire", req.Ref.Key, err)
	}
	g, err := n.granting.Acquire(ctx, req)
	return g, n.explain(err)
}

// Renew implements driver.Driver.
func (n *quorumNode) Renew(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
	res := n.RenewBatch(ctx, []*driver.RenewRequest{req})
	return res[0].Grant, res[0].Err
}

// RenewBatch implements driver.BatchRenewer. An order to raise the token counts as a vote, so an abstaining node refuses it.
func (n *quorumNode) RenewBatch(ctx context.Context, reqs []*driver.RenewRequest) []driver.RenewResult {
	results := make([]driver.RenewResult, len(reqs))
	for _, raise := range []bool{false, true} {
		var some []*driver.RenewRequest
		var which []int
		for i, r := range reqs {
			if (r.Floor != 0) == raise {
				some, which = append(some, r), append(which, i)
			}
		}
		if len(some) == 0 {
			continue
		}
		d := n.renewing
		if raise {
			d = n.granting
		}
		for k, res := range d.RenewBatch(ctx, some) {
			res.Err = n.explain(res.Err)
			results[which[k]] = res
		}
	}
	return results
}

// Close implements driver.Driver.
func (n *quorumNode) Close() error {
	return errors.Join(n.Driver.Close(), n.granting.Close(), n.renewing.Close())
}

// explain turns what the gate answers into errors of the contract.
func (n *quorumNode) explain(err error) error {
	if err == nil {
		return nil
	}
	var reply redis.Error
	if !errors.As(err, &reply) {
		return err
	}
	code, rest, _ := strings.Cut(reply.Error(), " ")
	switch code {
	case "QUORUMABSTAINS":
		us, _ := strconv.ParseInt(rest, 10, 64)
		return fmt.Errorf("it has restarted, lost its data, or is new, and grants nothing for %s (%w)",
			(time.Duration(us) * time.Microsecond).Round(time.Millisecond), driver.ErrAbstains)
	case "QUORUMMEMBERS":
		return fmt.Errorf("%w (%w)", n.foreignMark(rest), driver.ErrNotApplied)
	case "QUORUMTWIN":
		return fmt.Errorf("%w (%w)", n.twinMark(rest), driver.ErrNotApplied)
	case "QUORUMVERSION":
		return fmt.Errorf("%w (%w)", n.newerMark(), driver.ErrNotApplied)
	case "QUORUMDAMAGED":
		return fmt.Errorf("%w (%w)", n.damagedMark(), driver.ErrNotApplied)
	}
	return err
}

// identifyAgain is how often a server is asked who it is, besides the first time.
const identifyAgain = time.Minute

// identified makes sure that the server is nobody's replica, has none, and is not another node as well.
func (n *quorumNode) identified(ctx context.Context) error {
	n.mu.Lock()
	fresh := time.Since(n.known) < identifyAgain && !n.known.IsZero()
	n.mu.Unlock()
	if fresh {
		return nil
	}
	who, err := n.identify(ctx)
	if err != nil {
		return err
	}
	if err := n.quorum.admit(n.name, who); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known = time.Now()
	return nil
}

// identity is what a server says about itself.
type identity struct {
	run      string
	replicas int
	primary  string // whose replica it is, or empty
}

func (n *quorumNode) identify(ctx context.Context) (who identity, err error) {
	text, err := bounded(ctx, n.Driver, func(ctx context.Context) (string, error) {
		var server, replication *redis.StringCmd
		_, err := n.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			server, replication = p.Info(ctx, "server"), p.Info(ctx, "replication")
			return nil
		})
		if err != nil {
			return "", err
		}
		return server.Val() + "\n" + replication.Val(), nil
	})
	if err != nil {
		return who, fmt.Errorf("asking who it is: %w (%w)", err, driver.ErrNotApplied)
	}
	facts := fields(text)
	who.run = facts["run_id"]
	who.replicas, _ = strconv.Atoi(facts["connected_slaves"])
	if facts["role"] == "slave" {
		who.primary = facts["master_host"] + ":" + facts["master_port"]
	}
	if who.run == "" {
		return who, errors.New("asking who it is: INFO shows no run_id")
	}
	return who, nil
}

// admit refuses a server that cannot be a node.
func (q *quorum) admit(name string, who identity) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch twin := q.runs[who.run]; {
	case twin != "" && twin != name:
		return fmt.Errorf("%w: it and node %s are one server (run_id %s) (%w)", quorumhold.ErrMismatch, twin, who.run, driver.ErrNotApplied)
	case who.primary != "":
		return fmt.Errorf("%w: it is a replica of %s (%w)", quorumhold.ErrMismatch, who.primary, driver.ErrNotApplied)
	case who.replicas > 0 && !q.opts.AllowReplicas:
		return fmt.Errorf("%w: it has %d replicas, and one that takes over may have forgotten a grant; take them away, "+
			"or set AllowReplicas if nothing ever promotes them (%w)", quorumhold.ErrMismatch, who.replicas, driver.ErrNotApplied)
	}
	for run, n := range q.runs {
		if n == name {
			delete(q.runs, run) // it has restarted
		}
	}
	q.runs[who.run] = name
	return nil
}
