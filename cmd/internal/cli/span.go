package cli

import (
	"fmt"
	"time"

	"github.com/holdlock/holdlock"
)

// span is a duration on the command line that may also be "forever".
type span time.Duration

// UnmarshalText reads a duration such as 30s, 5m or 1h30m, or the word forever.
func (s *span) UnmarshalText(text []byte) error {
	if string(text) == "forever" {
		*s = span(holdlock.Forever)
		return nil
	}
	d, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration: write it like 30s, 5m or 1h30m, or forever", text)
	}
	*s = span(d)
	return nil
}
