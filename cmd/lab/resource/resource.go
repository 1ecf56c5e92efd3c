package resource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/holdlock/holdlock/fence"
	"github.com/holdlock/holdlock/fence/fencehttp"
	"github.com/holdlock/holdlock/internal/bootclock"
)

// A Resource is a service on a loopback port, with its log in a file. It is safe for concurrent use.
type Resource struct {
	URL string

	server *http.Server
	served chan struct{}

	mu    sync.Mutex
	file  *os.File
	seq   int64
	tally tally
	marks fence.Memory
	err   error // of writing the log
}

// Open starts a resource whose log is a new file. A fenced one refuses requests without a token or with one that is
// smaller than any it has seen for the job.
func Open(path string, fenced bool) (*Resource, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	r := &Resource{URL: "http://" + l.Addr().String(), file: file, served: make(chan struct{})}
	// The request is logged in the same step in which its token is looked at: by the marks if there is a fence.
	var handler http.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	if fenced {
		handler = fencehttp.Handler(handler, (*logMarks)(r), false)
	} else {
		handler = http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.log(entryOf(req.Context()))
		})
	}
	r.server = &http.Server{Handler: read(handler), ReadHeaderTimeout: time.Minute}
	go func() {
		defer close(r.served)
		_ = r.server.Serve(l) // ends when it is closed
	}()
	return r, nil
}

type contextKey struct{}

func entryOf(ctx context.Context) Entry {
	e, _ := ctx.Value(contextKey{}).(Entry)
	return e
}

// read makes an entry of a request.
func read(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		q := req.URL.Query()
		token, err1 := strconv.ParseUint(q.Get("token"), 10, 64)
		until, err2 := strconv.ParseInt(q.Get("until"), 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		e := Entry{
			What: What(req.URL.Path[1:]), Job: q.Get("job"), Worker: q.Get("worker"), Ended: q.Get("ended"),
			Token: token, Until: time.Duration(until),
		}
		next.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), contextKey{}, e)))
	})
}

// Values are the query of a request.
func (e *Entry) Values() string {
	return fmt.Sprintf("/%s?job=%s&worker=%s&token=%d&until=%d&ended=%s", e.What, e.Job, e.Worker, e.Token, int64(e.Until), e.Ended)
}

// logMarks is a fence that logs what it has decided before anybody else can come in between.
type logMarks Resource

// Mark implements fence.Marks.
func (m *logMarks) Mark(ctx context.Context, c fence.Claim) error {
	r, e := (*Resource)(m), entryOf(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.What == End { // it reads and writes nothing
		r.log(e)
		return nil
	}
	err := r.marks.Mark(ctx, c)
	var stale *fence.StaleError
	if errors.As(err, &stale) {
		e.Refused, e.Seen = true, uint64(stale.Seen)
	}
	r.log(e)
	return err
}

// Announce logs that there is a job to be run.
func (r *Resource) Announce(job string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log(Entry{What: Job, Job: job})
}

// Import logs what a database has logged by itself, in the transactions of the jobs.
func (r *Resource) Import(e Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logAt(e)
}

// log is called with mu held.
func (r *Resource) log(e Entry) {
	e.At = bootclock.Now()
	r.logAt(e)
}

func (r *Resource) logAt(e Entry) {
	r.seq++
	e.Seq = r.seq
	b, err := json.Marshal(e)
	if err == nil {
		_, err = r.file.Write(append(b, '\n'))
	}
	r.err = errors.Join(r.err, err)
	r.tally.add(e)
}

// Close ends the service and returns its counts.
func (r *Resource) Close() (Counts, error) {
	err := r.server.Close()
	<-r.served
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tally.counts, errors.Join(err, r.err, r.file.Close())
}
