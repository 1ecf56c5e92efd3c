package sqlitehold

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A Driver is one process's access to the file. It implements driver.Driver, BatchRenewer, Lister, Breaker and Journal, and
// on Linux Waiter. It is safe for concurrent use.
//
// Calls that change something run one at a time within the process, and one at a time on the machine.
type Driver struct {
	env
	path      string                                 // absolute, without symbolic links
	files     atomic.Pointer[map[string]os.FileInfo] // by path: the file, and once we have written, its log and index
	namespace string
	durable   bool
	volatile  bool // the file system is lost on reboot

	gate   *gate
	writer *writer // used inside gate.do only
	reader reader

	watches   watches
	collector collector

	closing sync.Once
	closed  error
}

var _ interface {
	driver.Driver
	driver.BatchRenewer
	driver.Lister
	driver.Breaker
	driver.Journal
} = (*Driver)(nil)

// NewDriver opens the file at path, which Open does for users of locks. A file that does not exist, or is empty, is made
// ready, with mode 0600, in a directory of mode 0700 if that has to be made too; further directories are made for DefaultPath alone. What exists is never given another mode.
//
// It is an error, and nothing is written, if the file is a directory, is not a database, is the database of another
// application or of a newer release of this one, cannot be written, or is on a network file system.
func NewDriver(path string, opts *Options) (*Driver, error) {
	e, err := machine()
	if err != nil {
		return nil, err
	}
	return newDriver(path, opts, e)
}

func newDriver(path string, opts *Options, e env) (*Driver, error) {
	if opts == nil {
		opts = &Options{}
	}
	if err := opts.check(); err != nil {
		return nil, err
	}
	path, missing, err := prepareFile(path, opts.Durable, &e)
	if err != nil {
		return nil, err
	}
	d := &Driver{env: e, path: path, namespace: opts.Namespace, durable: opts.Durable, gate: newGate(path)}
	d.volatile = e.isVolatile(path)
	ctx, cancel := context.WithTimeout(context.Background(), e.openBudget)
	defer cancel()
	mode := "rw"
	if missing {
		mode = "rwc"
	}
	if err := d.gate.do(ctx, "open", "", func() error { return d.open(mode) }); err != nil {
		return nil, err
	}
	d.collector.start(e.now())
	return d, nil
}

// open connects and makes the file ready. If it fails it leaves nothing open, and files that are not ours as they were.
func (d *Driver) open(mode string) (err error) {
	_, noLog := os.Stat(d.path + "-wal")
	w, err := connect(d.path, mode, d.durable)
	if err != nil {
		return err
	}
	defer func() {
		switch {
		case err == nil:
		case noLog == nil:
			_ = w.closeKeepingLog(d.path, d.durable)
		default:
			_ = w.close()
		}
	}()
	if err := w.setUp(d.path); err != nil {
		return err
	}
	switch ro, err := w.readOnly(); {
	case err != nil:
		return err
	case ro:
		return errors.New("this process may read the file but not write it; check its owner and mode")
	}
	if err := d.noteFiles(d.path); err != nil {
		return err
	}
	d.writer = w
	return nil
}

// Traits implements driver.Driver.
func (d *Driver) Traits() driver.Traits {
	t := driver.Traits{
		Name:     "sqlite",
		Location: "sqlite:" + d.path,
		Scope:    driver.Host,
		Fencing:  driver.WhileDataSurvives,
		Forgets:  driver.NeverAlone,
		Clock:    storeClock,
		Records:  driver.SyncedRecords,
		MinTTL:   100 * time.Millisecond,
		Prompt:   true,             // all waiting is done in gate.retry
		TTLStep:  time.Millisecond, // for the reading of clocks; expiry itself is kept to the nanosecond
	}
	if d.namespace != "" {
		t.Location += fmt.Sprintf(", namespace %q", d.namespace)
	}
	if d.durable {
		t.Fencing = driver.Durable
	}
	if d.volatile {
		t.Records = driver.WhileItLasts
	}
	return t
}

// call runs f on the connection, once it is free and the file is not locked. See gate.do.
func (d *Driver) call(ctx context.Context, verb, key string, f func(*writer) error) error {
	return d.gate.do(ctx, verb, key, func() error { return f(d.writer) })
}

var errReplaced = errors.New("it has been removed or replaced since it was opened; " +
	"processes that opened it before and after do not exclude each other: restart this one")

// noteFiles remembers which files are ours.
func (d *Driver) noteFiles(paths ...string) error {
	files := make(map[string]os.FileInfo, len(paths))
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		files[path] = info
	}
	d.files.Store(&files)
	return nil
}

// wrote is called on the connection after it has written: as long as it is open now, nobody but an operator removes the
// log and its index.
func (d *Driver) wrote() {
	if len(*d.files.Load()) == 1 {
		_ = d.noteFiles(d.path, d.path+"-wal", d.path+"-shm") // or after the next one
	}
}

// inPlace fails if one of the files is not at its path any more, so that a new term would exclude nobody who comes later.
// The engine looks only at what it has open.
func (d *Driver) inPlace(verb, key string) error {
	for path, was := range *d.files.Load() {
		info, err := os.Stat(path)
		// Any other error says nothing about the file: the process may have given up the right to look.
		if (err == nil && !os.SameFile(info, was)) || errors.Is(err, fs.ErrNotExist) {
			return d.gate.unapplied(verb, key, "", fmt.Errorf("%s: %w", path, errReplaced))
		}
	}
	return nil
}

// Close implements driver.Driver. The log stays beside the file.
func (d *Driver) Close() error {
	d.closing.Do(func() {
		d.closeWatches()
		d.gate.shut()
		d.reader.close()
		d.closed = d.writer.closeKeepingLog(d.path, d.durable)
	})
	return d.closed
}
