//go:build linux

package handover

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// joined calls Join in this process, with a pipe whose other end it returns.
func joined(t *testing.T, greeting string) (*Parent, net.Conn, error) {
	t.Helper()
	ours, theirs, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ours.Close() })
	if greeting != "" {
		if _, err := ours.Write([]byte(greeting)); err != nil {
			t.Fatal(err)
		}
	} else {
		_ = ours.Close()
	}
	fd, err := syscall.Dup(int(theirs.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	t.Setenv(fdVar, strconv.Itoa(fd))
	p, err := Join()
	if p == nil {
		_ = syscall.Close(fd)
	} else {
		t.Cleanup(p.Close)
	}
	if _, set := os.LookupEnv(fdVar); set {
		t.Errorf("%s is still set", fdVar)
	}
	return p, ours, err
}

// A process joins only the one that means it, in a version that both speak.
func TestVersions(t *testing.T) {
	self := os.Getpid()
	for name, tt := range map[string]struct {
		greeting string
		joins    bool
		want     string // of the error
	}{
		"this version":      {fmt.Sprintf("%s %d %d\n", greeting, Version, self), true, ""},
		"another process":   {fmt.Sprintf("%s %d %d\n", greeting, Version, self+1), false, ""},
		"a later version":   {fmt.Sprintf("%s %d %d with more\n", greeting, Version+1, self), false, "speaks version 2 of the hand-over, and this program speaks 1: stop that process and start this program"},
		"another program":   {"hello\n", false, `says "hello\n", want "lifecycle-upgrade"`},
		"no number":         {fmt.Sprintf("%s one %d\n", greeting, self), false, "invalid syntax"},
		"it has died":       {"", true, ""},
		"more than expects": {strings.Repeat("x", 1000), false, "want"},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, err := joined(t, tt.greeting)
			if (p != nil) != tt.joins || (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Join returns %v, %v, want joined %v, %q", p, err, tt.joins, tt.want)
			}
		})
	}
	t.Run("no descriptor", func(t *testing.T) {
		t.Setenv(fdVar, "many")
		if _, err := Join(); err == nil || !strings.Contains(err.Error(), `LIFECYCLE_UPGRADE is "many", want the number of a descriptor`) {
			t.Error(err)
		}
	})
	t.Run("not open", func(t *testing.T) {
		t.Setenv(fdVar, "4000")
		if _, err := Join(); err == nil || !strings.Contains(err.Error(), "bad file descriptor") {
			t.Error(err)
		}
	})
}

// The new process goes on when the old one has gone, and ends when it says something else.
func TestAwaitGo(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	greet := fmt.Sprintf("%s %d %d\n", greeting, Version, os.Getpid())
	for name, tt := range map[string]struct {
		answer string
		died   bool
		want   string
	}{
		"go":        {"go\n", false, ""},
		"gone":      {"", true, ""},
		"half":      {"g", true, ""},
		"otherwise": {"stay\n", false, `the old process said "stay", want "go"`},
		"endless":   {strings.Repeat("x", 1000), false, "the old process said"},
	} {
		t.Run(name, func(t *testing.T) {
			p, old, err := joined(t, greet)
			if err != nil {
				t.Fatal(err)
			}
			p.pid = -1 // not the parent of this test
			if _, err := old.Write([]byte(tt.answer)); err != nil {
				t.Fatal(err)
			}
			if tt.died {
				_ = old.Close()
			}
			p.Say(Taken)
			died, err := p.Await(ctx, Go)
			if died != tt.died || (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Await returns %v, %v, want %v, %q", died, err, tt.died, tt.want)
			}
		})
	}
	t.Run("no answer", func(t *testing.T) {
		p, _, err := joined(t, greet)
		if err != nil {
			t.Fatal(err)
		}
		soon, cancel := context.WithCancel(ctx)
		time.AfterFunc(10*time.Millisecond, cancel)
		p.Say(Taken)
		if died, err := p.Await(soon, Go); died || err == nil {
			t.Errorf("Await returns %v, %v", died, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("lifecycle-upgrade 1 42\n")
	f.Fuzz(func(t *testing.T, line string) {
		version, pid, err := parse(line)
		if err == nil && !strings.HasPrefix(strings.TrimLeft(line, " \t\r\n\v\f\u0085\u00a0"), greeting) {
			t.Errorf("%q is version %d of process %d", line, version, pid)
		}
	})
}
