// Package unused is how the command gives back a lease that was granted in the moment in which it was told to end: as if it had never
// been. It is internal so that programs cannot: a run that is withdrawn although some of its work was done is a lapse that nobody is told of.
package unused

import "context"

type key struct{}

// Context marks the context of a Release: nothing was done under the lease. What it claimed of a job is withdrawn, and its key is not
// kept for MinHold.
func Context(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, true) }

// Is says whether a context is marked.
func Is(ctx context.Context) bool { return ctx.Value(key{}) != nil }
