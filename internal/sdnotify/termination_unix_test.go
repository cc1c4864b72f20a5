//go:build unix

package sdnotify

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// When a pipe without a reader replaces the file after Find, it delays neither a
// change of phase nor the final words.
func TestTerminationLogReplacedByAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var l TerminationLog
	l.Find(path, "svc")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	l.Write(func() string { return "stopping" }) // the test's own time limit is the assertion
	l.Final("killed")
}
