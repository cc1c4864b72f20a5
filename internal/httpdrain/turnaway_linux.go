package httpdrain

import (
	"bufio"
	"bytes"
	"math"
	"os"
	"strconv"
	"strings"
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

// resets returns how many TCP resets the network namespace of this process has sent: one
// for each connection that it refused, and others. It is 0 when the kernel does not say.
func resets() uint64 {
	text, err := os.ReadFile("/proc/self/net/snmp")
	if err != nil {
		return 0
	}
	return resetsIn(text)
}

// resetsIn finds OutRsts in two lines of snmp, of which the first has the names: "Tcp:
// RtoAlgorithm …" and "Tcp: 1 …".
func resetsIn(text []byte) uint64 {
	var names []string
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 0 || fields[0] != "Tcp:":
		case names == nil:
			names = fields
		default:
			for i := range min(len(names), len(fields)) {
				if names[i] == "OutRsts" {
					n, _ := strconv.ParseUint(fields[i], 10, 64) // 0 when it is none
					return n
				}
			}
		}
	}
	return 0
}
