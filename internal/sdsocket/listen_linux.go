package sdsocket

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// inherit says whether the descriptor stays open in programs that this process starts.
func inherit(fd int, yes bool) {
	flags := syscall.FD_CLOEXEC
	if yes {
		flags = 0
	}
	_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_SETFD, uintptr(flags)) // listener finds a descriptor that is not open
}

// listener returns a listener on a copy of the descriptor.
func listener(fd int) (net.Listener, error) {
	accepts, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN)
	if err != nil {
		return nil, os.NewSyscallError("getsockopt", err)
	}
	if accepts == 0 {
		return nil, errors.New("it does not accept connections: want a ListenStream= in a socket unit with Accept=no")
	}
	syscall.ForkLock.RLock() // no child may start before the copy is closed to it
	own, err := syscall.Dup(fd)
	if err == nil {
		syscall.CloseOnExec(own)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	file := os.NewFile(uintptr(own), "socket")
	defer file.Close() // FileListener makes a copy again
	return net.FileListener(file)
}
