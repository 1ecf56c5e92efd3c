package guard

import (
	"encoding/json"
	"errors"
	"io"
	"syscall"
	"time"
)

// The two pipes carry JSON values, one a line. Both ends are the same executable, so there are no versions. In each
// message exactly one field is set.

// A request goes from holdlock to the guard. The first one is Start.
type request struct {
	Start    *startRequest  `json:"start,omitempty"`
	Deadline time.Duration  `json:"deadline,omitempty"` // by bootclock.Now
	Signal   syscall.Signal `json:"signal,omitempty"`
	End      bool           `json:"end,omitempty"`  // TERM, then KILL
	Kill     bool           `json:"kill,omitempty"` // KILL at once
}

// startRequest holds strings as bytes: arguments and environment need not be UTF-8, and JSON strings must.
type startRequest struct {
	Argv     [][]byte      `json:"argv"`
	Env      [][]byte      `json:"env"`
	Dir      []byte        `json:"dir"`
	Deadline time.Duration `json:"deadline"`
	Grace    time.Duration `json:"grace"`
	Settle   time.Duration `json:"settle"`
	Leave    bool          `json:"leave"`
	Payload  []byte        `json:"payload"`
}

// An event goes from the guard to holdlock. The first one is Guard, the last one Finished or Failed.
type event struct {
	Guard    int          `json:"guard,omitempty"`   // the number of the guard in /proc, where that has numbers
	Started  int          `json:"started,omitempty"` // the PID of the command
	Failed   *failure     `json:"failed,omitempty"`
	Exited   *Status      `json:"exited,omitempty"` // of the command; descendants may still run
	Ending   Reason       `json:"ending,omitempty"` // TERM goes out now
	Stuck    []Unkillable `json:"stuck,omitempty"`
	Finished *finished    `json:"finished,omitempty"`
}

// failure is a StartError in transit.
type failure struct {
	Kind    StartFailure  `json:"kind"`
	Command []byte        `json:"command"`
	Errno   syscall.Errno `json:"errno,omitempty"`
	Text    string        `json:"text"`
}

type finished struct {
	Leftovers  int          `json:"leftovers"`
	Killed     int          `json:"killed"`
	Unkillable []Unkillable `json:"unkillable,omitempty"`
}

func pack(e *StartError) *failure {
	f := &failure{Kind: e.Kind, Command: []byte(e.Command), Text: e.Err.Error()}
	_ = errors.As(e.Err, &f.Errno)
	return f
}

func (f *failure) unpack() *StartError {
	err := error(f.Errno)
	if f.Errno == 0 || f.Text != f.Errno.Error() {
		err = &remoteError{text: f.Text, errno: f.Errno}
	}
	return &StartError{Kind: f.Kind, Command: string(f.Command), Err: err}
}

// remoteError is an error of the guard process with more to say than its errno.
type remoteError struct {
	text  string
	errno syscall.Errno
}

func (e *remoteError) Error() string { return e.text }

func (e *remoteError) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}

// writeMessage writes m in one call. Less than 4 KiB, which is all but the start, goes through a pipe whole or not at all.
func writeMessage(w io.Writer, m any) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// readMessages hands over each message until the pipe ends, then closes c.
func readMessages[T any](r io.Reader, c chan<- T) {
	defer close(c)
	for d := json.NewDecoder(r); ; {
		var m T
		if d.Decode(&m) != nil {
			return
		}
		c <- m
	}
}

func toBytes(ss []string) [][]byte {
	bs := make([][]byte, len(ss))
	for i, s := range ss {
		bs[i] = []byte(s)
	}
	return bs
}

func toStrings(bs [][]byte) []string {
	ss := make([]string, len(bs))
	for i, b := range bs {
		ss[i] = string(b)
	}
	return ss
}
