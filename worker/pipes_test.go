//go:build unix

package worker_test

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

func TestInputThatBlocksHidesNoExit(t *testing.T) {
	r, w := io.Pipe() // nothing is ever written
	defer w.Close()
	run := func(mode string) *worker.Process {
		cmd := helperCommand(mode, newLines())
		cmd.Stdin = r
		p := worker.NewProcess("child", cmd)
		if err := p.Start(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for mode, want := range map[string]worker.Status{"exit:3": worker.StatusFailed, "exit:0": worker.StatusFinished} {
		p := run(mode)
		select {
		case <-p.Gone():
		case <-within(t).Done():
			t.Errorf("%s: it is not gone", mode)
			continue
		}
		var left *worker.AbandonedError
		if s := p.State(); s.Status != want || s.Exit == nil || s.Exit.Cut || errors.As(p.Err(), &left) || strings.Contains(s.Error, "Stdout") {
			t.Errorf("%s: it is %+v, exit %+v", mode, s, s.Exit)
		}
		var exit *exec.ExitError
		if want == worker.StatusFailed && (!errors.As(p.Err(), &exit) || p.State().Exit.Code != 3) {
			t.Errorf("%s: %v, exit %+v", mode, p.Err(), p.State().Exit)
		}
	}
	t.Run("and its supervisor restarts it", func(t *testing.T) {
		made := make(chan *worker.Process, 8)
		tries := 0
		s := supervise(t, worker.SupervisorConfig{
			Backoff: everySecond,
			Children: []worker.Spec{{Name: "child", Restart: worker.OnFailure, New: func(name string) (worker.Worker, error) {
				mode := "exit:3"
				if tries++; tries > 1 {
					mode = "sleep"
				}
				cmd := helperCommand(mode, nil)
				cmd.Stdin = r
				p := worker.NewProcess(name, cmd)
				made <- p
				return p, nil
			}}},
		})
		<-made
		var again *worker.Process
		select {
		case again = <-made:
		case <-within(t).Done():
			t.Fatalf("it was not restarted: %+v", s.State())
		}
		if status, err := again.Await(within(t), func(s worker.Status) bool { return s == worker.StatusRunning }); err != nil {
			t.Errorf("the second is %s: %v", status, err)
		}
		if exit := s.State().Children[0].Exit; exit == nil || exit.Code != 3 {
			t.Errorf("the first ended with %+v", exit)
		}
		stop(t, s)
	})
}

func TestInputIsCopiedToItsEnd(t *testing.T) {
	for name, test := range map[string]struct {
		input io.Reader
		want  string
		is    error
	}{
		"whole":       {input: strings.NewReader(strings.Repeat("line\n", 1<<17)), want: "131072"},
		"fails":       {input: io.MultiReader(strings.NewReader("line\n"), iotest.ErrReader(errBoom)), want: "1", is: errBoom},
		"panics":      {input: panicReader{}, want: "0"},
		"is not read": {input: strings.NewReader(strings.Repeat("line\n", 1<<17)), want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			out := newLines()
			cmd := exec.Command("wc", "-l")
			if test.want == "" {
				cmd = exec.Command("true")
			}
			cmd.Stdin, cmd.Stdout = test.input, out
			p := worker.NewProcess("child", cmd)
			if err := p.Start(context.WithoutCancel(t.Context())); err != nil {
				t.Fatal(err)
			}
			<-p.Gone()
			failed := test.is != nil || name == "panics"
			if got := strings.TrimSpace(out.String()); got != test.want || failed != (p.Status() == worker.StatusFailed) || test.is != nil && !errors.Is(p.Err(), test.is) {
				t.Errorf("%q, it is %s, %v", got, p.Status(), p.Err())
			}
		})
	}
}

// The caller reads a pipe of package exec when it likes, also after the program has ended.
func TestPipeOfTheCallersIsReadToItsEnd(t *testing.T) {
	cmd := exec.Command("sh", "-c", "echo all of it; exit 4")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p := start(t, cmd)
	<-p.Gone()
	text, err := io.ReadAll(out)
	var exit *exec.ExitError
	if err != nil || string(text) != "all of it\n" || !errors.As(p.Err(), &exit) || exit.ExitCode() != 4 {
		t.Errorf("%q, %v, it ended with %v", text, err, p.Err())
	}
}

type panicReader struct{}

func (panicReader) Read([]byte) (int, error) { panic("boom") }

func TestOneWriterForBothOutputsIsNotCalledConcurrently(t *testing.T) {
	var both strings.Builder // the race detector sees a concurrent Write
	cmd := exec.Command("sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo o; echo e >&2; done")
	cmd.Stdout, cmd.Stderr = &both, &both
	p := worker.NewProcess("child", cmd)
	if err := p.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	<-p.Gone()
	if got := both.String(); got != strings.Repeat("o\ne\n", 8) {
		t.Errorf("%q", got)
	}
}

func TestOutputHeldByAnotherSessionIsCut(t *testing.T) {
	for mode, want := range map[string]worker.Status{"daemon:0": worker.StatusFinished, "daemon:4": worker.StatusFailed} {
		out := newLines()
		cmd := helperCommand(mode, out)
		cmd.WaitDelay = 3 * time.Second // what it prints is read by then
		p := start(t, cmd)
		defer syscall.Kill(out.awaitPID(t, "child "), syscall.SIGKILL)
		<-p.Gone()
		s := p.State()
		if s.Status != want || s.Exit == nil || !s.Exit.Cut || strings.Contains(s.Error, "WaitDelay") {
			t.Errorf("%s: it is %+v, exit %+v", mode, s, s.Exit)
		}
	}
}

// blockingWriter takes the first output, says so, and then nothing before release.
type blockingWriter struct {
	got     *lines
	release chan struct{}
}

func (w blockingWriter) Write(b []byte) (int, error) {
	n, err := w.got.Write(b)
	<-w.release
	return n, err
}

func TestExitIsKeptWhenAWriterIsGivenUp(t *testing.T) {
	for _, pipe := range []string{"Stdout", "Stderr"} {
		for by, patience := range map[string]time.Duration{"by Stop": 5 * time.Second, "by the worker": time.Hour} {
			t.Run(pipe+" "+by, func(t *testing.T) {
				w := blockingWriter{newLines(), make(chan struct{})}
				cmd := helperCommand("deaf:7", nil)
				cmd.Stdout, cmd.WaitDelay = w, time.Hour
				if pipe == "Stderr" {
					cmd = exec.Command("sh", "-c", "trap 'exit 7' TERM; echo ready >&2; while :; do sleep 0.01; done")
					cmd.Stderr, cmd.WaitDelay = w, time.Hour
				}
				if by == "by the worker" {
					cmd.WaitDelay = time.Millisecond
				}
				p := start(t, cmd)
				defer close(w.release)
				w.got.await(t, "ready")
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				_ = p.Stop(ctx)
				var left *worker.AbandonedError
				if !errors.As(p.Err(), &left) || !strings.Contains(left.Where, pipe) {
					t.Errorf("Err() is %v, want one that names %s", p.Err(), pipe)
				}
				if s := p.State(); s.Exit == nil || s.Exit.Code != 7 || s.Exit.Status != s.Status || !s.Exit.Cut {
					t.Errorf("it is %+v, exit %+v", s, s.Exit)
				}
			})
		}
	}
}

// The error of a program that failed has the last line of its standard error, which the caller's
// Writer gets too.
func TestErrorHasTheLastLine(t *testing.T) {
	for name, test := range map[string]struct {
		script, want, written string
		both                  bool
	}{
		"a failure":           {"echo begin >&2; echo no such table >&2; exit 3", "exit status 3; last line of stderr: no such table", "begin\nno such table\n", false},
		"a success":           {"echo all is well >&2", "", "all is well\n", false},
		"one Writer for both": {"echo out; echo no such table >&2; exit 3", "exit status 3; last line of stderr: no such table", "out\n", true},
		"silence":             {"exit 3", "exit status 3", "", false},
	} {
		var text strings.Builder
		cmd := exec.Command("/bin/sh", "-c", test.script)
		cmd.Stderr = &text
		if test.both {
			cmd.Stdout = cmd.Stderr
		}
		p := worker.NewProcess("child", cmd)
		if err := p.Start(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		<-p.Gone()
		var exit *exec.ExitError
		if s := p.State(); s.Error != test.want || s.Exit.Error != test.want || errors.As(p.Err(), &exit) != (test.want != "") {
			t.Errorf("%s: %q, exit %+v", name, s.Error, s.Exit)
		}
		if got := text.String(); !strings.Contains(got, test.written) {
			t.Errorf("%s: the Writer got %q", name, got)
		}
	}
}
