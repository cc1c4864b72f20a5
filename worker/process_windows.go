package worker

import (
	"os"
	"os/exec"
	"syscall"
)

// Signals that have no effect on Windows.
const (
	sigCont = syscall.Signal(0)
	sigStop = syscall.Signal(0)
)

func ownGroup(*exec.Cmd) {}

// signalLocked ends the program, because Windows has no other signals.
func (p *Process) signalLocked(s syscall.Signal) error {
	if s == sigCont {
		return nil
	}
	return p.cmd.Process.Kill()
}

func signalOf(*os.ProcessState) syscall.Signal { return 0 }

func signalName(s syscall.Signal) string { return s.String() }
