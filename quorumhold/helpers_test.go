package quorumhold

import (
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/holdlock/holdlock/driver"
)

func request(key string, ttl time.Duration) *driver.AcquireRequest {
	var b [16]byte
	rand.Read(b[:])
	return &driver.AcquireRequest{Ref: driver.Ref{Key: key, Nonce: hex.EncodeToString(b[:])}, TTL: ttl}
}
