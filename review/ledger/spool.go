package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A spool is a directory with a file for each recorder that has ended while its store was away. Whoever reaches the store next sends
// what the files say and removes them. Two programs may send the same file: the store knows its batches by their numbers, so
// they count once, under the same condition as any batch that is sent twice (see Recorder).

const (
	spoolSuffix = ".usage"
	maxSpooled  = 2000 // files; a store that is away for longer is known to be
	spoolAtOnce = 200  // that one flush sends
)

// spooledBatch is the form in a file. Records are in the form that they have in the store.
type spooledBatch struct {
	Version  int               `json:"v"`
	Day      driver.Day        `json:"day"`
	Number   uint32            `json:"n"`
	Usage    map[string][]byte `json:"usage,omitempty"`
	Declared map[string][]byte `json:"declared,omitempty"`
}

// spool writes what has not been sent.
func (r *Recorder) spool() error {
	r.flushing.Lock()
	defer r.flushing.Unlock()
	if len(r.unsent) == 0 {
		return nil
	}
	if err := os.MkdirAll(r.opts.Spool, 0o700); err != nil {
		return fmt.Errorf("what locks have done cannot be kept until the store is back: %w", err)
	}
	if names := r.spooled(); len(names) >= maxSpooled {
		return fmt.Errorf("what locks have done is not kept until the store is back: %s has %d files already", r.opts.Spool, len(names))
	}
	var out []spooledBatch
	for _, b := range r.unsent {
		w := spooledBatch{version, b.day, b.number, map[string][]byte{}, map[string][]byte{}}
		for lock, u := range b.usage {
			w.Usage[lock] = encode(u, nil)
		}
		for lock, d := range b.declared {
			w.Declared[lock] = encodeDeclarations(d)
		}
		out = append(out, w)
	}
	content, err := json.Marshal(out)
	if err != nil {
		return err
	}
	// Under another name first: nobody must read half of it.
	pattern := fmt.Sprintf("new-%020d-*", time.Now().UnixNano())
	f, err := os.CreateTemp(r.opts.Spool, pattern)
	for try := 0; errors.Is(err, fs.ErrNotExist) && try < 10; try++ { // another program has sent all there was, and tidied up
		if err = os.MkdirAll(r.opts.Spool, 0o700); err == nil {
			f, err = os.CreateTemp(r.opts.Spool, pattern)
		}
	}
	if err != nil {
		return fmt.Errorf("what locks have done cannot be kept until the store is back: %w", err)
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), f.Name()+spoolSuffix)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("what locks have done cannot be kept until the store is back: %w", err)
	}
	r.unsent = nil
	return nil
}

// spooled returns the names of the files, oldest first: the store remembers the last numbers only.
func (r *Recorder) spooled() []string {
	names, _ := filepath.Glob(filepath.Join(r.opts.Spool, "new-*"+spoolSuffix)) // the pattern is fine
	return names
}

// sendSpooled sends what others have left. Called with flushing held, after the store has answered, or with nothing to ask it.
func (r *Recorder) sendSpooled(ctx context.Context) error {
	if r.opts.Spool == "" {
		return nil
	}
	names := r.spooled()
	for _, name := range names[:min(len(names), spoolAtOnce)] {
		content, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) { // another program was faster
			continue
		}
		var batches []*batch
		if err == nil {
			batches, err = unspool(content)
		}
		if err != nil { // it is kept for a newer release, or for whoever finds out, but not for ever
			r.warn("of "+name, err)
			if info, err := os.Stat(name); err == nil && time.Since(info.ModTime()) > driver.RecordTTL {
				_ = os.Remove(name)
			}
			continue
		}
		for _, b := range batches {
			if err := r.sendBatch(ctx, b); err != nil {
				return err
			}
		}
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s has been sent and cannot be removed: %w", name, err)
		}
	}
	return nil
}

func unspool(content []byte) (batches []*batch, err error) {
	var in []spooledBatch
	if err := json.Unmarshal(content, &in); err != nil {
		return nil, ErrDamaged
	}
	for _, w := range in {
		if w.Version > version {
			return nil, ErrNewer
		}
		b := &batch{day: w.Day, number: w.Number, usage: map[string]*Usage{}, declared: map[string][]Declaration{}}
		for lock, record := range w.Usage {
			if b.usage[lock], _, err = decode(record); err != nil {
				return nil, err
			}
		}
		for lock, record := range w.Declared {
			if b.declared[lock], err = decodeDeclarations(record); err != nil {
				return nil, err
			}
		}
		batches = append(batches, b)
	}
	return batches, nil
}
