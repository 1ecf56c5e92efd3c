//go:build !unix

// Package pguser runs the programs of a PostgreSQL server as a user other than root. There is none here.
package pguser

import "os/exec"

// As returns the command as it is.
func As(cmd *exec.Cmd) *exec.Cmd { return cmd }

// Own does nothing.
func Own(string) error { return nil }
