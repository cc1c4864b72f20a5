//go:build unix

package worker_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// start starts a process, and kills what is left of it when the test ends.
func start(t testing.TB, cmd *exec.Cmd, opts ...worker.ProcessOption) *worker.Process {
	t.Helper()
	p := worker.NewProcess("child", cmd, opts...)
	if err := p.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = p.Stop(ctx)
		<-p.Gone()
	})
	return p
}

// within returns a context with a deadline that is long enough for a busy machine.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestProcessEndsAreToldApart(t *testing.T) {
	tests := []struct {
		name, mode string
		stop       bool
		by         syscall.Signal // sent by another process
		want       worker.Status
		code       int
		signal     string
	}{
		{name: "done", mode: "exit:0", want: worker.StatusFinished},
		{name: "exit code", mode: "exit:3", want: worker.StatusFailed, code: 3},
		{name: "dies of our SIGTERM", mode: "sleep", stop: true, want: worker.StatusStopped, code: -1, signal: "SIGTERM"},
		{name: "obeys and exits 0", mode: "polite:0", stop: true, want: worker.StatusStopped},
		{name: "obeys and exits 143", mode: "polite:143", stop: true, want: worker.StatusStopped, code: 143},
		{name: "obeys and exits 1", mode: "polite:1", stop: true, want: worker.StatusFailed, code: 1},
		{name: "ignores SIGTERM", mode: "ignore", stop: true, want: worker.StatusKilled, code: -1, signal: "SIGKILL"},
		{name: "killed by another process", mode: "sleep", by: syscall.SIGKILL, want: worker.StatusFailed, code: -1, signal: "SIGKILL"},
		{name: "SIGTERM by another process", mode: "sleep", by: syscall.SIGTERM, want: worker.StatusFailed, code: -1, signal: "SIGTERM"},
		{name: "exits 143 unasked", mode: "exit:143", want: worker.StatusFailed, code: 143},
		{name: "crash", mode: "suicide:11", want: worker.StatusFailed, code: 2}, // the Go runtime makes it a panic
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			out := newLines()
			grace := time.Minute
			if test.want == worker.StatusKilled {
				grace = 10 * time.Millisecond
			}
			p := worker.NewProcess("child", helperCommand(test.mode, out), worker.WithGrace(grace))
			got := path(t, p, func(context.Context, context.CancelFunc) {
				if err := p.Start(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
					return
				}
				if test.stop || test.by != 0 {
					out.await(t, "ready")
				}
				if test.by != 0 {
					if err := syscall.Kill(p.PID(), test.by); err != nil {
						t.Error(err)
					}
				}
				if test.stop {
					err := p.Stop(within(t))
					if (err != nil) != (test.want == worker.StatusKilled) {
						t.Errorf("Stop: %v", err)
					}
				}
			})
			want := "Starting Running " + string(test.want)
			if test.stop {
				want = "Starting Running Stopping " + string(test.want)
			}
			if got != want {
				t.Errorf("went %q, want %q", got, want)
			}
			s := p.State()
			if s.Exit == nil || s.Exit.Code != test.code || s.Exit.Signal != test.signal || s.Exit.PID != p.PID() || s.Exit.OOM || s.Exit.Status != test.want {
				t.Errorf("exit %+v, state %+v", s.Exit, s)
			}
			if test.want == worker.StatusStopped && p.Err() != nil && !errors.Is(p.Err(), worker.ErrInterrupted) {
				t.Errorf("Err() is %v", p.Err())
			}
			if test.want == worker.StatusFailed && test.code != 0 {
				var exit *exec.ExitError
				if !errors.As(p.Err(), &exit) {
					t.Errorf("Err() is %v, want an *exec.ExitError in it", p.Err())
				}
			}
			if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
				t.Errorf("Signal after the end: %v", err)
			}
		})
	}
}

