package quorumhold

import (
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// Options are for Open and NewDriver; nil means all defaults.
type Options struct {
	// MaxTTL is the longest TTL, and MinHold, that a lock may have. It is a property of the quorum: nodes that have lost their
	// data abstain for so long, so all clients have to agree on it. Default 30 s.
	MaxTTL time.Duration

	// NodeTimeout is how long one node gets for one call. It does not bound the calls of a quorum: these end when a majority
	// has answered, when a majority can no longer be reached, or with their own budget. As long as a node has not answered any call it
	// gets five times as long, to be connected to; and more than once, too, when it is asked again after it did not answer. Choose at
	// least four times the way there and back. Default 1 s.
	NodeTimeout time.Duration

	// AllowWeak allows one node, two nodes, and even numbers. An even number needs one answer more than the odd one below it
	// and survives no more failures; two nodes survive none.
	AllowWeak bool

	// Names are what messages call the nodes, in the order of the drivers. Default: Traits.Location of each.
	Names []string

	// Location replaces what messages call the quorum.
	Location string

	// Abstaining says that a node which has lost its data refuses to grant for MaxTTL. It changes Traits only; redishold's
	// OpenQuorum sets it.
	Abstaining bool

	// Client are the settings of the client. NewDriver does not use them.
	Client holdlock.ClientOptions
}

// Open returns a client on a majority of nodes, which are stores that have nothing to do with each other: no two of them
// may be one server, or a server and its replica. Every program has to name the same nodes. The client owns the drivers
// and closes them.
//
// Over Redis use redishold.OpenQuorum, which also checks all that and makes nodes abstain that have lost their data.
func Open(nodes []driver.Driver, opts *Options) (*holdlock.Client, error) {
	if opts == nil {
		opts = &Options{}
	}
	d, err := NewDriver(nodes, opts)
	if err != nil {
		return nil, err
	}
	return holdlock.NewClient(d, &opts.Client)
}
