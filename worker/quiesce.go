package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

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
	if err := p.Signal(sigStop); err != nil {
		return err
	}
	for pause := time.Millisecond; !p.isStopped(); pause = min(2*pause, 50*time.Millisecond) {
		if s := p.Status(); s != StatusRunning && s != StatusSuspended {
			return cannotPause(s)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-p.exited.Signaled():
			timer.Stop()
			return fmt.Errorf("%w: it has ended", ErrNotSuspendable)
		case <-ctx.Done():
			timer.Stop()
			return errors.New("the program has not stopped yet")
		}
	}
	return nil
}

func (p *Process) proceed(_ context.Context, running func() error) error {
	if err := p.Signal(sigCont); err != nil {
		return err
	}
	return running()
}

// Suspend freezes the container. When the engine does not confirm that, Suspend
// asks it to resume the container.
func (c *Container) Suspend(ctx context.Context) error { return c.suspend(ctx, c) }

// Resume lets the container run again.
func (c *Container) Resume(ctx context.Context) error { return c.resume(ctx, c) }

func (c *Container) quiesce(ctx context.Context) error { return do(ctx, c.engine.Pause, c.ID()) }

func (c *Container) proceed(ctx context.Context, running func() error) error {
	if err := do(ctx, c.engine.Unpause, c.ID()); err != nil {
		return err
	}
	return running()
}

// Suspend suspends the children in reverse order. It waits for a child that is
// starting or stopping. Pending children stay pending, and no child starts before
// [Supervisor.Resume]: an instance that its factory returns meanwhile waits too. When
// a child cannot be suspended, or ctx ends, Suspend resumes the suspended ones in
// order.
func (s *Supervisor) Suspend(ctx context.Context) error { return s.suspend(ctx, s) }

// Resume resumes the children in order, and lets pending ones start. It goes on
// when a child cannot be resumed; the error names that child.
func (s *Supervisor) Resume(ctx context.Context) error { return s.resume(ctx, s) }

// quiesce suspends the children, and looks again until it finds none that has begun to
// run meanwhile.
func (s *Supervisor) quiesce(ctx context.Context) error {
	if err := s.setHold(ctx, true); err != nil {
		return err
	}
	paused := make(map[*instance]bool) // whose Suspend has returned nil
	for again := true; again; {
		again = false
		for _, c := range slices.Backward(s.snapshot()) {
			acted, err := s.pauseChild(ctx, c, paused)
			if err != nil {
				return err
			}
			again = again || acted
		}
	}
	return nil
}

// pauseChild returns nil once c does not run. It reports whether it had to wait or
// to suspend the child for that.
func (s *Supervisor) pauseChild(ctx context.Context, c *child, paused map[*instance]bool) (acted bool, _ error) {
	for ; ; acted = true {
		w, starting := c.underWay()
		lives := c.lives()
		var status Status
		if lives {
			status = w.status()
		}
		switch {
		case starting || status == StatusStopping: // the loop handles a message when that is over
			select {
			case <-s.moved:
			case <-s.Done():
				return acted, cannotPause(s.Status())
			case <-ctx.Done():
				return acted, fmt.Errorf("child %s is still starting or stopping", c.name)
			}
			continue
		case !lives || status == StatusSuspended || paused[w]:
			return acted, nil
		}
		child, ok := w.Worker.(Suspender)
		if !ok {
			return acted, fmt.Errorf("child %s: %w: it has no Suspend", c.name, ErrNotSuspendable)
		}
		err := within(ctx, c.name, child.Suspend)
		switch {
		case err == nil:
			paused[w] = true
		case ctx.Err() != nil:
			return acted, fmt.Errorf("child %s did not pause", c.name)
		case c.lives() && w.status() != StatusStopping:
			return acted, err
		}
	}
}

// underWay returns c's instance, and whether a start is under way that the hold does
// not keep from running it.
func (c *child) underWay() (w *instance, starting bool) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.w, c.op != nil && c.op.passed
}

func (s *Supervisor) proceed(ctx context.Context, running func() error) error {
	err := s.resumeAll(ctx, s.snapshot())
	return errors.Join(err, running(), s.setHold(ctx, false))
}

func (s *Supervisor) resumeAll(ctx context.Context, children []*child) error {
	var errs []error
	for _, c := range children {
		w, _ := c.current()
		if !c.lives() || w.status() != StatusSuspended {
			continue
		}
		if child, ok := w.Worker.(Suspender); ok {
			errs = append(errs, within(ctx, c.name, child.Resume))
		}
	}
	return errors.Join(errs...)
}

// setHold makes the loop stop starting children, or start those that wait.
func (s *Supervisor) setHold(ctx context.Context, hold bool) error {
	return s.ask(ctx, "hold the starts of "+s.Name(), func(reply chan<- error) message { return holdStarts{hold: hold, reply: reply} })
}

func (s *Supervisor) holdStarts(m holdStarts) {
	s.suspended = m.hold
	s.mu.Lock()
	switch {
	case m.hold && s.gate == nil:
		s.gate = make(chan struct{})
	case !m.hold && s.gate != nil:
		close(s.gate)
		s.gate = nil
	}
	s.mu.Unlock()
	m.reply <- nil
	if !m.hold {
		for _, c := range s.children {
			s.advance(c.group)
		}
	}
}

// within calls a child's method. It waits until ctx ends and a moment longer,
// because a child that gets the same context usually returns then.
func within(ctx context.Context, name string, fn func(context.Context) error) error {
	err := call.Within(ctx, name, call.Settle, func() error { return fn(ctx) })
	if abandoned, ok := err.(*AbandonedError); ok && abandoned.Name == name { //nolint:errorlint // of this call, not an error that the call returned
		return fmt.Errorf("%w: %w", err, ctx.Err())
	}
	return err
}
