//go:build unix

package procpool_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
	"github.com/pleme-io/lifecycle-go/worker"
)

// TestBrokenProtocolCostsOneRequestAndTheWorker has workers that break the
// contract on their first query and keep to it on the next: the next is answered.
func TestBrokenProtocolCostsOneRequestAndTheWorker(t *testing.T) {
	for _, c := range []struct {
		mode string
		is   error
		want string
	}{
		{"garbage", wire.ErrNotJSON, "content"},
		{"partial", io.ErrUnexpectedEOF, "in the middle of a line"},
		{"other-request", procpool.ErrProtocol, `"q999", which it was not given`},
	} {
		t.Run(c.mode, func(t *testing.T) {
			p := start(t, c.mode, func(cfg *procpool.Config) {
				cfg.MaxQueue, cfg.Backoff.Min = 5, time.Millisecond
			})
			first := submit(t, p, ask{}.raw())
			_, err := first.Result()
			var broke *procpool.ProtocolError
			if !errors.As(err, &broke) || !errors.Is(err, c.is) || broke.Worker != "p/1" || broke.Query != first.ID() || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
			eventually(t, "the worker is replaced", func() bool { return p.Stats().Crashed == 1 })
		})
	}
}

func TestReadyTwiceRecyclesTheWorker(t *testing.T) {
	p := start(t, "ready-twice", func(c *procpool.Config) { c.MinWorkers, c.Backoff.Min = 1, time.Hour; c.Backoff.Max = time.Hour })
	eventually(t, "it is gone", func() bool { return p.Stats().Crashed == 1 })
	if err := p.Probe(within(t)).Err; err == nil || !strings.Contains(err.Error(), "ready again") {
		t.Errorf("the pool says %v", err)
	}
}

func TestUnknownTypesAndFieldsAreIgnored(t *testing.T) {
	p := start(t, "unknown-types", nil)
	for range 3 {
		if got := do(t, p, ask{}.raw()); got != `"fine"` {
			t.Errorf("got %s", got)
		}
	}
	if s := p.Stats(); s.Unknown != 3 || s.Spawned != 1 {
		t.Errorf("%+v", s)
	}
}

