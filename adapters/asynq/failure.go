package asynqonce

import "errors"

// What a handler returns may be about another job, in which it has found itself. It says nothing of its own, and must not be taken for it.

// words are the words of the handler's error and nothing else of it: what package once makes of them tells errors.Is of this job only.
type words struct{ of error }

func (w *words) Error() string { return w.of.Error() }

// A failure is the error of a run whose handler has failed, and what that has done to the job, if anything.
type failure struct {
	handlers error
	ours     error // nil, or for example that the job is suspended by it
}

func (f *failure) Error() string {
	if f.ours != nil {
		return f.ours.Error() // it quotes the handler's
	}
	return f.handlers.Error()
}

// Is finds all that the handler has returned but that another job's task comes back: this one has failed.
func (f *failure) Is(target error) bool {
	return target != ErrRunning && target != ErrStore && errors.Is(f.handlers, target)
}

// As finds all that the handler has returned.
func (f *failure) As(target any) bool { return errors.As(f.handlers, target) }

// Unwrap returns what is said of this job.
func (f *failure) Unwrap() error { return f.ours }
