// Package fencetest tests whether a resource refuses holders that have been overtaken. It is for those who fence a resource
// of their own; the fences of this module pass it too. Its own tests spoil a resource in every way that the cases name, and each is noticed.
package fencetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/fence"
)

// A Resource is one piece of data behind a fence. Methods are called concurrently.
type Resource interface {
	// Begin marks the resource with the claim and then reads it.
	Begin(ctx context.Context, c fence.Claim) (content string, err error)
	// Write writes, unless the claim is stale: then the error wraps fence.ErrStale.
	Write(ctx context.Context, c fence.Claim, content string) error
	// Read reads past the fence, for the test.
	Read(ctx context.Context) (string, error)
}

// Run runs the cases, each on a fresh resource that is empty and unmarked for the lock "fencetest" with the key of the case.
func Run(t *testing.T, fresh func(t *testing.T) Resource) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(&run{TB: t, ctx: t.Context(), r: fresh(t), key: c.name}) })
	}
}

var cases = []struct {
	name string
	run  func(*run)
}{
	{"a stale write is refused and changes nothing", staleWrite},
	{"one holder writes many times", manyWrites},
	{"a later holder writes", laterWrites},
	{"what was marked before it was read is not overwritten by an earlier holder", markBeforeRead},
	{"an earlier holder cannot begin", staleBegin},
	{"of many at once the last in order wins", crowd},
	{"the error names lock and tokens", staleError},
}

type run struct {
	testing.TB
	ctx context.Context
	r   Resource
	key string
}

func (r *run) claim(token uint64) fence.Claim {
	return fence.Claim{Name: "fencetest", Key: r.key, Token: holdlock.Token(1_000_000 + token)}
}

func (r *run) write(token uint64, content string) {
	r.Helper()
	if err := r.r.Write(r.ctx, r.claim(token), content); err != nil {
		r.Fatalf("Write with token %d: %v, want success", token, err)
	}
}

func (r *run) refused(what string, err error) {
	r.Helper()
	if !errors.Is(err, fence.ErrStale) {
		r.Fatalf("%s: %v, want ErrStale", what, err)
	}
}

func (r *run) content(want string) {
	r.Helper()
	if got, err := r.r.Read(r.ctx); err != nil || got != want {
		r.Fatalf("the resource holds %q, %v; want %q", got, err, want)
	}
}

func staleWrite(r *run) {
	r.write(2, "new")
	r.refused("Write with token 1 after 2", r.r.Write(r.ctx, r.claim(1), "old"))
	r.content("new")
}

func manyWrites(r *run) {
	r.write(1, "a")
	r.write(1, "b")
	r.content("b")
}

func laterWrites(r *run) {
	r.write(1, "first")
	r.write(2, "second")
	r.content("second")
}

func markBeforeRead(r *run) {
	r.write(1, "1")
	read, err := r.r.Begin(r.ctx, r.claim(2))
	if err != nil || read != "1" {
		r.Fatalf("Begin with token 2 read %q, %v; want 1", read, err)
	}
	r.refused("Write with token 1 after Begin with 2", r.r.Write(r.ctx, r.claim(1), "lost"))
	r.write(2, read+"+2")
	r.content("1+2")
}

func staleBegin(r *run) {
	r.write(2, "new")
	_, err := r.r.Begin(r.ctx, r.claim(1))
	r.refused("Begin with token 1 after 2", err)
}

func crowd(r *run) {
	const holders = 24
	var wg sync.WaitGroup
	for _, n := range rand.Perm(holders) {
		wg.Go(func() {
			err := r.r.Write(r.ctx, r.claim(uint64(n)), fmt.Sprint(n))
			if err != nil && !errors.Is(err, fence.ErrStale) {
				r.Errorf("Write with token %d: %v", n, err)
			}
		})
	}
	wg.Wait()
	r.content(fmt.Sprint(holders - 1))
}

func staleError(r *run) {
	r.write(2, "new")
	err := r.r.Write(r.ctx, r.claim(1), "old")
	var stale *fence.StaleError
	if !errors.As(err, &stale) {
		r.Fatalf("Write with token 1 after 2: %v, want a *StaleError", err)
	}
	if want := r.claim(1); stale.Lock != want.Lock() || stale.Token != want.Token || stale.Seen != r.claim(2).Token {
		r.Fatalf("the error says %+v", *stale)
	}
}
