//go:build unix

package procpool_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/worker"
)

// parent starts a pool with a busy, a ready and a starting worker, prints their
// pids, and waits to be killed.
func parent(dir string) {
	p, err := procpool.New(procpool.Config{Name: "p", Command: func() *exec.Cmd { return self("serve") }, MinWorkers: 2, MaxWorkers: 2, SocketDir: dir, Logger: quiet})
	if err != nil {
		panic(err)
	}
	if err := p.Start(context.Background()); err != nil {
		panic(err)
	}
	for p.Stats().Ready < 2 {
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := p.Submit(context.Background(), ask{Op: "deaf", Seconds: 3600}.raw()); err != nil {
		panic(err)
	}
	slow, err := procpool.New(procpool.Config{Name: "slow", Command: func() *exec.Cmd { return self("never-ready") }, MinWorkers: 1, SocketDir: dir, Logger: quiet})
	if err != nil {
		panic(err)
	}
	if err := slow.Start(context.Background()); err != nil {
		panic(err)
	}
	for slow.State().Children[0].PID == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	for _, pool := range []*procpool.Pool{p, slow} {
		for _, w := range pool.State().Children {
			fmt.Println("worker", w.PID)
		}
	}
	fmt.Println("all")
	time.Sleep(time.Hour)
}

// wrapped starts a pool of two workers, each started by a shell that waits for it.
// The kernel ends the shells with this process, not the workers. One worker is
// idle, the other has a query that does not end.
func wrapped(dir string) {
	command := func() *exec.Cmd {
		cmd := exec.Command("sh", "-c", os.Getenv("WRAPPED")+" & wait")
		cmd.Env = append(os.Environ(), helperEnv+"="+cmp.Or(os.Getenv("WRAPPED_MODE"), "serve"))
		return cmd
	}
	var opts []worker.ProcessOption
	if cgroup := os.Getenv("WRAPPED_CGROUP"); cgroup != "" {
		opts = append(opts, worker.WithCgroup(cgroup))
	}
	p, err := procpool.New(procpool.Config{Name: "p", Command: command, MinWorkers: 2, MaxWorkers: 2, SocketDir: dir, Logger: quiet, Process: opts})
	if err != nil {
		panic(err)
	}
	if err := p.Start(context.Background()); err != nil {
		panic(err)
	}
	for p.Stats().Ready < 2 {
		time.Sleep(10 * time.Millisecond)
	}
	q, err := p.Submit(context.Background(), ask{Op: cmp.Or(os.Getenv("WRAPPED_OP"), "deaf-pid")}.raw())
	if err != nil {
		panic(err)
	}
	for pid, err := range q.Messages() {
		fmt.Println("worker", string(pid), err)
		break
	}
	pid, err := p.Do(context.Background(), ask{Op: "pid"}.raw())
	fmt.Println("worker", string(pid), err)
	fmt.Println("all")
	time.Sleep(time.Hour)
}

// namespace starts a pool whose worker does not connect, and prints what happens to
// a process that connects in its place.
func namespace(dir string) {
	p, err := procpool.New(procpool.Config{Name: "p", Command: func() *exec.Cmd { return self("never-ready") }, MinWorkers: 1, SocketDir: dir, Logger: quiet})
	if err != nil {
		panic(err)
	}
	if err := p.Start(context.Background()); err != nil {
		panic(err)
	}
	for ; ; time.Sleep(5 * time.Millisecond) {
		switch s := p.Stats(); {
		case s.Strangers > 0:
			fmt.Println("refused")
			return
		case s.Ready > 0 || s.Crashed > 0:
			fmt.Println("taken")
			return
		}
	}
}
