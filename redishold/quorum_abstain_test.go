//go:build unix

package redishold

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// Where a majority of the nodes has lost its data, nothing is shown as free, since nobody can have it. One node is no majority.
func TestAbstainingIsNotFree(t *testing.T) {
	t.Parallel()
	const long = time.Hour
	servers := startServers(t, 3)
	addrs := testenv.Addrs(servers)
	opts := &QuorumOptions{MaxTTL: long}
	d := openQuorum(t, addrs, opts)
	look := func(what string, abstains bool) {
		t.Helper()
		_, held, inspected := d.Inspect(t.Context(), "k")
		terms, listed := d.List(t.Context(), "k", "", 10)
		if held || len(terms) > 0 {
			t.Fatalf("%s: something is held", what)
		}
		for verb, err := range map[string]error{"Inspect": inspected, "List": listed} {
			switch {
			case !abstains && err != nil:
				t.Errorf("%s: %s: %v, want that it is free", what, verb, err)
			case abstains && (!errors.Is(err, driver.ErrAbstains) || !strings.Contains(err.Error(), "of 3 nodes") || strings.Contains(err.Error(), "for 0s")):
				t.Errorf("%s: %s: %v, want that the nodes abstain, and for how long", what, verb, err)
			}
		}
		// What is shown is what is granted.
		if _, err := d.Acquire(t.Context(), request("other "+what, time.Minute)); abstains != errors.Is(err, driver.ErrAbstains) {
			t.Errorf("%s: Acquire: %v", what, err)
		}
	}
	_, _, inspected := d.Inspect(t.Context(), "k")
	if marks := servers[0].Do(t, "EXISTS", "holdlock:quorum"); !errors.Is(inspected, driver.ErrAbstains) || marks != "0" {
		t.Errorf("new nodes: %v, and %s marks; want that they would abstain, and no mark made by looking", inspected, marks)
	}
	initQuorum(t, addrs, opts)
	look("initialised", false)
	servers[0].Do(t, "FLUSHALL")
	look("one node emptied", false)
	servers[1].Restart(t)
	look("one more restarted", true)
	grantless := openQuorum(t, addrs, &QuorumOptions{MaxTTL: long, Durable: true})
	if _, _, err := grantless.Inspect(t.Context(), "k"); !errors.Is(err, driver.ErrAbstains) {
		t.Errorf("a restart that lost the data, with Durable: %v, want that it abstains", err)
	}
}
