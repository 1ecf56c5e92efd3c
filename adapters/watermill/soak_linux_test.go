//go:build soak

package watermillonce_test

import (
	"testing"
	"time"
)

// 10,000 messages, every one published twice, on Redis and in transactions of PostgreSQL.
func TestTenThousandSoak(t *testing.T) {
	s := servers(t)
	s.Handlers = 10
	t.Run("each job runs once", func(t *testing.T) { deliverTwice(t, s, 10_000, 24, 2, 20*time.Minute) })
	t.Run("in transaction", func(t *testing.T) { deliverTwiceInTransaction(t, s, 10_000, 24, 20*time.Minute) })
}
