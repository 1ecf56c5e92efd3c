//go:build soak

package quorumhold

import "testing"

// The full number of schedules. A schedule that fails is run again alone by -seed.
func TestSchedulesSoak(t *testing.T) {
	const schedules = 20_000
	all, bad := run(t, 1, schedules, without{})
	for _, w := range all.wrong {
		t.Error(w)
	}
	t.Logf("%d schedules, %d bad, %d tenures, %d times a server forgot", schedules, bad, all.tenures, all.forgot)
}
