package holdlock_test

import (
	"fmt"
	"time"

	"github.com/holdlock/holdlock"
)

// With renewal off, the slowest run has to fit into the TTL less its margin.
func ExampleMargin() {
	ttl := time.Minute
	fmt.Println(ttl - holdlock.Margin(ttl))
	// Output: 54s
}
