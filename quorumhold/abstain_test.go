package quorumhold

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// abstainer is a way to a server that says whether it abstains.
type abstainer struct{ *conn }

func (a abstainer) Abstains(context.Context) (time.Duration, error) {
	s := a.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuses {
		return 0, errors.New("connection refused")
	}
	if s.forgot.IsZero() {
		return 0, nil
	}
	return max(0, s.lab.abstain-time.Since(s.forgot)), nil
}

// A key is shown as free where it could be granted, and where it could not because servers are down, others abstain, or both, it is not.
func TestWhatCannotBeGrantedIsNotShownAsFree(t *testing.T) {
	for _, tc := range []struct{ down, abstain int }{{0, 0}, {2, 0}, {0, 2}, {1, 1}, {2, 1}, {1, 2}, {0, 3}, {2, 3}} {
		t.Run(fmt.Sprintf("%d down, %d abstain", tc.down, tc.abstain), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(5, 10*time.Second)
				nodes := l.nodes(func() time.Duration { return rtt / 2 })
				for i, n := range nodes {
					nodes[i] = abstainer{n.(*conn)}
				}
				d, err := NewDriver(nodes, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				for i, s := range l.servers {
					switch {
					case i < tc.down:
						s.down(true)
					case i < tc.down+tc.abstain:
						s.forget()
					}
				}
				free := tc.down+tc.abstain <= 2
				_, held, inspected := d.Inspect(t.Context(), "k")
				_, listed := d.List(t.Context(), "", "", 10)
				for verb, err := range map[string]error{"Inspect": inspected, "List": listed} {
					if free && err != nil || !free && !errors.Is(err, driver.ErrAbstains) || held {
						t.Errorf("%s: %v, want that it is free: %v", verb, err, free)
					}
					if err != nil && tc.down > 0 && tc.abstain < 3 && (!strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), "it abstains for 9.99")) {
						t.Errorf("%s: %v, want what is wrong with each node", verb, err)
					}
				}
				if _, err := d.Acquire(t.Context(), request("other", 10*time.Second)); (err == nil) != free {
					t.Errorf("Acquire: %v", err)
				}
			})
		})
	}
}

// Where the nodes that have answered decide at once, for how long the others have not says nothing.
func TestNoAnswerYet(t *testing.T) {
	for took, want := range map[time.Duration]string{0: "no answer yet", time.Millisecond: "no answer yet", time.Second: "no answer after 1s"} {
		e := &NoMajorityError{}
		e.fail("a", errPending, took)
		if got := e.Nodes[0].Err.Error(); got != want || e.Answered != 0 {
			t.Errorf("after %v: %q, %d answered", took, got, e.Answered)
		}
	}
}
