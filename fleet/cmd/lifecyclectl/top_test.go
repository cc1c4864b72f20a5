//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/hinshun/vt10x"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
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

func TestTopInATerminal(t *testing.T) {
	s := newSite(t)
	url, err := s.serve(s.config())
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for i := range 3 {
		if err := s.mgr.Create(ctx, &survey{ID: fmt.Sprintf("m-%d", i), State: "planning"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.process("missions", "missions-a", nil); err != nil {
		t.Fatal(err)
	}
	w := open(t, 24, 100, url, "top")
	w.shows("1 processes, 1 ready", "missions-a", "drone-survey", "planning 3", "q quit")

	// It follows changes.
	if err := s.mgr.Transition(ctx, "drone-survey", "m-1", "flying", workflow.TransitionSourceComponent, ""); err != nil {
		t.Fatal(err)
	}
	w.shows("planning 2  flying 1")
	for i := range 20 {
		if err := s.process("scheduler", fmt.Sprintf("scheduler-%02d", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	w.shows("21 processes, 21 ready", "scheduler-10", "↓ more")

	// Keys scroll, and not beyond the end.
	w.press("G")
	w.until("at the end", func(s string) bool {
		return strings.Contains(s, "planning 2") && !strings.Contains(s, "↓ more") && !strings.Contains(s, url)
	})
	w.press("\x1b[B\x1b[B") // down, down
	w.press("g")
	w.shows(url, "↓ more")
	w.press("\x1b[6~") // page down
	w.until("a page on", func(s string) bool { return !strings.Contains(s, url) })
	w.press("\x1b[H") // home
	w.shows(url)

	// A new size redraws the screen.
	w.vt.Resize(60, 40)
	if err := pty.Setsize(w.pty, &pty.Winsize{Rows: 40, Cols: 60}); err != nil {
		t.Fatal(err)
	}
	w.until("all of it on a longer screen", func(s string) bool {
		return strings.Contains(s, url) && strings.Contains(s, "scheduler-19") && strings.Contains(s, "planning 2") && !strings.Contains(s, "↓ more")
	})

	// top waits for a server that restarts.
	s.halt()
	w.shows("lost the server")
	if err := s.mgr.Transition(ctx, "drone-survey", "m-2", "flying", workflow.TransitionSourceComponent, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := s.serve(s.config()); err != nil {
		t.Fatal(err)
	}
	w.until("connected again", func(s string) bool {
		return !strings.Contains(s, "lost") && strings.Contains(s, "planning 1  flying 2")
	})

	w.press("q")
	status, raw := w.ends()
	if status != 0 {
		t.Errorf("exit status %d", status)
	}
	if !strings.Contains(raw, "\x1b[?1049h") || strings.LastIndex(raw, "\x1b[?1049l") < strings.LastIndex(raw, "\x1b[?1049h") {
		t.Error("the screen from before is not back")
	}
	if strings.LastIndex(raw, "\x1b[?25h") < strings.LastIndex(raw, "\x1b[?25l") {
		t.Error("the cursor is not back")
	}
}

func TestTopEndsOnEveryRequest(t *testing.T) {
	s := newSite(t)
	url, err := s.serve(s.config())
	if err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(*window){
		"Ctrl-C":  func(w *window) { w.press("\x03") },
		"Esc":     func(w *window) { w.press("\x1b") },
		"SIGTERM": func(w *window) { _ = w.cmd.Process.Signal(syscall.SIGTERM) },
	} {
		w := open(t, 24, 80, url, "top")
		w.shows("0 processes", "q quit")
		end(w)
		if status, raw := w.ends(); status != 0 || !strings.Contains(raw, "\x1b[?1049l") {
			t.Errorf("%s: exit status %d, and the screen of before is not back:\n%q", name, status, raw)
		}
	}
}

// TestTopWithoutAServer checks that the error comes before the screen is taken over.
func TestTopWithoutAServer(t *testing.T) {
	w := open(t, 24, 80, "http://127.0.0.1:1", "top")
	status, raw := w.ends()
	if status != cli.ExitUnreachable || !strings.Contains(raw, "no operator server can be reached") || strings.Contains(raw, "\x1b[?1049h") {
		t.Errorf("exit status %d: %q", status, raw)
	}
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
