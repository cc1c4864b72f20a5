//go:build unix

package child

import (
	"io"
	"net"
	"os"
	"syscall"
)

// socket is the connection to the pool with system calls that block their thread.
// A worker has one connection and nearly always one goroutine that waits for it.
// The runtime's poller is made for many connections and takes twice the system
// calls: with it half of the round trips of 4 KB take 40 µs in place of 33.
type socket struct{ *os.File }

// dedicate takes the connection out of the runtime's poller. It closes conn and
// returns a duplicate of its socket, or returns conn itself when that fails.
func dedicate(conn *net.UnixConn) io.ReadWriteCloser {
	raw, err := conn.SyscallConn()
	if err != nil {
		return conn
	}
	fd := -1
	err = raw.Control(func(theirs uintptr) {
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		if own, err := syscall.Dup(int(theirs)); err == nil {
			syscall.CloseOnExec(own)
			fd = own
		}
	})
	if err != nil || fd < 0 {
		return conn
	}
	if err := syscall.SetNonblock(fd, false); err != nil { // the flag is shared with conn
		_ = syscall.Close(fd)
		return conn
	}
	_ = conn.Close()
	return socket{os.NewFile(uintptr(fd), "pool")}
}

// Close ends the connection. A Read or Write that blocks returns.
func (s socket) Close() error {
	if raw, err := s.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
	}
	return s.File.Close()
}
