package sqlitehold

import "github.com/holdlock/holdlock"

// Options are for Open and NewDriver; nil means all defaults.
type Options struct {
	// Namespace separates applications that share a file: keys of different namespaces have nothing to do with each other.
	// At most 255 bytes of UTF-8. Defaults to the empty namespace, which is one like any other.
	Namespace string

	// Durable has every step synced to disk before it is answered, which costs milliseconds a step instead of microseconds.
	// Then tokens rise over a power failure even if the clock is wrong afterwards (Traits.Fencing is Durable), and a file
	// system in memory is refused. It holds for the steps of this driver: programs that share a file should set it alike.
	// Without it a power failure can take back the last steps, which frees no key that
	// anybody still holds, because the holders are gone as well.
	Durable bool

	// Client are the settings of the client. NewDriver does not use them.
	Client holdlock.ClientOptions
}

// Open opens the store in the file at path, or in the user's own file if path is empty (see DefaultPath), and returns a
// client on it. See NewDriver for what is made and what is refused.
func Open(path string, opts *Options) (*holdlock.Client, error) {
	if path == "" {
		var err error
		if path, err = DefaultPath(); err != nil {
			return nil, err
		}
	}
	if opts == nil {
		opts = &Options{}
	}
	d, err := NewDriver(path, opts)
	if err != nil {
		return nil, err
	}
	c, err := holdlock.NewClient(d, &opts.Client)
	if err != nil {
		_ = d.Close()
	}
	return c, err
}
