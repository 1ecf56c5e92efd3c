package pghold

import "time"

// DefaultNamespace is the namespace unless another one is named.
const DefaultNamespace = "holdlock"

const minTTL = 100 * time.Millisecond
