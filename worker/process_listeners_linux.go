package worker

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
)

// acceptedSockets returns the sockets that have accepted conn, as /proc/PID/fd names them. The
// kernel names one by its ports; a connection that waits to be accepted has none.
func acceptedSockets(conn net.Conn) (sockets []string) {
	client, server := portOf(conn.LocalAddr()), portOf(conn.RemoteAddr())
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		file, err := os.Open(table)
		if err != nil {
			continue // there is no such protocol
		}
		rows := bufio.NewScanner(file)
		for rows.Scan() {
			const local, remote, inode = 1, 2, 9
			row := strings.Fields(rows.Text())
			if len(row) <= inode || row[inode] == "0" {
				continue
			}
			if strings.HasSuffix(row[local], server) && strings.HasSuffix(row[remote], client) {
				sockets = append(sockets, "socket:["+row[inode]+"]")
			}
		}
		_ = file.Close() // it was read
	}
	return sockets
}

// portOf returns the end of an address in the kernel's tables.
func portOf(addr net.Addr) string {
	return fmt.Sprintf(":%04X", addr.(*net.TCPAddr).Port) //nolint:errcheck // listensOn has looked
}

// programHas reports whether the program or a process below it has one of the sockets. The kernel
// hides what a process has that has changed its user, without CAP_SYS_PTRACE here. Such a process
// counts as having one.
func programHas(pid int, sockets []string) bool {
	for member := range familyOf(pid) {
		if mayHave(member, sockets) {
			return true
		}
	}
	return false
}

// mayHave reports whether a process has one of the sockets, or hides what it has.
func mayHave(pid int, sockets []string) bool {
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrPermission) {
		return true
	}
	for _, file := range files {
		target, err := os.Readlink(dir + file.Name())
		if slices.Contains(sockets, target) || errors.Is(err, fs.ErrPermission) {
			return true
		}
	}
	return false
}

// familyOf returns the process, its group and all processes below them, such as those that it has
// started in sessions of their own. It leaves out those that have ended and are not reaped yet: they
// have no sockets, and the kernel hides that as well.
func familyOf(pid int) map[int]bool {
	family, all := map[int]bool{pid: true}, make(map[int]procStat)
	for _, other := range allPIDs() {
		if s, ok := readStat(other); ok {
			all[other] = s
			if s.pgrp == pid {
				family[other] = true
			}
		}
	}
	for grows := true; grows; {
		grows = false
		for child, s := range all {
			if family[s.ppid] && !family[child] {
				family[child], grows = true, true
			}
		}
	}
	maps.DeleteFunc(family, func(other int, _ bool) bool { return all[other].state == 'Z' || all[other].state == 'X' })
	return family
}
