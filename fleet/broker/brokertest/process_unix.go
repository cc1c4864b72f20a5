//go:build unix

package brokertest

import (
	"os"
	"syscall"
)

// ownGroup gives the server a process group of its own. When the test dies while the
// server is paused, the kernel resumes the orphaned group, and the server sees the end
// of its input.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func pause(p *os.Process) error  { return p.Signal(syscall.SIGSTOP) }
func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
