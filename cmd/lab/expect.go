package lab

import (
	"fmt"

	"github.com/holdlock/holdlock/cmd/lab/resource"
	"github.com/holdlock/holdlock/cmd/lab/worker"
)

// What must come out of one trial of each experiment is known: the schedules leave nothing open that would change a count.
// So a count that is another one is a finding about the lock, the server, or the lab, and is told.

// byFault is what one mechanism must show.
type byFault map[string]resource.Counts

// with returns a copy in which some are others.
func (b byFault) with(others byFault) byFault {
	all := byFault{}
	for fault, c := range b {
		all[fault] = c
	}
	for fault, c := range others {
		all[fault] = c
	}
	return all
}

func expected() map[string]byFault {
	// A lock that expires, and tells its holder.
	lease := byFault{
		Duplicate: {Jobs: 1, Runs: 1},
		Late:      {Jobs: 1, Runs: 2, Double: 1},
		// Killed after its write: no lock knows of that. Killed when its twin had been skipped: nobody runs the job.
		Killed: {Jobs: 3, Runs: 5, Double: 1, Never: 1},
		// One of two asks its lock and stops; the other was past that.
		Paused: {Jobs: 2, Runs: 4, Double: 1, Overlaps: 1, Accepted: 1, Stopped: 1},
		Slow:   {Jobs: 2, Runs: 4, Double: 1, Overlaps: 1, Accepted: 1, Stopped: 1},
		// The one whose release is late had no effect, and its successor was not disturbed.
		StaleRelease: {Jobs: 1, Runs: 2},
	}
	twoHolders := resource.Counts{Jobs: 1, Runs: 2, Double: 1, Overlaps: 1, Grants: 1, Accepted: 1}
	oneServer := lease.with(byFault{Empty: twoHolders, Failover: twoHolders})
	quorum := lease.with(byFault{Empty: {Jobs: 1, Runs: 1}})
	return map[string]byFault{
		worker.NoLock: {
			Duplicate: {Jobs: 1, Runs: 2, Double: 1, Overlaps: 1, Accepted: 1},
			Late:      {Jobs: 1, Runs: 2, Double: 1},
			Killed:    {Jobs: 3, Runs: 6, Double: 1},
			Paused:    {Jobs: 2, Runs: 4, Double: 2, Overlaps: 2, Accepted: 2},
			Slow:      {Jobs: 2, Runs: 4, Double: 2, Overlaps: 2, Accepted: 2},
		},
		worker.Naive: oneServer.with(byFault{
			Paused: {Jobs: 2, Runs: 4, Double: 2, Overlaps: 2, Accepted: 2},
			Slow:   {Jobs: 2, Runs: 4, Double: 2, Overlaps: 2, Accepted: 2},
			// The late release deletes the lock of the second, and so lets in a third.
			StaleRelease: {Jobs: 1, Runs: 3, Double: 1, Overlaps: 1, Grants: 1, Accepted: 1},
		}),
		worker.Redis:   oneServer,
		worker.NoRule:  {Empty: twoHolders},
		worker.Redlock: quorum,
		worker.Fenced: quorum.with(byFault{
			Paused: {Jobs: 2, Runs: 4, Overlaps: 1, Refused: 1, Stopped: 2},
			Slow:   {Jobs: 2, Runs: 4, Overlaps: 1, Refused: 1, Stopped: 2},
		}),
		// What was rolled back is not in the log of the database, so it has not run.
		worker.Postgres: {
			Duplicate: {Jobs: 1, Runs: 1}, Late: {Jobs: 1, Runs: 1}, Killed: {Jobs: 3, Runs: 3}, Paused: {Jobs: 2, Runs: 2},
			Slow: {Jobs: 2, Runs: 2}, StaleRelease: {Jobs: 1, Runs: 1}, Empty: {Jobs: 1, Runs: 1},
		},
	}
}

// surprise says in what an experiment is not as it must be.
func surprise(e *Experiment) string {
	want, known := expected()[e.Mechanism.ID][e.Fault.ID]
	want = want.Times(e.Trials)
	switch {
	case !known:
		return "nothing is known about what must come out"
	case e.Counts != want:
		return fmt.Sprintf("counted %s; expected %s", e.Counts, want)
	}
	return ""
}
