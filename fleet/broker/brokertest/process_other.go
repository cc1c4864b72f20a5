//go:build !unix

package brokertest

import (
	"os"
	"syscall"
)

func ownGroup() *syscall.SysProcAttr { return nil }

func pause(*os.Process) error  { return nil }
func resume(*os.Process) error { return nil }
