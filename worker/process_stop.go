package worker

import (
	"context"
	"errors"
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
	if live := p.RequestStop(stopCause(ctx)); live {
		if deadline, ok := ctx.Deadline(); ok {
			// The kernel needs a moment to end killed processes.
			left := time.Until(deadline)
			last := time.AfterFunc(left-min(left/10, 500*time.Millisecond), func() { p.force.Signal() })
			defer last.Stop()
		}
	}
	return p.awaitStop(ctx, func() error {
		p.kill()
		p.force.Signal()
		if p.exited.HasSignaled() {
			<-p.exitRecorded.Signaled() // no process of the group is waited for any more
			if blocked := p.pipes.blocked(p.Name()); blocked != nil {
				p.recordEnd(blocked, true)
				return blocked
			}
		}
		return &AbandonedError{Name: p.Name(), Where: fmt.Sprintf("process %d, which SIGKILL has not ended yet", p.PID())}
	})
}

// ask sends the stop signal to the program, or to all of its group, unless that has it. A
// stopped process gets no signal but SIGKILL before it is continued, and a suspension stops
// the whole group.
func (p *Process) ask(all bool) {
	p.signalMu.Lock()
	defer p.signalMu.Unlock()
	hasAsked := p.asked && p.toGroup
	if p.reaped || p.forced || hasAsked {
		return
	}
	p.asked = true
	signal := p.signalLocked
	if all {
		signal = p.signalGroupLocked
	}
	_ = signal(p.stopBy) // without permission to signal it, the worker can only wait for its end
	_ = p.signalGroupLocked(sigCont)
}

func (p *Process) kill() {
	p.signalMu.Lock()
	defer p.signalMu.Unlock()
	if p.pid == 0 || p.reaped {
		return
	}
	select {
	case <-p.exited.Signaled(): // only the rest of the group was killed
	default:
		p.forced = true
	}
	_ = p.signalGroupLocked(syscall.SIGKILL)
}

// Signal sends a signal to the program, and with [WithGroupSignals] to its whole group.
// Before the start and after the end it returns [os.ErrProcessDone].
func (p *Process) Signal(s syscall.Signal) error { return p.signalBy(p.signalLocked, s) }

// signalLocked sends a signal to whom the options name.
func (p *Process) signalLocked(s syscall.Signal) error {
	if p.toGroup {
		return p.signalGroupLocked(s)
	}
	return p.signalProgramLocked(s)
}

func (p *Process) signalBy(signal func(syscall.Signal) error, s syscall.Signal) error {
	p.signalMu.Lock()
	defer p.signalMu.Unlock()
	if p.pid == 0 || p.reaped {
		return fmt.Errorf("signal %s: %w", p.Name(), os.ErrProcessDone)
	}
	if err := signal(s); err != nil {
		return fmt.Errorf("signal %s: %w", p.Name(), err)
	}
	return nil
}

// Suspend stops the program's whole group with SIGSTOP, and returns once the
// kernel has stopped the program. The program's connections stay open and get no
// answers. On Windows Suspend returns an error.
func (p *Process) Suspend(ctx context.Context) error { return p.suspend(ctx, p) }

// Resume continues the program's group.
func (p *Process) Resume(ctx context.Context) error { return p.resume(ctx, p) }

func (p *Process) quiesce(ctx context.Context) error {
	if sigStop == 0 {
		return fmt.Errorf("%w: this system cannot stop a program", ErrNotSuspendable)
	}
	if err := p.signalBy(p.signalGroupLocked, sigStop); err != nil {
		return err
	}
	for pause := time.Millisecond; !p.isStopped(); pause = min(2*pause, 50*time.Millisecond) {
		if s := p.Status(); s != StatusRunning && s != StatusSuspended {
			return cannotPause(s)
		}
		select {
		case <-time.After(pause):
		case <-p.exited.Signaled():
			return fmt.Errorf("%w: it has ended", ErrNotSuspendable)
		case <-ctx.Done():
			return errors.New("the program has not stopped yet")
		}
	}
	return nil
}

func (p *Process) proceed(_ context.Context, running func() error) error {
	if err := p.signalBy(p.signalGroupLocked, sigCont); err != nil {
		return err
	}
	return running()
}
