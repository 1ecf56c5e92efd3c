package testenv

import (
	"os/exec"
	"syscall"
)

// dieWithTest has the kernel kill the server when the test dies without ending it.
func dieWithTest(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}
