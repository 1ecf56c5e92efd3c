package audit

// maxSteps is how many steps are made to follow the values of one place in the code. Values are followed through
// variables and calls, each of which can lead to several others: without a bound code of a few lines could keep the rules
// busy for hours. With it the work is linear in the number of places. Code that people write needs a few dozen.
const maxSteps = 2000

// tooFar is the reason where a bound was reached.
const tooFar = "following the values of this place takes more steps than are made"

// site begins the work on one place.
func (s *scan) site() { s.left, s.spent = maxSteps, false }

// step counts one step and tells whether it may be made. Whoever is told no gives the answer for a value that is not in
// the code.
func (s *scan) step() bool {
	if s.left == 0 {
		s.spent = true
		return false
	}
	s.left--
	s.steps++
	return true
}

// because is the reason for an unknown: that of the caller, unless the steps did not suffice.
func (s *scan) because(why string) string {
	if s.spent {
		return tooFar
	}
	return why
}

// doubt makes unknown what was said of a lock after the steps were used up: something that speaks against it may not
// have been seen. Faults stay, since each was seen whole.
func (s *scan) doubt(locks ...*lock) {
	if !s.spent {
		return
	}
	for _, l := range locks {
		for f, c := range l.base {
			if c.Verdict == Unknown || f == UncheckedRelease || f == GuessableValue || f == ReleaseContext {
				l.base[f] = Check{Unknown, tooFar}
			}
		}
	}
}
