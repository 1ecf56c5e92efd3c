package verifier

import "github.com/holdlock/holdlock/cmd/lab/resource"

// Count counts a log; see resource.Counts for what is counted.
func Count(log []resource.Entry) (c resource.Counts) {
	for _, job := range jobsOf(log) {
		entries := where(log, func(e *resource.Entry) bool { return e.Job == job })
		begins := where(entries, func(e *resource.Entry) bool { return e.What == resource.Begin && !e.Refused })
		c.Jobs++
		c.Runs += len(begins)
		effective := 0
		for i, b := range begins {
			own := where(entries, func(e *resource.Entry) bool { return e.Worker == b.Worker && e.What != resource.Begin })
			writes := where(own, func(e *resource.Entry) bool { return e.What == resource.Write })
			accepted := where(writes, func(e *resource.Entry) bool { return !e.Refused })
			if len(accepted) > 0 {
				effective++
			}
			c.Refused += len(writes) - len(accepted)
			c.Stopped += len(where(own, func(e *resource.Entry) bool { return e.Ended == resource.Lost }))
			if i+1 < len(begins) {
				next := begins[i+1].Seq
				c.Accepted += len(where(accepted, func(e *resource.Entry) bool { return e.Seq > next }))
			}
			for _, later := range begins[i+1:] {
				after := where(own, func(e *resource.Entry) bool {
					return e.Seq > later.Seq && (e.What == resource.Write || e.Ended == resource.Done)
				})
				if len(after) > 0 {
					c.Overlaps++
				}
				if later.Until >= later.At && len(where(after, func(e *resource.Entry) bool { return e.Until >= e.At })) > 0 {
					c.Grants++
				}
			}
		}
		if effective == 0 {
			c.Never++
		} else {
			c.Double += effective - 1
		}
	}
	return c
}

func jobsOf(log []resource.Entry) (jobs []string) {
	for _, e := range where(log, func(e *resource.Entry) bool { return e.What == resource.Job }) {
		jobs = append(jobs, e.Job)
	}
	return jobs
}

func where(log []resource.Entry, is func(*resource.Entry) bool) (some []resource.Entry) {
	for i := range log {
		if is(&log[i]) {
			some = append(some, log[i])
		}
	}
	return some
}
