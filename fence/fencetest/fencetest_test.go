package fencetest

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/fence"
)

// spoiled is a resource in memory with one mistake.
type spoiled struct {
	mistake string
	mu      sync.Mutex
	content string
	seen    holdlock.Token
}

func (s *spoiled) mark(c fence.Claim) error {
	if s.mistake == "no fence" {
		return nil
	}
	if c.Token < s.seen || s.mistake == "equal tokens refused" && c.Token == s.seen {
		if s.mistake == "error without tokens" {
			return fence.ErrStale
		}
		return &fence.StaleError{Lock: c.Lock(), Token: c.Token, Seen: s.seen}
	}
	if s.mistake != "the mark never moves" {
		s.seen = c.Token
	}
	return nil
}

func (s *spoiled) Begin(_ context.Context, c fence.Claim) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mistake == "marks at the write only" {
		if c.Token < s.seen {
			return "", &fence.StaleError{Lock: c.Lock(), Token: c.Token, Seen: s.seen}
		}
		return s.content, nil
	}
	if s.mistake == "reading is free" {
		s.seen = max(s.seen, c.Token)
		return s.content, nil
	}
	return s.content, s.mark(c)
}

func (s *spoiled) Write(_ context.Context, c fence.Claim, content string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mistake == "writes what it refuses" {
		s.content = content
	}
	if err := s.mark(c); err != nil {
		return err
	}
	if s.mistake == "check and write are two steps" {
		s.mu.Unlock()
		for range 100 {
			runtime.Gosched()
		}
		s.mu.Lock()
	}
	s.content = content
	return nil
}

func (s *spoiled) Read(context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.content, nil
}

// errFound is how a case ends that has found a mistake.
var errFound = errors.New("found")

// recorder lets a case fail without failing the test.
type recorder struct {
	testing.TB
	mu     sync.Mutex
	failed bool
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(string, ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}
func (r *recorder) Fatalf(string, ...any) { panic(errFound) }

// found runs the cases and returns the names of those that fail.
func found(t *testing.T, mistake string) (names []string) {
	for _, c := range cases {
		rec := &recorder{TB: t}
		func() {
			ended := false
			defer func() {
				rec.failed = rec.failed || !ended
				if p := recover(); p != nil && p != errFound {
					panic(p)
				}
			}()
			c.run(&run{TB: rec, ctx: t.Context(), r: &spoiled{mistake: mistake}, key: c.name})
			ended = true
		}()
		if rec.failed {
			names = append(names, c.name)
		}
	}
	return names
}

// Every mistake is noticed by the case that is meant for it, and no mistake by none.
func TestMistakes(t *testing.T) {
	if names := found(t, ""); len(names) > 0 {
		t.Errorf("a right resource fails %q", names)
	}
	for mistake, by := range map[string]string{
		"no fence":                      cases[0].name,
		"the mark never moves":          cases[0].name,
		"writes what it refuses":        cases[0].name,
		"equal tokens refused":          cases[1].name,
		"marks at the write only":       cases[3].name,
		"reading is free":               cases[4].name,
		"check and write are two steps": cases[5].name,
		"error without tokens":          cases[6].name,
	} {
		// The crowd needs some luck to get between the two steps.
		ok := false
		for try := 0; try < 200 && !ok; try++ {
			ok = slices.Contains(found(t, mistake), by)
		}
		if !ok {
			t.Errorf("the mistake %q is not noticed by %q", mistake, by)
		}
	}
}
