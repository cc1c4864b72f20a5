package procpool_test

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestStrangerOfAnotherNamespace is about a peer whose process has no pid in our
// namespace, and so cannot be the worker.
func TestStrangerOfAnotherNamespace(t *testing.T) {
	dir := socketDir(t)
	cmd := self("namespace:" + dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Skipf("no namespace can be made here: %v", err)
	}
	var socket string
	eventually(t, "there is a socket", func() bool {
		found, _ := filepath.Glob(dir + "/*000001.sock")
		if len(found) == 1 {
			socket = found[0]
		}
		return socket != ""
	})
	var conn net.Conn
	eventually(t, "the pool listens on it", func() (ok bool) {
		c, err := net.Dial("unix", socket)
		conn = c
		return err == nil
	})
	defer conn.Close()
	fmt.Fprintln(conn, `{"type":"ready"}`)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if got := out.String(); got != "refused\n" {
		t.Errorf("a process from another namespace is %q, want refused", got)
	}
}
