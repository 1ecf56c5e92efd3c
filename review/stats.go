package review

import "math"

// z is that of a one-sided bound at 95%.
const z = 1.6449

// atLeast returns the lower bound of the rate of which k of n were seen.
func atLeast(k, n uint64) float64 { lo, _ := wilson(k, n); return lo }

// wilson returns the bounds of a rate.
func wilson(k, n uint64) (lo, hi float64) {
	if n == 0 {
		return 0, 1
	}
	p, m := float64(k)/float64(n), float64(n)
	center := p + z*z/(2*m)
	half := z * math.Sqrt(p*(1-p)/m+z*z/(4*m*m))
	scale := 1 + z*z/m
	return max(0, (center-half)/scale), min(1, (center+half)/scale)
}

// ruleOfThree bounds the rate of what has not happened in n attempts, at 95%.
func ruleOfThree(n uint64) float64 { return 3 / float64(n) }
