package handover

import (
	"bytes"
	"errors"
	"net"
	"os"
	"strconv"
	"syscall"
)

// Supported says whether a process can be replaced on this system.
const Supported = true

// pair returns the two ends of a pipe, for this process and for the one that it starts.
func pair() (ours net.Conn, theirs *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "upgrade")
	if ours, err = connOf(fds[0]); err != nil {
		_ = theirs.Close() // nothing was written
		return nil, nil, err
	}
	return ours, theirs, nil
}

// connOf makes the descriptor a connection. It closes the descriptor.
func connOf(fd int) (net.Conn, error) {
	file := os.NewFile(uintptr(fd), "upgrade")
	defer file.Close() // FileConn makes a copy
	return net.FileConn(file)
}

// peer returns the process that has made the pipe.
func peer(fd int) (pid int, err error) {
	cred, err := syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	if err != nil {
		return 0, os.NewSyscallError("getsockopt", err)
	}
	return int(cred.Pid), nil
}

// greetingWithin is how many seconds peek waits: the old process says the greeting as soon as
// it has started this one. A child of this process that is started with its descriptors, and
// takes itself for the new one, does not wait for ever.
const greetingWithin = 30

// peek returns what the old process has said first, and leaves it in the pipe. It returns ""
// when that process has ended before it said anything.
func peek(fd int) (string, error) {
	syscall.CloseOnExec(fd)
	within := syscall.Timeval{Sec: greetingWithin}
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &within); err != nil {
		return "", os.NewSyscallError("setsockopt", err)
	}
	buf := make([]byte, maxLine)
	for {
		n, _, err := syscall.Recvfrom(fd, buf, syscall.MSG_PEEK)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return "", os.NewSyscallError("recvfrom", err)
		}
		return string(buf[:n]), nil
	}
}

// hasEnded reports whether no thread of a process is left, but for the first one of a process
// that was not waited for.
func hasEnded(pid int) bool {
	folder := "/proc/" + strconv.Itoa(pid)
	threads, err := os.ReadDir(folder + "/task")
	if err != nil || len(threads) == 0 {
		return true
	}
	stat, err := os.ReadFile(folder + "/stat")
	state := bytes.TrimSpace(stat[bytes.LastIndexByte(stat, ')')+1:]) // behind the name
	return err != nil || len(threads) == 1 && len(state) > 0 && (state[0] == 'Z' || state[0] == 'X')
}
