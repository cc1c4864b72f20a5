//go:build unix

package worker_test

import (
	"context"
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

func TestProcessSuspends(t *testing.T) {
	out := newLines()
	p := start(t, helperCommand("tick", out))
	out.await(t, "tick 3")
	if err := p.Suspend(within(t)); err != nil || p.Status() != worker.StatusSuspended {
		t.Fatalf("Suspend: %v, it is %s", err, p.Status())
	}
	if err := p.Suspend(within(t)); err != nil {
		t.Errorf("again: %v", err)
	}
	before, still := 0, false
	for range 300 { // until the content of the pipe has arrived
		time.Sleep(200 * time.Millisecond)
		now := len(out.String())
		if still = now == before; still {
			break
		}
		before = now
	}
	if !still {
		t.Error("it works while it is suspended")
	}
	if err := p.Resume(within(t)); err != nil || p.Status() != worker.StatusRunning {
		t.Fatalf("Resume: %v, it is %s", err, p.Status())
	}
	for len(out.String()) == before {
		time.Sleep(time.Millisecond)
	}
	if err := p.Suspend(within(t)); err != nil {
		t.Error(err)
	}
	if err := p.Stop(within(t)); err != nil || p.Status() != worker.StatusStopped {
		t.Errorf("Stop: %v, it is %s", err, p.Status())
	}
	if err := p.Suspend(within(t)); !errors.Is(err, worker.ErrNotSuspendable) {
		t.Errorf("Suspend after the end: %v", err)
	}
}

func TestSuspendedProcessThatIsKilledFails(t *testing.T) {
	out := newLines()
	p := start(t, helperCommand("tick", out))
	out.await(t, "tick 1")
	if err := p.Suspend(within(t)); err != nil {
		t.Fatal(err)
	}
	_ = p.Signal(9)
	<-p.Done()
	if p.Status() != worker.StatusFailed {
		t.Errorf("it is %s", p.Status())
	}
}

// Ten callers suspend one process at once: all succeed, and the program is stopped in
// the end.
func TestConcurrentSuspendsStopTheProcess(t *testing.T) {
	out := newLines()
	p := start(t, helperCommand("tick", out))
	out.await(t, "tick 1")
	for range 5 {
		ctxs := make([]context.Context, 10)
		for i := range ctxs {
			ctxs[i] = within(t)
		}
		if err := errors.Join(suspends(p, ctxs...)...); err != nil {
			t.Error(err)
		}
		if !processStopped(t, p.PID()) || p.Status() != worker.StatusSuspended {
			t.Errorf("it is %s, and the program stopped: %v", p.Status(), processStopped(t, p.PID()))
		}
		if err := p.Resume(within(t)); err != nil || p.Status() != worker.StatusRunning {
			t.Errorf("Resume: %v, it is %s", err, p.Status())
		}
	}
	if err := p.Stop(within(t)); err != nil {
		t.Error(err)
	}
}

// processStopped reports whether a process is stopped by a signal, as ps sees it.
func processStopped(t *testing.T, pid int) bool {
	t.Helper()
	state, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.HasPrefix(strings.TrimSpace(string(state)), "T")
}
