package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/hinshun/vt10x"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
)

// window is a real terminal with lifecyclectl in it, and an emulator that shows
// what a person would see.
type window struct {
	t    *testing.T
	pty  *os.File
	vt   vt10x.Terminal
	raw  *strings.Builder // everything that was written; guarded by vt
	cmd  *exec.Cmd
	seen chan struct{} // closed at the end of the output
	done chan error
}

func open(t *testing.T, rows, cols uint16, url string, args ...string) *window {
	t.Helper()
	w := &window{t: t, vt: vt10x.New(vt10x.WithSize(int(cols), int(rows))), raw: new(strings.Builder), seen: make(chan struct{}), done: make(chan error, 1)}
	w.cmd = exec.Command("lifecyclectl", args...) // TestMain has installed it
	w.cmd.Env = append(os.Environ(), "LIFECYCLECTL_SERVER="+url, "TERM=xterm-256color", "NO_COLOR=")
	var err error
	if w.pty, err = pty.StartWithSize(w.cmd, &pty.Winsize{Rows: rows, Cols: cols}); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(w.seen)
		buf := make([]byte, 32<<10)
		for {
			n, err := w.pty.Read(buf)
			w.vt.Lock()
			w.raw.Write(buf[:n])
			w.vt.Unlock()
			_, _ = w.vt.Write(buf[:n])
			if err != nil { // EIO: no process has the terminal open
				return
			}
		}
	}()
	go func() { w.done <- w.cmd.Wait() }()
	t.Cleanup(func() {
		_ = w.cmd.Process.Kill()
		_ = w.pty.Close()
		<-w.seen
	})
	return w
}

func (w *window) until(what string, is func(screen string) bool) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); !is(w.vt.String()); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("never %s; the screen is\n%s", what, w.vt.String())
		}
	}
}

func (w *window) shows(parts ...string) {
	w.t.Helper()
	w.until(fmt.Sprintf("shown: %q", parts), func(screen string) bool {
		for _, p := range parts {
			if !strings.Contains(screen, p) {
				return false
			}
		}
		return true
	})
}

func (w *window) press(keys string) {
	w.t.Helper()
	if _, err := io.WriteString(w.pty, keys); err != nil {
		w.t.Fatal(err)
	}
}

// ends waits for the end, and returns the exit status and all that was written.
func (w *window) ends() (status int, raw string) {
	w.t.Helper()
	select {
	case <-w.done:
	case <-time.After(time.Minute):
		w.t.Fatalf("it does not end; the screen is\n%s", w.vt.String())
	}
	<-w.seen
	return w.cmd.ProcessState.ExitCode(), w.raw.String()
}

// TestProgressOnATerminal: long work shows its progress and removes it at the end.
func TestProgressOnATerminal(t *testing.T) {
	s := newSite(t)
	release := make(chan struct{})
	s.workers.slow = release
	url, err := s.serve(s.config())
	if err != nil {
		t.Fatal(err)
	}
	w := open(t, 24, 80, url, "workers", "recover")
	w.shows("recovering …")
	close(release)
	status, raw := w.ends()
	if status != 0 || !strings.Contains(raw, "\r\x1b[K") || strings.Contains(w.vt.String(), "recovering") {
		t.Errorf("exit status %d: %q", status, raw)
	}
}

// TestInterruptedQuestion: Ctrl-C at a question means no.
func TestInterruptedQuestion(t *testing.T) {
	s := newSite(t)
	url, err := s.serve(s.config())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.mgr.Create(t.Context(), &survey{ID: "m-1", State: "planning"}); err != nil {
		t.Fatal(err)
	}
	w := open(t, 24, 100, url, "transition", "drone-survey", "m-1", "aborted")
	w.shows("Continue? [y/N]")
	w.press("\x03") // the terminal turns it into SIGINT
	status, _ := w.ends()
	e, err := s.mgr.Get(context.Background(), "drone-survey", "m-1")
	if status != cli.ExitInterrupted || err != nil || e.Phase() != "planning" {
		t.Errorf("exit status %d; the entity is %v, %v", status, e, err)
	}
}
