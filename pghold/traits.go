package pghold

import (
	"time"

	"github.com/holdlock/holdlock/driver"
)

// LeaseTraits returns what lease rows promise, without their location. durable says whether the server writes to disk
// before it answers: fsync is on, and synchronous_commit is not off. Of records it is told of a server without replicas, or with ones
// that are waited for; NewLeaseDriver looks at the server.
func LeaseTraits(durable bool) driver.Traits {
	t := driver.Traits{
		Name: "postgres", Scope: driver.Cluster, Fencing: driver.WhileDataSurvives, Forgets: driver.OnFailover, Clock: driver.WallClock,
		MinTTL:  200 * time.Millisecond, // every renewal has to reach a disk in time
		TTLStep: time.Millisecond,
		Prompt:  true, // pgx ends a call by closing the connection
		Records: driver.WhileItLasts,
	}
	if durable {
		t.Fencing, t.Records = driver.Durable, driver.SyncedRecords
	}
	return t
}

// recordKeeping says what a record survives on a server with these settings. Steps of jobs turn synchronous_commit on where it is off. A
// standby that is not waited for can take over without the last records; whether one that connects later is, nobody can know
// beforehand.
func recordKeeping(fsync bool, synchronousCommit, awaited string, standbys bool) driver.Keeping {
	waits := awaited != "" && synchronousCommit != "local"
	if fsync && (waits || !standbys) {
		return driver.SyncedRecords
	}
	return driver.WhileItLasts
}

// SessionTraits returns what session locks promise, likewise.
func SessionTraits(durable bool, f Frozen) driver.Traits {
	t := LeaseTraits(durable)
	t.Name = "postgres+advisory"
	t.MinTTL, t.TTLStep = sessionMinTTL, ttlStep
	t.Records = driver.NoRecords // a record needs no session: lease rows keep them, and Once in a transaction
	t.Prompt = false             // a call that uses the connection for all others stays with it
	if t.FrozenBlocks = f == Block; !t.FrozenBlocks {
		t.MaxTTL = maxIdleSession
	}
	return t
}
