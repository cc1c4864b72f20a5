package httpdrain

import (
	"math"
	"syscall"
)

// soBindToIfindex is SO_BINDTOIFINDEX of asm-generic/socket.h, of Linux 5.0.
const soBindToIfindex = 62

// turnAway has the kernel refuse new connections to the listening socket of raw, and
// reports whether it does: the socket is bound to an interface that does not exist, so
// that no SYN finds it. Connections that wait in its queue stay there, and handshakes
// that have begun end there. A socket that other processes have too would be dead for
// them. Linux allows this to all processes since 5.7, and to those with CAP_NET_RAW
// before; MPTCP sockets, which package net makes, can do it too.
func turnAway(raw syscall.RawConn) bool {
	done := false
	err := raw.Control(func(fd uintptr) {
		done = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, soBindToIfindex, math.MaxInt32) == nil
	})
	return done && err == nil
}
