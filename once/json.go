package once

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/holdlock/holdlock"
)

// JSON is Do for a function whose result is a value: it is stored as JSON, and a duplicate gets it back. If it cannot be
// written as JSON the job is done all the same, and recorded as done without a result; that is an error of this call and of
// each duplicate, but never a reason to run again. A stored result that cannot be read into T is an error too.
func JSON[T any](ctx context.Context, lock *holdlock.Lock, opts *Options, fn func(ctx context.Context, run *Run) (T, error)) (T, Outcome, error) {
	var value T
	var unwritten error
	out, err := Do(ctx, lock, opts, func(ctx context.Context, run *Run) ([]byte, error) {
		var err error
		if value, err = fn(ctx, run); err != nil {
			return nil, err
		}
		var result []byte
		result, unwritten = json.Marshal(value)
		return result, nil
	})
	switch {
	case err != nil:
		return value, out, err
	case unwritten != nil:
		return value, out, fmt.Errorf("job %s is done, but its result was not kept: %w", jobName(lock), unwritten)
	case out.Status != AlreadyDone:
		return value, out, nil
	case out.NoResult || len(out.Result) == 0:
		return value, out, fmt.Errorf("job %s is done, but its result was not kept: %w", jobName(lock), ErrNoResult)
	}
	if err := json.Unmarshal(out.Result, &value); err != nil {
		return value, out, fmt.Errorf("job %s is done, but its stored result cannot be read: %w", jobName(lock), err)
	}
	return value, out, nil
}
