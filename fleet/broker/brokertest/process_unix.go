//go:build unix

package brokertest

import (
	"os"
	"syscall"
)

// ownGroup gives a process a group of its own. When this process dies while that
// one is paused, the kernel lets an orphaned group go on, and it sees the end of
// its input.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func pause(p *os.Process) error  { return p.Signal(syscall.SIGSTOP) }
func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
