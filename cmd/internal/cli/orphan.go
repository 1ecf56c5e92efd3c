package cli

import (
	"context"
	"encoding/json"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/bootclock"
)

// orphan is what the guard needs to give the lock back when holdlock was killed. It holds secrets (the store's URL, the
// nonce) and travels through a pipe only.
type orphan struct {
	Stores    stores
	Namespace string
	Ref       driver.Ref
	KeepUntil time.Duration // by the boot clock; for --min-hold
}

func orphanPayload(g *globals, lease *holdlock.Lease, minHold time.Duration) ([]byte, error) {
	return json.Marshal(orphan{Stores: g.stores(), Namespace: g.Namespace, Ref: lease.Ref(), KeepUntil: bootclock.Now() + minHold})
}

// orphanTimeout is how long connecting may take: the guard's whole time for this is a few seconds more.
const orphanTimeout = 5 * time.Second

// ReleaseOrphan runs in the guard, after holdlock has died and the guard has ended all work: the lock need not wait for
// its TTL. If it fails, the lock waits.
func ReleaseOrphan(ctx context.Context, payload []byte) {
	var o orphan
	if json.Unmarshal(payload, &o) != nil {
		return
	}
	d, err := o.Stores.open(ctx, o.Namespace, orphanTimeout)
	if err != nil {
		return
	}
	defer d.Close()
	_ = d.Release(ctx, &driver.ReleaseRequest{Ref: o.Ref, KeepFor: max(0, o.KeepUntil-bootclock.Now())})
}
