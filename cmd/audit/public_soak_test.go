//go:build soak

package audit

import "testing"

// TestSoakLargePublicModules does as TestSoakPublicModules does, for programs that take long to download.
func TestSoakLargePublicModules(t *testing.T) {
	checkPublic(t, "testdata/large", []public{
		{
			name:     "livekit: one lock of a room, with go-redis",
			patterns: []string{"github.com/livekit/livekit-server/pkg/service"},
			want: []string{
				`github.com/livekit/livekit-server/pkg/service redisstore.go:268: lock redis-set "room_lock:…" duration`,
			},
		},
		{
			name:     "dapr: a lock through an interface of its own",
			patterns: []string{"github.com/dapr/components-contrib/lock/redis"},
			want: []string{
				`github.com/dapr/components-contrib/lock/redis standalone.go:87: lock redis-set "req.ResourceID" time.Second * time.Duration(req.ExpiryInSeconds)`,
			},
		},
	}, &LoadOptions{})
}
