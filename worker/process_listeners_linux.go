package worker

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
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

// groupHas reports whether a process of the group has one of the sockets.
func groupHas(pgid int, sockets []string) bool {
	return slices.ContainsFunc(append([]int{pgid}, groupMembers(pgid)...), func(pid int) bool {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // the pattern is well-formed
		return slices.ContainsFunc(files, func(file string) bool {
			target, err := os.Readlink(file)
			return err == nil && slices.Contains(sockets, target)
		})
	})
}
