package pghold

import (
	"time"

	"github.com/holdlock/holdlock/driver"
)

// LeaseTraits returns what lease rows promise, without their location. durable says whether the server writes to disk
// before it answers: fsync is on, and synchronous_commit is not off.
func LeaseTraits(durable bool) driver.Traits {
	t := driver.Traits{
		Name: "postgres", Scope: driver.Cluster, Fencing: driver.WhileDataSurvives, Forgets: driver.OnFailover, Clock: driver.WallClock,
		MinTTL:  200 * time.Millisecond, // every renewal has to reach a disk in time
		TTLStep: time.Millisecond,
		Prompt:  true, // pgx ends a call by closing the connection
	}
	if durable {
		t.Fencing = driver.Durable
	}
	return t
}

// SessionTraits returns what session locks promise, likewise.
func SessionTraits(durable bool, f Frozen) driver.Traits {
	t := LeaseTraits(durable)
	t.Name = "postgres+advisory"
	t.MinTTL, t.TTLStep = sessionMinTTL, ttlStep
	t.Prompt = false // a call that uses the connection for all others stays with it
	t.FrozenBlocks = f == Block
	return t
}
