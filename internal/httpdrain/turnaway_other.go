//go:build !linux

package httpdrain

import "syscall"

// turnAway reports false: the kernel takes new connections until the socket is closed.
func turnAway(syscall.RawConn) bool { return false }
