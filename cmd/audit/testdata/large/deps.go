// Package large depends on large programs that take locks, so that the go command lists their packages.
package large

import (
	_ "github.com/dapr/components-contrib/lock/redis" // through an interface of its own
	_ "github.com/livekit/livekit-server/pkg/service" // rooms, with go-redis
)
