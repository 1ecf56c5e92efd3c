package testenv

import "syscall"

// dieWithTest has the kernel kill the server when the test dies without ending it.
func dieWithTest() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
