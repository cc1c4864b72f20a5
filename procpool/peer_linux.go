package procpool

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

const (
	knowsMemory = true
	maxPath     = 107 // sun_path has 108 bytes, with a zero at the end (unix(7))
)

// peerOf returns the process that connected. The kernel records it at connect
// (SO_PEERCRED, unix(7)), so a process cannot claim to be another.
func peerOf(c *net.UnixConn) (pid, uid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var cred *syscall.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cred, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return 0, 0, err
	}
	if failed != nil {
		return 0, 0, fmt.Errorf("ask which process connected: %w", failed)
	}
	if cred.Pid == 0 {
		return 0, 0, fmt.Errorf("a process of another pid namespace (user %d) connected: "+
			"it has no pid here and cannot be the worker (pid_namespaces(7))", cred.Uid)
	}
	return int(cred.Pid), int(cred.Uid), nil
}

// memoryOf returns the private memory of a process in bytes: resident and not
// shared (proc(5), statm).
func memoryOf(pid int) (int64, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0, false
	}
	return parseStatm(string(text))
}

func parseStatm(text string) (int64, bool) {
	fields := strings.Fields(text)
	if len(fields) < 3 {
		return 0, false
	}
	resident, err1 := strconv.ParseInt(fields[1], 10, 64)
	shared, err2 := strconv.ParseInt(fields[2], 10, 64)
	if err1 != nil || err2 != nil || shared < 0 || resident < shared {
		return 0, false
	}
	return (resident - shared) * int64(os.Getpagesize()), true
}
