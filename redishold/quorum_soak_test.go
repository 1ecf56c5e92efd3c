//go:build unix && soak

package redishold

import (
	"testing"
	"time"
)

func TestQuorumContentionSoak(t *testing.T) { checkContention(t, contention(t, 8, 1000)) }

func TestQuorumUnderFaultsSoak(t *testing.T) { quorumUnderFaults(t, 2*time.Minute) }
