//go:build unix

package worker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

const (
	sigCont = syscall.SIGCONT
	sigStop = syscall.SIGSTOP
)

// ownGroup makes the command the leader of a group. The attributes may be
// shared with another command and are copied.
func ownGroup(cmd *exec.Cmd) {
	attr := syscall.SysProcAttr{}
	if cmd.SysProcAttr != nil {
		attr = *cmd.SysProcAttr
	}
	attr.Setpgid, attr.Pgid = !attr.Setsid, 0 // a session has a group of its own, and its leader may not ask for one
	dieWithParent(&attr)
	cmd.SysProcAttr = &attr
}

// signalProgramLocked signals the program alone. For a program that has ended it returns nil.
func (p *Process) signalProgramLocked(s syscall.Signal) error {
	err := p.cmd.Process.Signal(s)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// signalGroupLocked signals the group and the cgroup. For an empty group it returns nil.
func (p *Process) signalGroupLocked(s syscall.Signal) error {
	if !holdsZombie && errors.Is(p.cmd.Process.Signal(syscall.Signal(0)), os.ErrProcessDone) {
		return nil
	}
	err := syscall.Kill(-p.pid, s)
	p.bounds.signal(s, func(pid int) bool {
		group, err := syscall.Getpgid(pid)
		return err != nil || group == p.pid // it has the signal
	})
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// unread reports whether a write to a pipe failed because nothing reads it any
// more.
func unread(err error) bool {
	return err == syscall.EPIPE || err == os.ErrClosed //nolint:errorlint // package os returns them so
}

func signalOf(state *os.ProcessState) syscall.Signal {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return status.Signal()
	}
	return 0
}

// signalName returns the usual name of a signal, such as SIGKILL.
func signalName(s syscall.Signal) string {
	names := map[syscall.Signal]string{
		syscall.SIGABRT: "SIGABRT", syscall.SIGALRM: "SIGALRM", syscall.SIGBUS: "SIGBUS", syscall.SIGFPE: "SIGFPE",
		syscall.SIGHUP: "SIGHUP", syscall.SIGILL: "SIGILL", syscall.SIGINT: "SIGINT", syscall.SIGKILL: "SIGKILL",
		syscall.SIGPIPE: "SIGPIPE", syscall.SIGQUIT: "SIGQUIT", syscall.SIGSEGV: "SIGSEGV", syscall.SIGSYS: "SIGSYS",
		syscall.SIGTERM: "SIGTERM", syscall.SIGTRAP: "SIGTRAP", syscall.SIGUSR1: "SIGUSR1", syscall.SIGUSR2: "SIGUSR2",
		syscall.SIGXCPU: "SIGXCPU", syscall.SIGXFSZ: "SIGXFSZ",
	}
	if name, ok := names[s]; ok {
		return name
	}
	return fmt.Sprintf("signal %d", int(s))
}
