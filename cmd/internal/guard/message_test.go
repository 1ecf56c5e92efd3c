//go:build unix

package guard

import (
	"bytes"
	"errors"
	"io/fs"
	"reflect"
	"syscall"
	"testing"
)

// Arguments and environment are bytes, not text: a file name in Latin-1 must arrive as it is.
func TestMessageKeepsBytes(t *testing.T) {
	argv := []string{"a\xff\xfeb", "", "line\nbreak", "\x80"}
	var pipe bytes.Buffer
	for _, m := range []request{{Start: &startRequest{Argv: toBytes(argv), Payload: []byte{0, 255}}}, {Deadline: 7}, {Signal: syscall.SIGUSR1}, {End: true}} {
		if err := writeMessage(&pipe, m); err != nil {
			t.Fatal(err)
		}
	}
	c := make(chan request)
	go readMessages(&pipe, c)
	var got []request
	for m := range c {
		got = append(got, m)
	}
	if len(got) != 4 || got[0].Start == nil || got[1].Deadline != 7 || got[2].Signal != syscall.SIGUSR1 || !got[3].End {
		t.Fatalf("read %+v", got)
	}
	if s := toStrings(got[0].Start.Argv); !reflect.DeepEqual(s, argv) {
		t.Errorf("argv = %q, want %q", s, argv)
	}
	if !bytes.Equal(got[0].Start.Payload, []byte{0, 255}) {
		t.Errorf("payload = %v", got[0].Start.Payload)
	}
}

// A message cut off by the death of the sender is no message.
func TestMessageCutOff(t *testing.T) {
	c := make(chan request)
	go readMessages(bytes.NewBufferString(`{"deadline":5}`+"\n"+`{"deadline":12`), c)
	if m := <-c; m.Deadline != 5 {
		t.Errorf("read %+v, want deadline 5", m)
	}
	if m, ok := <-c; ok {
		t.Errorf("read %+v from half a message", m)
	}
}

func TestStartErrorTravels(t *testing.T) {
	for _, tt := range []struct {
		err  error
		kind StartFailure
		code int
	}{
		{syscall.ENOENT, NotFound, 127},
		{&fs.PathError{Op: "x", Path: "y", Err: syscall.ENOENT}, NotFound, 127},
		{syscall.ENOTDIR, NotFound, 127},
		{syscall.EACCES, NotExecutable, 126},
		{syscall.ENOEXEC, NotExecutable, 126},
		{syscall.EAGAIN, NotStarted, 126},
		{errors.New("no errno"), NotStarted, 126},
	} {
		got := pack(startError("c\xff", tt.err)).unpack()
		if got.Kind != tt.kind || got.ExitCode() != tt.code || got.Command != "c\xff" || got.Err.Error() != tt.err.Error() {
			t.Errorf("%v arrived as %+v (exit code %d), want %s, %d", tt.err, got, got.ExitCode(), tt.kind, tt.code)
		}
		var errno syscall.Errno
		if errors.As(tt.err, &errno) && !errors.Is(got, errno) {
			t.Errorf("%v: the errno was lost on the way", tt.err)
		}
	}
}

func TestExitCodeOfResult(t *testing.T) {
	for _, tt := range []struct {
		r    Result
		want int
	}{
		{Result{Status: Status{Known: true}}, 0},
		{Result{Status: Status{Known: true, Code: 255}}, 255},
		{Result{Status: Status{Known: true, Signal: syscall.SIGKILL}}, 137},
		{Result{Err: &StartError{Kind: NotFound, Err: syscall.ENOENT}}, 127},
		{Result{}, 1}, // nobody saw it end: not success
	} {
		if got := tt.r.ExitCode(); got != tt.want {
			t.Errorf("ExitCode of %+v = %d, want %d", tt.r, got, tt.want)
		}
	}
}