func TestProcessSignalledTogetherWithUsIsStopped(t *testing.T) {
	out := newLines()
	p := start(t, helperCommand("sleep", out))
	out.await(t, "ready")
	p.HoldRestarts() // the App has got the signal that systemd sends to every process
	_ = syscall.Kill(p.PID(), syscall.SIGTERM)
	<-p.Done()
	if got := p.Status(); got != worker.StatusStopped {
		t.Errorf("it is %s, %v", got, p.Err())
	}
}

func TestProcessStopsWhenItsContextEnds(t *testing.T) {
	out := newLines()
	p := worker.NewProcess("child", helperCommand("sleep", out))
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	out.await(t, "ready")
	cancel(errBoom)
	<-p.Done()
	if p.Status() != worker.StatusStopped || !p.StopRequested() {
		t.Errorf("it is %s, %v", p.Status(), p.Err())
	}
}

func TestProcessThatCannotStart(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	started := exec.Command("true")
	if err := started.Run(); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		cmd  *exec.Cmd
		opts []worker.ProcessOption
		is   error
		says string
	}{
		"missing":         {cmd: exec.Command(filepath.Join(dir, "nothing")), is: fs.ErrNotExist, says: "nothing"},
		"not in PATH":     {cmd: exec.Command("no-such-program-here"), is: exec.ErrNotFound, says: "no-such-program-here"},
		"not executable":  {cmd: exec.Command(plain), is: fs.ErrPermission, says: "plain"},
		"a folder":        {cmd: exec.Command(dir), is: fs.ErrPermission},
		"missing Dir":     {cmd: &exec.Cmd{Path: "/bin/true", Dir: filepath.Join(dir, "nowhere")}, is: fs.ErrNotExist, says: "nowhere"},
		"nil":             {says: "no command"},
		"CommandContext":  {cmd: exec.CommandContext(t.Context(), "true"), says: "use exec.Command"},
		"started before":  {cmd: started, says: "started before"},
		"negative grace":  {cmd: exec.Command("true"), opts: []worker.ProcessOption{worker.WithGrace(-1)}, says: "grace"},
		"no stop signal":  {cmd: exec.Command("true"), opts: []worker.ProcessOption{worker.WithStopSignal(0)}, says: "stop signal"},
		"NUL in argument": {cmd: exec.Command("true", "a\x00b"), is: syscall.EINVAL},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := worker.NewProcess("child", test.cmd, test.opts...)
			err := p.Start(t.Context())
			if err == nil || !strings.HasPrefix(err.Error(), "start child: ") || !strings.Contains(err.Error(), test.says) || test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("Start: %v", err)
			}
			<-p.Done()
			if p.Status() != worker.StatusFailed || !errors.Is(p.Err(), err) {
				t.Errorf("it is %s, %v", p.Status(), p.Err())
			}
			if err := p.Stop(t.Context()); err != nil {
				t.Errorf("Stop: %v", err)
			}
		})
	}
}

func TestProcessStopBeforeStart(t *testing.T) {
	p := worker.NewProcess("child", helperCommand("sleep", nil))
	for range 2 {
		if err := p.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := p.Start(t.Context()); !errors.Is(err, worker.ErrNotStartable) || p.Status() != worker.StatusStopped {
		t.Errorf("Start after Stop: %v, it is %s", err, p.Status())
	}
	if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Signal: %v", err)
	}
}

