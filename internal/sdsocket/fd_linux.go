package sdsocket

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// closeOnExec closes the descriptor to programs that this process starts.
func closeOnExec(fd int) { syscall.CloseOnExec(fd) } // listener finds a descriptor that is not open

func closeFD(fd int) { _ = syscall.Close(fd) } // of a socket, which has nothing to flush

// listener returns a listener on a copy of the descriptor.
func listener(fd int) (net.Listener, error) {
	accepts, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN)
	if err != nil {
		return nil, os.NewSyscallError("getsockopt", err)
	}
	if accepts == 0 {
		return nil, errors.New("it does not accept connections: want a ListenStream= in a socket unit with Accept=no")
	}
	file, err := copyFD(fd)
	if err != nil {
		return nil, err
	}
	defer file.Close() // FileListener makes a copy again
	return net.FileListener(file)
}

// packetConn returns a packet connection on a copy of the descriptor.
func packetConn(fd int) (net.PacketConn, error) {
	file, err := copyFD(fd)
	if err != nil {
		return nil, err
	}
	defer file.Close() // FilePacketConn makes a copy again
	return net.FilePacketConn(file)
}

// copyFD returns a copy of the descriptor, which no child inherits by accident. The copy of a
// non-blocking socket stays non-blocking: the mode belongs to the socket, which is in use.
func copyFD(fd int) (*os.File, error) {
	own, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return nil, os.NewSyscallError("fcntl", errno)
	}
	return os.NewFile(own, "socket"), nil
}

// Copy returns a copy of the descriptor of a listener or connection of package net, or of this
// package. Its own File method would make the socket a blocking one.
func Copy(conn any) (file *os.File, err error) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("a %T has no descriptor", conn)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var copyErr error
	err = raw.Control(func(fd uintptr) { file, copyErr = copyFD(int(fd)) })
	return file, errors.Join(err, copyErr)
}
