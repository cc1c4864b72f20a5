package worker

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"
)

// HoldRestarts tells the worker that a stop is in progress: from now on an end by
// SIGTERM or SIGINT is not a failure. An App calls it when it begins to drain.
func (p *Process) HoldRestarts() { p.held.Signal() }

// Stop asks the program to end, and waits until the program and its group have
// ended. It kills them when the grace is over or ctx is about to end. When ctx
// ends before the kernel has ended a killed program, the worker is Killed at once
// and the error is an [*AbandonedError]. [BaseWorker.Gone] closes when the
// program has ended.
func (p *Process) Stop(ctx context.Context) error {
	p.begun.Lock()
	live, cancel := p.RequestStop(ErrStopRequested), p.cancel
	p.begun.Unlock()
	if cancel != nil {
		cancel(stopCause(ctx))
	}
	if !live {
		return p.killedErr()
	}
	if deadline, ok := ctx.Deadline(); ok {
		// The kernel needs a moment to end killed processes.
		left := time.Until(deadline)
		last := time.AfterFunc(left-min(left/10, 500*time.Millisecond), p.forceNow)
		defer last.Stop()
	}
	select {
	case <-p.Done():
		return p.killedErr()
	case <-ctx.Done():
	}
	p.kill()
	p.forceNow()
	select {
	case <-p.Done(): // both were ready
		return p.killedErr()
	default:
	}
	var err error = &AbandonedError{Name: p.Name(), Where: fmt.Sprintf("process %d, which SIGKILL has not ended yet", p.PID())}
	select {
	case <-p.exited.Signaled():
		<-p.known.Signaled() // no process of the group is waited for any more
		if blocked := p.pipes.blocked(p.Name()); blocked != nil {
			err = blocked
			p.recordEnd(err, true)
		}
	default:
	}
	if p.Kill(err) {
		return err
	}
	return p.killedErr()
}

func (p *Process) forceNow() { p.force.Signal() }

// ask asks the group to stop. A stopped process gets no signal but SIGKILL
// before it is continued.
func (p *Process) ask() {
	p.sig.Lock()
	defer p.sig.Unlock()
	if !p.reaped && !p.forced {
		p.asked = true
		_ = p.signalLocked(p.stopBy) // without permission to signal the group, the worker can only wait for its end
		_ = p.signalLocked(sigCont)
	}
}

func (p *Process) kill() {
	p.sig.Lock()
	defer p.sig.Unlock()
	if p.pid == 0 || p.reaped {
		return
	}
	select {
	case <-p.exited.Signaled(): // only the rest of the group was killed
	default:
		p.forced = true
	}
	_ = p.signalLocked(syscall.SIGKILL)
}

// Signal sends a signal to the whole group. Before the start and after the end
// it returns [os.ErrProcessDone].
func (p *Process) Signal(s syscall.Signal) error {
	p.sig.Lock()
	defer p.sig.Unlock()
	if p.pid == 0 || p.reaped {
		return fmt.Errorf("signal %s: %w", p.Name(), os.ErrProcessDone)
	}
	if err := p.signalLocked(s); err != nil {
		return fmt.Errorf("signal %s: %w", p.Name(), err)
	}
	return nil
}
