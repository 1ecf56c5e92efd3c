//go:build unix && !linux

package testenv

import "syscall"

func dieWithTest() *syscall.SysProcAttr { return nil }
