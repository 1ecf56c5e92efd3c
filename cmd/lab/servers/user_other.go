//go:build !unix

package servers

import "os/exec"

func asPostgres(cmd *exec.Cmd) *exec.Cmd { return cmd }
func ownedByPostgres(string) error       { return nil }
