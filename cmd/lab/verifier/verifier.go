// Package verifier reads the log of a resource and counts anew. It shares the format of the log with package resource and
// none of its counting: it looks at the whole log and at pairs of runs, where the resource goes along. It also checks that
// the log can be true, that a fence has decided as it must, and that what workers were told is what was logged.
package verifier

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/holdlock/holdlock/cmd/lab/resource"
)

// An Ack is what a worker was answered by the resource.
type Ack struct {
	Job, Worker string
	What        resource.What
	Refused     bool
}

// Read reads a log.
func Read(path string) ([]resource.Entry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var log []resource.Entry
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var e resource.Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("line %d of the resource's log: %w", len(log)+1, err)
		}
		log = append(log, e)
	}
	return log, nil
}

// Verify returns the counts of a log, and every reason not to trust it. claimed are the counts of the resource itself.
func Verify(log []resource.Entry, fenced bool, acks []Ack, claimed resource.Counts) error {
	errs := []error{sound(log), answered(log, acks)}
	if fenced {
		errs = append(errs, fence(log))
	}
	if counted := Count(log); counted != claimed {
		errs = append(errs, fmt.Errorf("the resource has counted %+v, and its log says %+v", claimed, counted))
	}
	return errors.Join(errs...)
}

// sound checks that the log can be true.
func sound(log []resource.Entry) error {
	type run struct{ job, worker string }
	announced, begun, ended := map[string]bool{}, map[run]bool{}, map[run]bool{}
	var errs []error
	for i, e := range log {
		complain := func(text string) { errs = append(errs, fmt.Errorf("entry %d of the resource's log: %s", i+1, text)) }
		r := run{e.Job, e.Worker}
		switch {
		case e.Seq != int64(i+1):
			complain(fmt.Sprintf("its number is %d", e.Seq))
		case i > 0 && e.At < log[i-1].At:
			complain("it is older than the one before")
		case e.What == resource.Job && announced[e.Job]:
			complain("the job was announced before")
		case e.What != resource.Job && !announced[e.Job]:
			complain("there is no such job")
		case e.What == resource.Begin && begun[r]:
			complain("the run has begun before")
		case (e.What == resource.Write || e.What == resource.End) && !begun[r]:
			complain("the run has not begun")
		case ended[r]:
			complain("the run has ended")
		}
		switch e.What {
		case resource.Job:
			announced[e.Job] = true
		case resource.Begin:
			begun[r] = true
		case resource.End:
			ended[r] = true
		}
	}
	return errors.Join(errs...)
}

// answered checks that what workers were told was logged so. What was logged need not have been told: a worker may have
// been killed.
func answered(log []resource.Entry, acks []Ack) error {
	have := map[Ack]int{}
	for _, e := range log {
		have[Ack{e.Job, e.Worker, e.What, e.Refused}]++
	}
	var errs []error
	for _, a := range acks {
		if have[a]--; have[a] < 0 {
			errs = append(errs, fmt.Errorf("worker %s was told about a %s of job %s (refused: %v) that is not in the resource's log",
				a.Worker, a.What, a.Job, a.Refused))
		}
	}
	return errors.Join(errs...)
}

// fence checks each decision of a fence.
func fence(log []resource.Entry) error {
	largest := map[string]uint64{}
	var errs []error
	for i, e := range log {
		if e.What != resource.Begin && e.What != resource.Write {
			continue
		}
		if stale := e.Token < largest[e.Job]; stale != e.Refused || e.Token == 0 {
			errs = append(errs, fmt.Errorf("entry %d of the resource's log: token %d after %d, refused: %v",
				i+1, e.Token, largest[e.Job], e.Refused))
		}
		largest[e.Job] = max(largest[e.Job], e.Token)
	}
	return errors.Join(errs...)
}
