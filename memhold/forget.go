package memhold

import (
	"time"

	"github.com/holdlock/holdlock/driver"
)

// The last token and ending of a key outlive its terms by driver.CounterTTL, or as long as the record of its job is kept. They are collected without a goroutine:
// every key is looked at once an hour, and each acquire of a new key pays for two looks. So the memory in use is bounded
// by the keys of about a day, and no call ever stops for a sweep.
const lookEvery = time.Hour

type visit struct {
	key string
	due time.Time
}

// remember puts a new key in line to be looked at. Runs under s.mu.
func (s *Store) remember(now time.Time, key string) {
	s.visits = append(s.visits, visit{key, now.Add(lookEvery)})
	for range 2 {
		first := s.visits[0]
		if now.Before(first.due) {
			return
		}
		s.visits = s.visits[1:]
		if at := s.slots[first.key]; now.Before(at.free.Add(driver.CounterTTL)) || at.known(now) != nil {
			s.visits = append(s.visits, visit{first.key, now.Add(lookEvery)})
		} else {
			delete(s.slots, first.key)
		}
	}
}
