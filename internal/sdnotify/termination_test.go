package sdnotify

import (
	"os"
	"path/filepath"
	"testing"
)

func found(t *testing.T) (l *TerminationLog, read func() string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "termination-log")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l = &TerminationLog{}
	l.Find(path, "svc")
	return l, func() string {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
}

// A slow Write does not replace the text of a Write that began later.
func TestTerminationLogKeepsTheLastTurn(t *testing.T) {
	l, read := found(t)
	l.Write(func() string {
		l.Write(func() string { return "stopping" })
		return "draining"
	})
	if got := read(); got != "svc: stopping" {
		t.Errorf("the file says %q, want the text of the last Write", got)
	}
}

func TestTerminationLogFinalWordsStay(t *testing.T) {
	l, read := found(t)
	l.Write(func() string {
		l.Final("killed")
		return "stopping"
	})
	l.Write(func() string { return "stopped" })
	if got := read(); got != "svc: killed" {
		t.Errorf("the file says %q, want the final words", got)
	}
}

func TestTerminationLogWithoutAFileComposesNothing(t *testing.T) {
	for _, path := range []string{"off", "", filepath.Join(t.TempDir(), "none"), t.TempDir()} {
		var l TerminationLog
		l.Find(path, "svc")
		l.Write(func() string { t.Errorf("%q: there is no file, and a text was composed", path); return "" })
		l.Final("killed")
	}
}
