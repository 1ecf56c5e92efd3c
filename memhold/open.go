package memhold

import "github.com/holdlock/holdlock"

// Options are for Open and NewDriver; nil means all defaults.
type Options struct {
	// Store is where the terms are kept. Defaults to a new store, which nobody else can reach.
	Store *Store
	// Client are the settings of the client. NewDriver does not use them.
	Client holdlock.ClientOptions
}

// Open returns a client on opts.Store. Several clients on one store behave like several processes on one server.
func Open(opts *Options) (*holdlock.Client, error) {
	if opts == nil {
		opts = &Options{}
	}
	return holdlock.NewClient(NewDriver(opts), &opts.Client)
}
