// Package origin keeps the errors of a handler apart from what the middleware says of the job. A handler's error may be about another job, or
// another lock, and then says nothing about its own.
package origin

// An Error is what a delivery has come to. One of the two is there, or both: if the handler has failed, and that has consequences.
type Error struct {
	Handler error // what the handler has returned; nil if it was not run, or has succeeded
	Ours    error // what is said of the job, or why the handler was not run
}

// Error returns our words, which quote the handler's.
func (e *Error) Error() string {
	if e.Ours != nil {
		return e.Ours.Error()
	}
	return e.Handler.Error()
}

// Unwrap returns what is there.
func (e *Error) Unwrap() (errs []error) {
	for _, err := range []error{e.Handler, e.Ours} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Words are the words of an error and nothing else of it: what is made of them tells errors.Is of what was added only.
type Words struct{ Of error }

// Error returns the words.
func (w *Words) Error() string { return w.Of.Error() }
