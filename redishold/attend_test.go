//go:build unix

package redishold

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// Many places of two processes in one line, more than one call looks at and more than are read at once, are each told where they stand, in
// whatever order they are asked for. The places that have been left are the control.
func TestManyPlacesInOneLine(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	ctx := t.Context()
	of := []*Driver{openDriver(t, r.Addr, nil), openDriver(t, r.Addr, nil)}
	if _, err := of[0].Acquire(ctx, request("k", time.Hour)); err != nil {
		t.Fatal(err)
	}
	places := make([][]*driver.AcquireRequest, 2)
	stand := map[string]int{} // by nonce; 0 for those that have left
	for i := range 2 * (attendSize + 60) {
		who := i / 7 % 2
		req := request("k", time.Hour)
		var held *driver.HeldError
		if _, err := of[who].Enqueue(ctx, req); !errors.As(err, &held) || held.Place != i+1 {
			t.Fatalf("Enqueue: %v, want place %d", err, i+1)
		}
		places[who] = append(places[who], req)
		stand[req.Ref.Nonce] = i + 1
	}
	for _, req := range []*driver.AcquireRequest{places[0][0], places[1][100], places[0][250]} {
		if err := of[0].Release(ctx, &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
			t.Fatalf("Release of a place: %v", err)
		}
		left := stand[req.Ref.Nonce]
		stand[req.Ref.Nonce] = 0
		for nonce, n := range stand {
			if n > left {
				stand[nonce]--
			}
		}
	}
	for _, order := range []string{"in order", "at random"} {
		for who, d := range of {
			asked := places[who]
			if order == "at random" {
				rand.Shuffle(len(asked), func(i, j int) { asked[i], asked[j] = asked[j], asked[i] })
			}
			for i, s := range d.Attend(ctx, asked) {
				if want := stand[asked[i].Ref.Nonce]; s.Err != nil || s.Granted || s.Place != want {
					t.Fatalf("%s: the place that stands at %d is told %+v", order, want, s)
				}
			}
		}
	}
}
