//go:build unix

package procpool_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/worker"
)

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
	running, release := waits(t, p)
	waiting := submit(t, p, ask{}.raw())
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := p.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "2 queries") {
		t.Errorf("a drain without time: %v", err)
	}
	if _, err := p.Do(within(t), ask{}.raw()); !errors.Is(err, procpool.ErrDraining) {
		t.Errorf("a query while it drains: %v", err)
	}
	release()
	if err := p.Drain(within(t)); err != nil {
		t.Error(err)
	}
	if running.State() != procpool.QueryComplete || waiting.State() != procpool.QueryComplete {
		t.Errorf("the accepted queries are %s and %s", running.State(), waiting.State())
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
	ctx, cancel := context.WithTimeout(context.Background(), 12*time.Second)
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
	// The killed pool could not remove the socket of the worker that was starting. The next
	// pool does.
	left, _ := filepath.Glob(dir + "/*.sock")
	if len(left) != 1 {
		t.Fatalf("left are %v", left)
	}
	old(t, left[0])
	start(t, "serve", func(c *procpool.Config) { c.SocketDir = dir })
}
