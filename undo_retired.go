package holdlock

import "time"

// retired are nonces that were given back although the request that brings them to the line may still be on its way. A store refuses one
// that arrives then, but it cannot remember them all: those of many who gave up at the same time push each other out. One that comes
// through gets its turn like any other, which is told here, and is given back once more, instead of keeping the key for nobody until
// its claim is over.
type retired struct {
	newer, older map[string]*Lock // by nonce
	since        time.Time        // of newer
}

const (
	retiredFor = 5 * time.Minute // at least
	maxRetired = maxUndos / 2    // in each map
)

func (r *retired) add(nonce string, lock *Lock) {
	if now := time.Now(); r.newer == nil || len(r.newer) >= maxRetired || now.Sub(r.since) >= retiredFor {
		r.older, r.newer, r.since = r.newer, map[string]*Lock{}, now
	}
	r.newer[nonce] = lock
}

// lockOf returns whose nonce it was, or nil.
func (r *retired) lockOf(nonce string) *Lock {
	if lock := r.newer[nonce]; lock != nil {
		return lock
	}
	return r.older[nonce]
}
