package driver

import (
	"errors"
	"testing"
	"testing/quick"
	"time"
)

// R3: max(last + 1, now, min(floor, now + 1 s)), or an error.
func TestTokenAfter(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	at := TokenAt(now)
	for _, tt := range []struct {
		name              string
		last, floor, want Token
	}{
		{"first", 0, 0, at},
		{"the clock has gone on", 5, 0, at},
		{"the clock stepped back", at + 1_000_000_000, 0, at + 1_000_000_001},
		{"the floor is a little ahead", 0, at + 10, at + 10},
		{"the floor is far ahead", 0, at + 1_000_000_000, at + 1_000_000},
		{"the floor is behind", at + 7, at - 10, at + 8},
		{"the last but one", MaxToken - 1, 0, MaxToken},
	} {
		if got, err := TokenAfter(tt.last, now, tt.floor); got != tt.want || err != nil {
			t.Errorf("%s: TokenAfter = %d, %v, want %d", tt.name, got, err, tt.want)
		}
	}
	if _, err := TokenAfter(MaxToken, now, 0); !errors.Is(err, ErrTokensExhausted) || !errors.Is(err, ErrNotApplied) {
		t.Errorf("after the last token: %v", err)
	}
	if got := TokenAt(time.Unix(-5, 0)); got != 0 {
		t.Errorf("TokenAt before 1970 = %d", got)
	}
}

// Whatever the clocks say, the next token is larger, as long as there is one.
func TestTokenAfterRises(t *testing.T) {
	err := quick.Check(func(last uint64, now int64, floor uint64) bool {
		l := Token(last) % MaxToken
		got, err := TokenAfter(l, time.UnixMicro(now%int64(MaxToken)), Token(floor))
		return err != nil && now > int64(MaxToken)-2_000_000 || err == nil && got > l && got <= MaxToken
	}, nil)
	if err != nil {
		t.Error(err)
	}
}
