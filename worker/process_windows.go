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

func (p *Process) signalProgramLocked(s syscall.Signal) error { return p.signalGroupLocked(s) }

// signalGroupLocked ends the program, because Windows has no other signals.
func (p *Process) signalGroupLocked(s syscall.Signal) error {
	if s == sigCont {
		return nil
	}
	return p.cmd.Process.Kill()
}

// unread reports whether a write to a pipe failed because nothing reads it any
// more: ERROR_BROKEN_PIPE, or ERROR_NO_DATA, which package syscall lacks.
func unread(err error) bool {
	const errorNoData = syscall.Errno(232)
	return err == syscall.ERROR_BROKEN_PIPE || err == errorNoData || err == os.ErrClosed //nolint:errorlint // as package os returns them
}

func signalOf(*os.ProcessState) syscall.Signal { return 0 }

func signalName(s syscall.Signal) string { return s.String() }