func TestProcessStopIsBoundedByItsContext(t *testing.T) {
	t.Run("deadline", func(t *testing.T) { // the deadline ends the grace of a minute, and leaves time to reap
		out := newLines()
		p := start(t, helperCommand("ignore", out), worker.WithGrace(time.Hour))
		out.await(t, "ready")
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if err := p.Stop(ctx); err == nil || p.Status() != worker.StatusKilled {
			t.Errorf("Stop: %v, it is %s", err, p.Status())
		}
		<-p.Gone()
	})
	t.Run("over already", func(t *testing.T) {
		out := newLines()
		p := start(t, helperCommand("ignore", out), worker.WithGrace(time.Hour))
		out.await(t, "ready")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.Stop(ctx); err == nil || p.Status() != worker.StatusKilled {
			t.Errorf("Stop: %v, it is %s", err, p.Status())
		}
		<-p.Gone()
		if err := syscall.Kill(p.PID(), 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("the process still exists: %v", err)
		}
	})
	t.Run("from everywhere", func(t *testing.T) {
		p := start(t, helperCommand("sleep", nil))
		done := make(chan error)
		for range 8 {
			go func() { done <- p.Stop(within(t)) }()
		}
		for range 8 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// gone waits until no process has the number, except a zombie that another
// process has to reap.
func gone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || zombie(pid) {
			return
		}
	}
	t.Errorf("process %d still runs", pid)
}

func TestGrandchildrenDoNotSurvive(t *testing.T) {
	t.Run("a stop", func(t *testing.T) {
		out := newLines()
		p := start(t, helperCommand("parent:ignore", out), worker.WithGrace(50*time.Millisecond))
		pid := out.awaitPID(t, "child ")
		out.await(t, "ready")
		_ = p.Stop(within(t))
		gone(t, pid)
	})
	t.Run("a program that forks and exits", func(t *testing.T) {
		out := newLines()
		p := start(t, helperCommand("fork:ignore", out), worker.WithGrace(50*time.Millisecond))
		pid := out.awaitPID(t, "child ")
		<-p.Done()
		gone(t, pid)
		if p.Status() != worker.StatusFinished {
			t.Errorf("it is %s, %v", p.Status(), p.Err())
		}
	})
	t.Run("a crash", func(t *testing.T) {
		out := newLines()
		p := start(t, helperCommand("parent:ignore", out), worker.WithGrace(50*time.Millisecond))
		pid := out.awaitPID(t, "child ")
		_ = syscall.Kill(p.PID(), syscall.SIGKILL)
		<-p.Done()
		gone(t, pid)
		if p.Status() != worker.StatusFailed {
			t.Errorf("it is %s, %v", p.Status(), p.Err())
		}
	})
}

// preforked is a program with a child, which it stops in its own order: by $END.
const preforked = `
sh -c 'trap "echo the child was asked; exit" TERM; trap "echo the child was told" USR1; echo the child is ready; while :; do sleep 0.05; done' &
trap 'sleep 0.3; $END $!; echo the program ends; exit 0' TERM
trap 'echo the program was told' USR1
echo the program is ready
while :; do wait; done`

// The kubelet and tini signal the main process alone: a child that a signal reaches first
// leaves the work that the program has given to it.
func TestSignalsGoToTheProgramAlone(t *testing.T) {
	begin := func(t *testing.T, end string, opts ...worker.ProcessOption) (*worker.Process, *lines) {
		cmd, out := exec.Command("sh", "-c", preforked), newLines()
		cmd.Stdout = out
		p := start(t, cmd, append(opts, worker.WithGrace(time.Minute), worker.WithEnv("END="+end))...)
		out.await(t, "the child is ready")
		out.await(t, "the program is ready")
		if err := p.Signal(syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		out.await(t, "the program was told")
		return p, out
	}
	t.Run("alone", func(t *testing.T) {
		p, out := begin(t, "kill -KILL")
		if err := p.Stop(within(t)); err != nil {
			t.Error(err)
		}
		if text := out.String(); !strings.Contains(text, "the program ends") || strings.Contains(text, "the child was") {
			t.Errorf("a signal reached the child, or the program did not end:\n%s", text)
		}
	})
	t.Run("group", func(t *testing.T) {
		p, out := begin(t, "wait", worker.WithGroupSignals())
		out.await(t, "the child was told")
		if err := p.Stop(within(t)); err != nil {
			t.Error(err)
		}
		if text := out.String(); strings.Count(text, "the child was asked") != 1 || !strings.Contains(text, "the program ends") {
			t.Errorf("the child was not asked once:\n%s", text)
		}
	})
}

func TestStoppedProcessIsContinuedToEnd(t *testing.T) {
	out := newLines()
	p := start(t, helperCommand("polite:0", out))
	out.await(t, "ready")
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(within(t)); err != nil || p.Status() != worker.StatusStopped || p.State().Exit.Code != 0 {
		t.Errorf("Stop: %v, it is %+v", err, p.State())
	}
}

type counter struct{ n atomic.Int64 }

func (c *counter) Write(b []byte) (int, error) { c.n.Add(int64(len(b))); return len(b), nil }

func TestProcessOutput(t *testing.T) {
	t.Run("a quarter of a gigabyte without a newline", func(t *testing.T) {
		var got counter
		cmd := helperCommand("flood", nil)
		cmd.Stdout = &got
		p := start(t, cmd)
		<-p.Done()
		if n := got.n.Load(); n != 1<<28 || p.Status() != worker.StatusFinished {
			t.Errorf("%d bytes, it is %s, %v", n, p.Status(), p.Err())
		}
	})
	t.Run("its reader is gone", func(t *testing.T) { // the pipe is full, and the program blocks in a write
		r, w := io.Pipe()
		cmd := helperCommand("flood", nil)
		cmd.Stdout, cmd.WaitDelay = w, 10*time.Millisecond
		p := start(t, cmd)
		if _, err := r.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		_ = p.Signal(syscall.SIGKILL)
		<-p.Done() // although exec waits for its Writer
		var left *worker.AbandonedError
		if !errors.As(p.Err(), &left) || !strings.Contains(left.Where, "Stdout") || p.Status() != worker.StatusFailed {
			t.Errorf("it is %s, %v", p.Status(), p.Err())
		}
		select {
		case <-p.Gone():
			t.Error("the worker is gone while its Writer blocks")
		default:
		}
		r.Close()
		<-p.Gone()
	})
	t.Run("closed by the program", func(t *testing.T) {
		out := newLines()
		p := start(t, helperCommand("closeout", out))
		out.await(t, "ready")
		if err := p.Stop(within(t)); err != nil || p.Status() != worker.StatusStopped {
			t.Errorf("Stop: %v, it is %s", err, p.Status())
		}
	})
}

func TestHandoverIsAddedToTheEnvironment(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/run/systemd/notify")
	t.Setenv(helperEnv, "environ") // inherited: Env stays nil
	t.Setenv(worker.EnvPrevious, "our own")
	environ := func(env []string, ctx context.Context) []string {
		out := newLines()
		cmd := helperCommand("environ", out)
		cmd.Env = env
		p := worker.NewProcess("child", cmd)
		if err := p.Start(ctx); err != nil {
			t.Fatal(err)
		}
		<-p.Done()
		return strings.Split(strings.TrimSpace(out.String()), "\n")
	}
	ctx := worker.WithHandover(t.Context(), worker.Handover{Session: "s1", Restarts: 2, Previous: &worker.Exit{Status: worker.StatusFailed, Code: 3}})
	got := environ(nil, ctx)
	for _, want := range []string{"LIFECYCLE_SESSION=s1", "LIFECYCLE_RESTARTS=2", `LIFECYCLE_PREVIOUS_EXIT={"status":"Failed","code":3}`, "PATH=" + os.Getenv("PATH")} {
		if !slices.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
	if slices.Contains(got, "NOTIFY_SOCKET=/run/systemd/notify") {
		t.Error("the child has the variables for systemd")
	}
	got = environ([]string{helperEnv + "=environ", "MINE=1", "NOTIFY_SOCKET=given"}, worker.WithHandover(t.Context(), worker.Handover{Session: "s2"}))
	want := []string{"MINE=1", "NOTIFY_SOCKET=given", "LIFECYCLE_SESSION=s2", "LIFECYCLE_RESTARTS=0", "LIFECYCLE_PREVIOUS_EXIT="}
	for _, v := range want {
		if !slices.Contains(got, v) {
			t.Errorf("no %q in %q", v, got)
		}
	}
	if slices.ContainsFunc(got, func(v string) bool { return strings.HasPrefix(v, "PATH=") }) {
		t.Errorf("the worker changed the caller's environment: %q", got)
	}
}
