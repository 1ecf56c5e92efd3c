package redishold

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// lines is a log that can be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

// A user who may not subscribe any more is told of once each time, and the process listens again when he may.
func TestRightToSubscribeTakenAway(t *testing.T) {
	t.Parallel()
	var log lines
	r, d, _ := restricted(t, documentedACL(t), &Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	d.hub.barredFor = 100 * time.Millisecond
	heard := make(chan driver.Push, 100)
	if err := d.Listen(t.Context(), func(p driver.Push) { heard <- p }); err != nil {
		t.Fatal(err)
	}
	channels := func() string { return r.Do(t, "PUBSUB", "CHANNELS", "holdlock:*") }
	for n := 1; n <= 2; n++ {
		r.Do(t, "ACL", "SETUSER", "locks", "resetchannels") // cuts it off
		testenv.Eventually(t, "it is told", func() bool { return log.count("may not subscribe") == n })
		for len(heard) > 0 {
			<-heard
		}
		r.Do(t, "ACL", "SETUSER", "locks", "&holdlock:*")
		testenv.Eventually(t, "it listens again", func() bool { return channels() != "" })
		testenv.Eventually(t, "the caller is told that messages were lost", func() bool { return len(heard) > 0 })
	}
	if got := log.count("may not subscribe"); got != 2 {
		t.Errorf("told %d times, want once each time", got)
	}
}
