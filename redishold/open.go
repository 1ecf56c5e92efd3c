package redishold

import (
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// Options are for Open and NewDriver; nil means all defaults.
type Options struct {
	// Namespace separates applications that share a server: locks of different namespaces have nothing to do with each
	// other. Every key and channel begins with it. 1 to 64 of the signs A-Z a-z 0-9 . _ : -; default "holdlock". With
	// PlainKeys it is only for what stands beside the plain keys.
	Namespace string

	// PlainKeys makes a lock exclude other programs that lock the Redis key of the same name in the usual way: SET key value
	// NX PX, and compare and delete. The name is used as it is, LOCK or LOCK/KEY, without the namespace. Those programs issue
	// no fencing tokens, so there are none; a lock that they free wakes nobody, so waiters poll. All programs of holdlock on
	// these locks need this option.
	PlainKeys bool

	// Replicas is how many replicas have to confirm a grant or a renewal before it counts (WAIT). It makes it less likely
	// that a failover forgets a lock, and not impossible, because a replica that has confirmed nothing can be promoted.
	// Default 0: none.
	Replicas int

	// Failover says that a replica can take over behind the address of a plain client, as managed services do. It changes
	// Traits only. Sentinel and Cluster clients are known to.
	Failover bool

	// Location replaces what messages call this store, for a client from whose options it cannot be told, such as one for
	// Sentinel. It should name everything that decides whether two programs exclude each other, and no secrets.
	Location string

	// Sentinel says how the sentinels of a client are reached, so that Diagnose can look at them. Default: it does not.
	Sentinel *SentinelOptions

	// Logger gets a line when the rights of the user do not allow hints, so that waiters poll. Default: Client.Logger.
	Logger *slog.Logger

	// Client are the settings of the client. NewDriver uses the Logger alone.
	Client holdlock.ClientOptions
}

// Open returns a client on a Redis client for one server, Sentinel or a Cluster; a Ring is refused. It connects to nothing
// yet. The Redis client stays yours: close it after Client.Shutdown. Give it to nothing else that can take all of its
// connections for long, or renewals wait for one.
func Open(client redis.UniversalClient, opts *Options) (*holdlock.Client, error) {
	if opts == nil {
		opts = &Options{}
	}
	d, err := NewDriver(client, opts)
	if err != nil {
		return nil, err
	}
	return newClient(d, &opts.Client)
}

func (o *Options) logger() *slog.Logger {
	switch {
	case o.Logger != nil:
		return o.Logger
	case o.Client.Logger != nil:
		return o.Client.Logger
	default:
		return slog.New(slog.DiscardHandler)
	}
}

// QuorumOptions are for OpenQuorum, NewQuorumDriver and InitQuorum; nil means all defaults. All programs have to agree on
// Namespace, MaxTTL and the names of the nodes.
type QuorumOptions struct {
	// Namespace separates applications, as in Options.
	Namespace string

	// MaxTTL is the longest TTL and MinHold of a lock, and how long a node abstains after it has lost its data. Default 30 s.
	MaxTTL time.Duration

	// NodeTimeout is how long one node gets for one call; see quorumhold.Options. Default 1 s.
	NodeTimeout time.Duration

	// AllowWeak allows one node, two nodes, and even numbers.
	AllowWeak bool

	// Durable says that every node is set to appendfsync always and noeviction, so that a restart forgets nothing and it need
	// not abstain after one. It still does if its data is gone. All programs have to agree on it, which is not checked.
	Durable bool

	// AllowReplicas accepts nodes that have replicas, for backups. Nothing may ever promote one of them.
	AllowReplicas bool

	// Names are what the nodes are called, in the order of the clients. Programs know by them whether they mean the same
	// quorum. Default: address and database number, so all programs have to write the addresses in the same way.
	Names []string

	// Logger is as in Options.
	Logger *slog.Logger

	// Client are the settings of the client. NewQuorumDriver uses the Logger alone.
	Client holdlock.ClientOptions
}

// OpenQuorum returns a client on a majority of independent servers: Redlock, with fencing tokens. The clients must be for
// single servers; see package quorumhold for what it promises. It connects to nothing yet. A server that stands in the list
// twice, is another's replica, has replicas, or belongs to another quorum is refused by name when it is first used. The
// Redis clients stay yours.
func OpenQuorum(clients []redis.UniversalClient, opts *QuorumOptions) (*holdlock.Client, error) {
	if opts == nil {
		opts = &QuorumOptions{}
	}
	d, err := NewQuorumDriver(clients, opts)
	if err != nil {
		return nil, err
	}
	return newClient(d, &opts.Client)
}

func (o *QuorumOptions) logger() *slog.Logger {
	return (&Options{Logger: o.Logger, Client: o.Client}).logger()
}

// newClient returns a client on a driver that is nobody else's.
func newClient(d driver.Driver, opts *holdlock.ClientOptions) (*holdlock.Client, error) {
	c, err := holdlock.NewClient(d, opts)
	if err != nil {
		_ = d.Close()
	}
	return c, err
}
