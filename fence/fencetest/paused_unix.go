//go:build unix

package fencetest

import (
	"bufio"
	"os/exec"
	"syscall"
	"testing"
)

// Paused runs cmd, which holds a lock, through the fate that locks cannot prevent. cmd acquires, prints "holding" and reads a
// line. Then it is stopped (SIGSTOP), meanwhile runs, which acquires the same lock in the course of time, writes and returns; and cmd goes on: it gets its line,
// writes to the resource and prints how that went, which Paused returns.
func Paused(t *testing.T, cmd *exec.Cmd, meanwhile func()) string {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "holding" {
		t.Fatalf("the holder says %q, want holding", lines.Text())
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	meanwhile()
	if _, err := in.Write([]byte("go on\n")); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if !lines.Scan() {
		t.Fatal("the holder has said nothing after its pause")
	}
	return lines.Text()
}
