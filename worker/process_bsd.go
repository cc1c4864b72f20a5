//go:build unix && !linux

package worker

import "syscall"

// dieWithParent does nothing: there is no parent-death signal here.
func dieWithParent(*syscall.SysProcAttr) {}