// TestTooLongLineFailsThatRequest also shows that the worker lives on: what is
// too long is skipped.
func TestTooLongLineFailsThatRequest(t *testing.T) {
	for _, mode := range []string{"100MB", "100MB-complete"} {
		t.Run(mode, func(t *testing.T) {
			p := start(t, mode, func(c *procpool.Config) { c.MaxFrame, c.MaxQueue, c.CancelGrace = 1<<20, 1, patience })
			var long *wire.TooLongError
			if _, err := p.Do(within(t), ask{}.raw()); !errors.As(err, &long) || !errors.Is(err, procpool.ErrProtocol) || long.Limit != 1<<20 {
				t.Fatalf("got %v", err)
			}
			if got := do(t, p, ask{}.raw()); got != `"well"` {
				t.Errorf("got %s", got)
			}
			if s := p.Stats(); s.Spawned != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestFloodsAreBounded(t *testing.T) {
	t.Run("of messages for a caller that does not read", func(t *testing.T) {
		p := start(t, "flood", nil)
		q := submit(t, p, ask{}.raw())
		eventually(t, "it streams", func() bool { return q.State() == procpool.QueryStreaming })
		q.Cancel(nil)
		eventually(t, "the worker is gone", func() bool { return p.Stats().State == procpool.PoolIdle })
	})
	t.Run("of no use", func(t *testing.T) {
		p := start(t, "flood-unknown", nil)
		if _, err := p.Do(within(t), ask{}.raw()); !errors.Is(err, procpool.ErrProtocol) || !strings.Contains(err.Error(), "of no use") {
			t.Errorf("got %v", err)
		}
	})
}

func TestStallInTheMiddleOfALine(t *testing.T) {
	p := start(t, "stall", func(c *procpool.Config) { c.CancelGrace = 50 * time.Millisecond })
	if _, err := p.Do(within(t), ask{}.raw(), procpool.Timeout(100*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	eventually(t, "the worker is gone", func() bool { return p.Stats().State == procpool.PoolIdle })
}

func TestDisconnectIsACrash(t *testing.T) {
	p := start(t, "disconnect", nil)
	var crash *procpool.CrashError
	if _, err := p.Do(within(t), ask{}.raw()); !errors.As(err, &crash) || crash.Worker != "p/1" {
		t.Errorf("got %v", err)
	}
}

func TestCrashIsTypedWithItsExitAndItsLastWords(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.Backoff.Min = time.Millisecond; c.MaxQueue = 1 })
	var crash *procpool.CrashError
	_, err := p.Do(within(t), ask{Op: "exit", N: 7, Text: "noise\nout of cheese"}.raw())
	if !errors.As(err, &crash) || crash.ExitCode != 7 || crash.Signal != "" || crash.PID == 0 || crash.Query == "" ||
		!strings.Contains(crash.Stderr, "noise") || !strings.HasSuffix(err.Error(), "its last words: out of cheese") {
		t.Errorf("got %v", err)
	}
	_, err = p.Do(within(t), ask{Op: "kill", N: int(syscall.SIGKILL)}.raw())
	if !errors.As(err, &crash) || crash.Signal != "SIGKILL" || crash.ExitCode != -1 {
		t.Errorf("got %v", err)
	}
}

func TestRetryOfAnIdempotentQuery(t *testing.T) {
	quick := func(c *procpool.Config) { c.Backoff.Min = time.Millisecond; c.MaxQueue = 1 }
	t.Run("it is tried again", func(t *testing.T) {
		p := start(t, "serve", quick)
		q := ask{Op: "exit-once", N: 1, Path: filepath.Join(t.TempDir(), "was")}.raw()
		if got := do(t, p, q, procpool.Idempotent()); got != `"second time"` || p.Stats().Retried != 1 {
			t.Errorf("got %s, %+v", got, p.Stats())
		}
	})
	t.Run("not for ever", func(t *testing.T) {
		p := start(t, "serve", quick)
		var crash *procpool.CrashError
		if _, err := p.Do(within(t), ask{Op: "exit", N: 1}.raw(), procpool.Idempotent()); !errors.As(err, &crash) || p.Stats().Retried != 2 {
			t.Errorf("got %v, %+v", err, p.Stats())
		}
	})
	t.Run("not unless it is marked", func(t *testing.T) {
		p := start(t, "serve", quick)
		q := ask{Op: "exit-once", N: 1, Path: filepath.Join(t.TempDir(), "was")}.raw()
		if _, err := p.Do(within(t), q); err == nil || p.Stats().Retried != 0 {
			t.Errorf("got %v, %+v", err, p.Stats())
		}
	})
	t.Run("not after a message", func(t *testing.T) {
		p := start(t, "serve", quick)
		if _, err := p.Do(within(t), ask{Op: "exit-after-message", N: 1}.raw(), procpool.Idempotent()); err == nil || p.Stats().Retried != 0 {
			t.Errorf("got %v, %+v", err, p.Stats())
		}
	})
}

func TestCrashLoopBacksOffAndOpensTheBreaker(t *testing.T) {
	p := start(t, "exit:always", func(c *procpool.Config) {
		c.MinWorkers, c.BreakAfter = 1, 3
		c.Backoff = worker.Backoff{Min: time.Millisecond, Max: time.Hour, Factor: 1000, Jitter: worker.NoJitter}
	})
	// After 1 ms, 1 s and 1000 s: the third is the last for now.
	eventually(t, "three have failed", func() bool { return p.Stats().Failures == 3 })
	_, err := p.Do(within(t), ask{}.raw())
	var rejected *procpool.RejectedError
	if !errors.As(err, &rejected) || !errors.Is(err, procpool.ErrUnavailable) || rejected.RetryAfter < time.Minute {
		t.Errorf("got %v", err)
	}
	if s := p.Stats(); s.Spawned != 3 || time.Until(s.NotUntil) < time.Minute {
		t.Errorf("%+v", s)
	}
}

func TestBreakerClosesAgain(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := startPool(t, func() *exec.Cmd {
		if _, err := os.Stat(broken); err == nil {
			return self("exit:broken")
		}
		return self("serve")
	}, func(c *procpool.Config) {
		c.BreakAfter = 1
		c.Backoff = worker.Backoff{Min: 20 * time.Millisecond, Factor: 1}
	})
	if _, err := p.Do(within(t), ask{}.raw()); !errors.Is(err, procpool.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	os.Remove(broken)
	eventually(t, "a query is answered", func() bool { _, err := p.Do(within(t), ask{}.raw()); return err == nil })
	if s := p.Stats(); s.Failures != 0 {
		t.Errorf("%+v", s)
	}
}

func TestHealthChecks(t *testing.T) {
	t.Run("one that does not answer is replaced", func(t *testing.T) {
		p := start(t, "no-health", func(c *procpool.Config) {
			c.MinWorkers, c.HealthInterval, c.HealthTimeout = 1, 20*time.Millisecond, 20*time.Millisecond
			c.Backoff.Min = time.Millisecond
		})
		eventually(t, "it was replaced", func() bool { return p.Stats().Spawned > 1 })
	})
	t.Run("one that is stopped is replaced", func(t *testing.T) {
		p := start(t, "serve", func(c *procpool.Config) {
			c.HealthInterval, c.HealthTimeout = 50*time.Millisecond, 200*time.Millisecond
		})
		pid, _ := strconv.Atoi(do(t, p, ask{Op: "pid"}.raw()))
		eventually(t, "it is healthy", func() bool {
			s := p.State()
			return len(s.Children) == 1 && s.Children[0].Health == worker.HealthHealthy
		})
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is gone", func() bool { return !alive(pid) })
	})
}

// TestStrangersCannotTakeAWorkersPlace also shows that they do not keep the
// worker out, be they many or half open.
func TestStrangersCannotTakeAWorkersPlace(t *testing.T) {
	if !isLinux() {
		t.Skip("who has connected is known on Linux only; elsewhere the folder keeps others out")
	}
	dir := socketDir(t)
	gate := filepath.Join(t.TempDir(), "gate")
	p := startPool(t, func() *exec.Cmd {
		cmd := self("serve")
		wrapped := exec.Command("/bin/sh", "-c", `while ! test -e "$0"; do sleep 0.01; done; "$1"; exit $?`, gate, cmd.Path) // a wrapper that does not exec
		wrapped.Env = cmd.Env
		return wrapped
	}, func(c *procpool.Config) { c.MinWorkers, c.SocketDir = 1, dir })
	var socket string
	eventually(t, "there is a socket", func() bool {
		found, _ := filepath.Glob(dir + "/*.sock")
		if len(found) == 1 && !strings.Contains(found[0], "000000.sock") {
			socket = found[0]
		}
		return socket != ""
	})
	for range 30 {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintln(conn, `{"type":"ready"}`)
	}
	eventually(t, "they were refused", func() bool { return p.Stats().Strangers >= 30 })
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := do(t, p, ask{Op: "pid"}.raw()); got == strconv.Itoa(os.Getpid()) || p.Stats().Spawned != 1 {
		t.Errorf("process %s answers, %+v", got, p.Stats())
	}
	if _, err := net.Dial("unix", socket); err == nil {
		t.Error("the door is still open")
	}
}

func TestHalfOpenConnectionOfTheGroupDoesNotKeepTheWorkerOut(t *testing.T) {
	p := start(t, "probe-first", nil)
	if got := do(t, p, ask{}.raw()); got != "{}" {
		t.Errorf("got %s", got)
	}
}

func TestDaemonIsRefusedByName(t *testing.T) {
	if !isLinux() {
		t.Skip("who has connected is known on Linux only")
	}
	p := start(t, "daemon", func(c *procpool.Config) {
		c.StartTimeout = 2 * time.Second
		c.BreakAfter = 1
		c.Backoff.Min = time.Minute
	})
	if _, err := p.Do(within(t), ask{}.raw()); !errors.Is(err, procpool.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if s := p.Stats(); s.Strangers == 0 {
		t.Errorf("%+v", s)
	}
}

func TestForkedChildrenEndWithTheWorker(t *testing.T) {
	p := start(t, "serve", nil)
	pid, err := strconv.Atoi(do(t, p, ask{Op: "fork"}.raw()))
	if err != nil || !alive(pid) {
		t.Fatalf("child %d, %v", pid, err)
	}
	if _, err := p.Do(within(t), ask{Op: "exit", N: 1}.raw()); err == nil {
		t.Error("it has answered")
	}
	eventually(t, "the child is gone", func() bool { return !alive(pid) })
}

func TestWorkerThatIgnoresShutdownIsKilled(t *testing.T) {
	dir := socketDir(t)
	p, err := procpool.New(procpool.Config{
		Name: "p", Command: func() *exec.Cmd { return self("ignores-shutdown") }, SocketDir: dir, Logger: quiet, MinWorkers: 1,
		ShutdownGrace: 50 * time.Millisecond, KillGrace: 50 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is ready", func() bool { return p.Stats().Ready == 1 })
	pid := p.State().Children[0].PID
	if err := p.Stop(within(t)); err != nil || alive(pid) {
		t.Errorf("stop: %v, alive: %v", err, alive(pid))
	}
	if err := p.Start(context.Background()); !errors.Is(err, worker.ErrNotStartable) {
		t.Errorf("a second start: %v", err)
	}
}

func TestDrainAndStop(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) { c.MaxQueue = 5; c.DrainTimeout = 100 * time.Millisecond })
	running := submit(t, p, ask{Op: "sleep", Seconds: 0.2}.raw())
	waiting := submit(t, p, ask{}.raw())
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := p.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "2 queries") {
		t.Errorf("a drain that has no time: %v", err)
	}
	if _, err := p.Do(within(t), ask{}.raw()); !errors.Is(err, procpool.ErrDraining) {
		t.Errorf("a query while it drains: %v", err)
	}
	if err := p.Drain(within(t)); err != nil {
		t.Error(err)
	}
	if running.State() != procpool.QueryComplete || waiting.State() != procpool.QueryComplete {
		t.Errorf("what was accepted is %s and %s", running.State(), waiting.State())
	}
}

func TestStopIsBoundedAndEndsEveryQuery(t *testing.T) {
	dir := socketDir(t)
	p, err := procpool.New(procpool.Config{Name: "p", Command: func() *exec.Cmd { return self("serve") }, SocketDir: dir, Logger: quiet, MaxQueue: 1, DrainTimeout: time.Hour, QueryTimeout: time.Hour,
		ShutdownGrace: time.Hour, KillGrace: time.Hour, CancelGrace: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Do(within(t), ask{}.raw()); !errors.Is(err, procpool.ErrDraining) {
		t.Errorf("before the start: %v", err)
	}
	if err := p.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	q := submit(t, p, ask{Op: "deaf", Seconds: 3600}.raw())
	w := submit(t, p, ask{}.raw())
	eventually(t, "it is busy", func() bool { return p.Stats().Busy == 1 })
	pid := p.State().Children[0].PID
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := p.Stop(ctx); err != nil || alive(pid) {
		t.Errorf("stop: %v, alive: %v", err, alive(pid))
	}
	for _, q := range []*procpool.Query{q, w} {
		if _, err := q.Result(); !errors.Is(err, procpool.ErrDraining) || q.State() != procpool.QueryError {
			t.Errorf("%s: %v, %s", q.ID(), err, q.State())
		}
	}
}

func TestParentKilledLeavesNothing(t *testing.T) {
	if !isLinux() {
		t.Skip("the parent-death signal is Linux's")
	}
	dir := socketDir(t)
	cmd := self("parent:" + dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []int
	for {
		var word string
		var pid int
		n, err := fmt.Fscanln(out, &word, &pid)
		if word == "all" {
			break
		}
		if n != 2 {
			t.Fatal(n, err)
		}
		pids = append(pids, pid)
	}
	if len(pids) != 3 {
		t.Fatalf("there are %d workers", len(pids))
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for _, pid := range pids {
		eventually(t, fmt.Sprintf("%d is gone", pid), func() bool { return !alive(pid) })
	}
	// It could not remove the socket of the worker that was starting. The next
	// pool does.
	if left, _ := filepath.Glob(dir + "/*.sock"); len(left) != 1 {
		t.Errorf("left are %v", left)
	}
	start(t, "serve", func(c *procpool.Config) { c.SocketDir = dir })
}

func TestSocketDirThatCannotBeUsed(t *testing.T) {
	open, file, long := filepath.Join(t.TempDir(), "open"), filepath.Join(t.TempDir(), "file"), filepath.Join(socketDir(t), strings.Repeat("d", 90))
	for _, err := range []error{os.Mkdir(open, 0o700), os.Chmod(open, 0o755), os.WriteFile(file, nil, 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for dir, want := range map[string]string{
		open:         "mode 0755, want 0700",
		file:         "is no folder",
		file + "/x/": "make the folder for sockets",
		long:         "set SocketDir to a shorter one",
	} {
		p, err := procpool.New(procpool.Config{Command: func() *exec.Cmd { return self("serve") }, SocketDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Start(context.Background()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with %s: %v, want %q", dir, err, want)
		}
		if p.State().Status != worker.StatusFailed {
			t.Errorf("with %s the pool is %s", dir, p.State().Status)
		}
	}
}

func TestLiveSocketsOfOthersAreKept(t *testing.T) {
	dir := socketDir(t)
	live, err := net.Listen("unix", dir+"/live.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/stale.sock", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	p, err := procpool.New(procpool.Config{Command: func() *exec.Cmd { return self("serve") }, SocketDir: dir, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	defer p.Stop(within(t))
	left, _ := filepath.Glob(dir + "/*")
	if len(left) != 1 || filepath.Base(left[0]) != "live.sock" {
		t.Errorf("left are %v", left)
	}
}

// TestLargeWriteToAWorkerThatDoesNotReadIsGivenUp writes more than all buffers
// hold to a worker that stands still.
func TestLargeWriteToAWorkerThatDoesNotReadIsGivenUp(t *testing.T) {
	p := start(t, "serve", nil)
	pid, _ := strconv.Atoi(do(t, p, ask{Op: "pid"}.raw()))
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	payload, _ := json.Marshal(strings.Repeat("x", 8<<20))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.Do(ctx, payload); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	eventually(t, "the worker is gone", func() bool { return !alive(pid) })
}

// TestWhatAPoolSaysFitsTheSchemas has a worker that holds every line against its
// schema, as the helpers that speak by hand all do, and writes down what it was
// told. The other direction is in package conformance.
func TestWhatAPoolSaysFitsTheSchemas(t *testing.T) {
	file := filepath.Join(t.TempDir(), "heard")
	t.Setenv("HEARD", file)
	p, err := procpool.New(procpool.Config{
		Name: "p", Command: func() *exec.Cmd { return self("told") }, SocketDir: socketDir(t), Logger: quiet, MinWorkers: 1, MaxQueue: 1,
		HealthInterval: 5 * time.Millisecond, HealthTimeout: patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is ready", func() bool { return p.Stats().Ready == 1 }) // or the query may be given up before it is sent
	q := submit(t, p, ask{Text: "é\n\"\u2028"}.raw())
	eventually(t, "it is busy", func() bool { return p.Stats().Busy == 1 })
	q.Cancel(nil)
	do(t, p, []byte(" [\n1 ]\n"))
	eventually(t, "it was asked for its health", func() bool {
		text, _ := os.ReadFile(file)
		return strings.Contains(string(text), string(wire.HealthCheck))
	})
	if err := p.Stop(within(t)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []wire.Type{wire.Query, wire.Cancel, wire.HealthCheck, wire.Shutdown} {
		if !strings.Contains(string(text), string(want)) {
			t.Errorf("it was not told %s, only\n%s", want, text)
		}
	}
	if s := p.Stats(); s.Crashed != 0 {
		t.Errorf("%+v", s)
	}
}

// TestFullDiskIsAnErrorOfTheStart mounts a file system with room for one file.
func TestFullDiskIsAnErrorOfTheStart(t *testing.T) {
	dir := socketDir(t)
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "nr_inodes=2,mode=0700", "full", dir).CombinedOutput(); err != nil {
		t.Skipf("a file system cannot be mounted here: %v %s", err, out)
	}
	defer exec.Command("umount", dir).Run()
	sub := filepath.Join(dir, "sub")
	p, err := procpool.New(procpool.Config{Command: func() *exec.Cmd { return self("serve") }, SocketDir: sub, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(context.Background()); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v", err)
		_ = p.Stop(within(t))
	}
}
