package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

func zombie(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(text), ") Z ")
}

// runs reports whether the kernel has not ended a process yet.
func runs(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(text), ") Z ") && !strings.Contains(string(text), ") X ")
}

func TestGrandchildGetsTheGraceToo(t *testing.T) {
	out := newLines()
	p := start(t, helperCommand("parent:late", out), worker.WithGrace(time.Minute))
	out.await(t, "grandchild ")
	if err := p.Stop(within(t)); err != nil {
		t.Error(err)
	}
	if !strings.Contains(out.String(), "flushed") {
		t.Errorf("the grandchild got no grace: %q", out.String())
	}
}

// A process that was killed holds its files until the kernel has ended it.
func TestGoneOnceTheGroupHasEnded(t *testing.T) {
	r, w, err := os.Pipe() // the test's own: for a pipe that the worker has made, it waits in any case
	if err != nil {
		t.Fatal(err)
	}
	cmd, out := helperCommand("parent:hoard", nil), newLines()
	cmd.Stdout = w
	var copying sync.WaitGroup
	copying.Go(func() { _, _ = io.Copy(out, r) })
	defer r.Close()
	defer copying.Wait()
	p := start(t, cmd, worker.WithGrace(time.Millisecond))
	_ = w.Close()
	pid := out.awaitPID(t, "child ")
	out.await(t, "ready")
	_ = p.Stop(within(t))
	<-p.Gone()
	if runs(pid) {
		t.Error("a process of the group has not ended")
	}
}

func TestParentDeathSignalIsNotFiredByADyingThread(t *testing.T) {
	out := newLines()
	var p *worker.Process
	started := make(chan struct{})
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		p = start(t, helperCommand("sleep", out))
		close(started)
	}()
	<-started
	out.await(t, "ready")
	// Threads that die must not end the process. This many at once include every
	// idle thread, and so the thread that started the process.
	var locked, done sync.WaitGroup
	all := make(chan struct{})
	for range 100 {
		locked.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			locked.Done()
			<-all
		})
	}
	locked.Wait()
	close(all)
	done.Wait()
	select {
	case <-p.Done():
		t.Fatalf("it ended: %s, %v", p.Status(), p.Err())
	case <-time.After(300 * time.Millisecond): // the signal would have come by now
	}
	if err := p.Stop(within(t)); err != nil {
		t.Error(err)
	}
}

func TestProcessDiesWithItsParent(t *testing.T) {
	out := newLines()
	parent := start(t, helperCommand("supervise", out))
	pid := out.awaitPID(t, "worker ")
	if err := syscall.Kill(parent.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone(t, pid)
}

func TestOOMKillIsRecorded(t *testing.T) {
	group := cgroupWithLimit(t, 64<<20)
	out := newLines()
	p := start(t, helperCommand("feed:"+group, out))
	<-p.Done()
	var s worker.State
	if err := json.Unmarshal([]byte(out.String()), &s); err != nil {
		t.Fatalf("%v: %q", err, out.String())
	}
	if s.Status != worker.StatusFailed || s.Exit == nil || !s.Exit.OOM || s.Exit.Signal != "SIGKILL" || s.Error != "out of memory: signal: killed" {
		t.Errorf("it is %q", out.String())
	}
}

// cgroupWithLimit makes a memory cgroup, v2 or v1, or skips the test.
func cgroupWithLimit(t *testing.T, limit int) string {
	t.Helper()
	for _, at := range []struct{ root, file string }{{"/sys/fs/cgroup", "memory.max"}, {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}} {
		dir := fmt.Sprintf("%s/worker-test-%d", at.root, os.Getpid())
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		file, err := os.OpenFile(dir+"/"+at.file, os.O_WRONLY, 0)
		if err == nil {
			_, err = fmt.Fprint(file, limit)
			file.Close()
		}
		if err != nil {
			_ = os.Remove(dir)
			continue
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		return dir
	}
	t.Skip("this machine allows no memory cgroup: the test needs root and the memory controller")
	return ""
}

func TestProcessIsReapedOnceAndNotSignalledAfterwards(t *testing.T) {
	for range 20 {
		p := start(t, helperCommand("exit:0", nil))
		stop := make(chan struct{})
		go func() {
			defer close(stop)
			for {
				if err := p.Signal(syscall.Signal(0)); errors.Is(err, os.ErrProcessDone) {
					return
				}
			}
		}()
		_ = p.Stop(context.WithoutCancel(t.Context()))
		<-stop
		if errors.Is(p.Err(), syscall.ECHILD) {
			t.Fatal("another goroutine reaped it")
		}
	}
}

func TestOrphansAreReapedAsPID1(t *testing.T) {
	out := newLines()
	cmd := helperCommand("init", out)
	cmd.Stderr = out
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	p := worker.NewProcess("init", cmd)
	if err := p.Start(t.Context()); err != nil {
		t.Skipf("this machine allows no PID namespace: %v", err)
	}
	<-p.Done()
	if got := out.String(); !strings.HasSuffix(got, "stolen 0 children 0\n") || p.Status() != worker.StatusFinished {
		t.Errorf("it is %s, %v, said %q", p.Status(), p.Err(), got)
	}
}

// Attributes of a command that contradict what the worker does: a group of its own is
// not asked for twice.
func TestAttributesThatTheWorkerSets(t *testing.T) {
	for name, attr := range map[string]*syscall.SysProcAttr{
		"session and group": {Setsid: true, Setpgid: true}, "another group": {Setpgid: true, Pgid: 1},
	} {
		cmd := helperCommand("exit:0", nil)
		cmd.SysProcAttr = attr
		p := start(t, cmd)
		<-p.Gone()
		if s := p.State(); s.Status != worker.StatusFinished {
			t.Errorf("%s: %s, %s", name, s.Status, s.Error)
		}
	}
}

// A shell that starts a program waits in the kernel until the program runs. A SIGSTOP that comes
// before that stops the new process, and with it the shell: Suspend returns, and Resume lets both
// go on.
func TestSuspendBetweenVforkAndExec(t *testing.T) {
	out := newLines()
	cmd := exec.Command("/bin/sh", "-c", "while :; do /bin/true; /bin/true; echo tick; done")
	cmd.Stdout = out
	p := start(t, cmd)
	for round := range 100 {
		had := strings.Count(out.String(), "tick")
		for strings.Count(out.String(), "tick") <= had {
			time.Sleep(time.Millisecond)
		}
		if err := p.Suspend(within(t)); err != nil {
			t.Fatalf("the suspend of round %d: %v", round, err)
		}
		if err := p.Resume(within(t)); err != nil {
			t.Fatalf("the resume of round %d: %v", round, err)
		}
	}
	if err := p.Stop(within(t)); err != nil {
		t.Error(err)
	}
}
