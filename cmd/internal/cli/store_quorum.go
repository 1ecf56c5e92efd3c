package cli

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/quorumhold"
	"github.com/holdlock/holdlock/redishold"
)

// Several Redis URLs are the nodes of a quorum. On the command line each has a --store of its own; in $HOLDLOCK_STORE they
// stand one after the other with spaces between. A space inside of a password does no harm: a new URL begins only where a
// scheme of Redis follows the space.

var nextURL = regexp.MustCompile(`\s+(rediss?(?:\+[a-z]+)?://)`)

// stores are where locks live: one URL or none, or the nodes of a quorum.
type stores struct {
	URLs   []string      `json:"urls"`
	MaxTTL time.Duration `json:"max_ttl"`
	blank  bool          // one of them is empty
}

func (g *globals) stores() stores {
	s := stores{MaxTTL: g.QuorumMaxTTL}
	for _, text := range g.Store {
		s.blank = s.blank || strings.TrimSpace(text) == ""
		for url := range strings.SplitSeq(nextURL.ReplaceAllString(strings.TrimSpace(text), "\n$1"), "\n") {
			if url != "" {
				s.URLs = append(s.URLs, url)
			}
		}
	}
	return s
}

// open opens the driver of one store, or of a quorum.
func (s stores) open(ctx context.Context, namespace string, timeout time.Duration) (driver.Driver, error) {
	if s.blank { // as of a variable that is not set: another store than was meant would let two in
		return nil, usage("--store is empty; leave it out for the file of this user, or name a store")
	}
	switch len(s.URLs) {
	case 0:
		return openStoreIn(ctx, "", namespace, timeout)
	case 1:
		return openStoreIn(ctx, s.URLs[0], namespace, timeout)
	}
	clients, err := s.clients(timeout)
	if err != nil {
		return nil, err
	}
	d, err := redishold.NewQuorumDriver(clients, s.options(namespace, timeout))
	if err != nil {
		closeAll(clients)
		return nil, usage(err.Error())
	}
	return &quorumStore{d, clients}, nil
}

// options gives each node a fifth of what a call may take, since the first one gets five times as long; see quorumhold.Options.
func (s stores) options(namespace string, timeout time.Duration) *redishold.QuorumOptions {
	return &redishold.QuorumOptions{Namespace: namespace, MaxTTL: s.MaxTTL, NodeTimeout: max(time.Second, timeout/5)}
}

// clients makes a Redis client for each node.
func (s stores) clients(timeout time.Duration) (clients []redis.UniversalClient, err error) {
	defer func() {
		if err != nil {
			closeAll(clients)
		}
	}()
	redis.SetLogger(silent{})
	for i, url := range s.URLs {
		scheme, rest, ok := strings.Cut(url, ":")
		if !ok || scheme != "redis" && scheme != "rediss" {
			return clients, usage(fmt.Sprintf("store %d of %d: several stores make a quorum, whose nodes have to be single Redis "+
				"servers: redis:// or rediss://", i+1, len(s.URLs)))
		}
		u, err := parseRedis(scheme, rest, os.Getenv)
		if err != nil {
			return clients, usage(fmt.Sprintf("store %d of %d: %s: %v", i+1, len(s.URLs), scheme, err))
		}
		if u.plainKeys || u.replicas > 0 {
			return clients, usage(fmt.Sprintf("store %d of %d: plain_keys and replicas are not for the nodes of a quorum", i+1, len(s.URLs)))
		}
		clients = append(clients, u.client(timeout))
	}
	return clients, nil
}

func closeAll(clients []redis.UniversalClient) {
	for _, c := range clients {
		_ = c.Close()
	}
}

// quorumStore closes the connections that open has made.
type quorumStore struct {
	*quorumhold.Driver
	clients []redis.UniversalClient
}

// Close implements driver.Driver.
func (s *quorumStore) Close() error {
	err := s.Driver.Close()
	closeAll(s.clients)
	return err
}

type quorumCmd struct {
	Init quorumInitCmd `cmd:"" help:"Declare a new quorum fresh, so that its nodes need not abstain before their first grant."`
}

type quorumInitCmd struct{}

// Run declares a quorum new.
func (*quorumInitCmd) Run(g *globals) error {
	s := g.stores()
	if len(s.URLs) < 2 {
		return usage("a quorum has several stores: give --store for each node")
	}
	clients, err := s.clients(g.Timeout)
	if err != nil {
		return err
	}
	defer closeAll(clients)
	ctx, cancel := context.WithTimeout(context.Background(), g.Timeout)
	defer cancel()
	if err := redishold.InitQuorum(ctx, clients, s.options(g.Namespace, g.Timeout)); err != nil {
		return err
	}
	if g.JSON {
		_, err = fmt.Fprintf(g.stdout, "{\"event\":\"quorum\",\"nodes\":%d}\n", len(clients))
	} else {
		_, err = fmt.Fprintf(g.stdout, "the quorum of %d nodes is ready; a node that restarts abstains for %s\n", len(clients), g.QuorumMaxTTL)
	}
	return err
}
