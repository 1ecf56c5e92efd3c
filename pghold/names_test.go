package pghold

import (
	"fmt"
	"strings"
	"testing"
)

// These never change: programs of different releases exclude each other by them. They were computed by another program,
// from the description of LockID.
func TestLockIDGolden(t *testing.T) {
	for _, tt := range []struct {
		namespace, key string
		want           int64
	}{
		{"", "", -9085503763646629804},
		{"", "a", -118325233227951261},
		{"a", "b/c", -3087916316295207335},
		{"holdlock", "nightly-report", 1503515934374271588},
		{"holdlock", "charge-card/4711", 4068302700531463809},
		{"billing", "charge-card/4711", -3407547008858018812},
		{"holdlock", "überweisung/ß", 6032705003515529485},
		{strings.Repeat("x", 255), strings.Repeat("k", 1025), -6547186407662346501},
	} {
		if got := LockID(tt.namespace, tt.key); got != tt.want {
			t.Errorf("LockID(%.20q, %.20q) = %d, want %d", tt.namespace, tt.key, got, tt.want)
		}
	}
}

// The 32 bits of hashtext collide over a hundred times among as many names.
func TestLockIDsDiffer(t *testing.T) {
	const names = 300_000
	seen, low := make(map[int64]struct{}, names), make(map[uint32]struct{}, names)
	for i := range names {
		id := LockID("holdlock", fmt.Sprintf("job/%d", i))
		seen[id] = struct{}{}
		low[uint32(id)] = struct{}{}
	}
	if len(seen) != names {
		t.Errorf("%d names have %d numbers", names, len(seen))
	}
	if len(low) == names {
		t.Errorf("no half of a number was seen twice among %d: this test cannot see collisions", names)
	}
}
