package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// Suspend suspends the children in reverse order. It waits for a child that is being made,
// starting or stopping. Pending children stay pending, and no child starts before
// [Supervisor.Resume]. When a child cannot be suspended, or ctx ends, Suspend resumes the
// suspended ones in order.
func (s *Supervisor) Suspend(ctx context.Context) error { return s.suspend(ctx, s) }

// Resume resumes the children in order, and lets pending ones start. It goes on
// when a child cannot be resumed; the error names that child.
func (s *Supervisor) Resume(ctx context.Context) error { return s.resume(ctx, s) }

// quiesce suspends the children that run, the last one first. No child starts meanwhile, but a
// child that fails may stop others with it. So quiesce repeats until no child is left to
// suspend.
func (s *Supervisor) quiesce(ctx context.Context) error {
	paused := make(map[*instance]bool) // instances whose Suspend has returned nil
	for again := true; again; {
		if err := s.holdStarts(ctx); err != nil {
			return err
		}
		again = false
		for _, c := range slices.Backward(s.snapshot()) {
			i := c.current()
			if !c.lives() || paused[i] || i.status() == StatusSuspended {
				continue
			}
			if err := s.suspendChild(ctx, i); err != nil {
				return err
			}
			paused[i], again = true, true
		}
	}
	return nil
}

// suspendChild suspends an instance, or waits for the end of one that is stopping.
func (s *Supervisor) suspendChild(ctx context.Context, i *instance) error {
	child, ok := i.Worker.(Suspender)
	if !ok {
		return fmt.Errorf("child %s: %w: it has no Suspend", i.child.name, ErrNotSuspendable)
	}
	err := call.Within(ctx, i.child.name, call.Settle, func() error { return child.Suspend(ctx) })
	switch {
	case err == nil || !i.child.lives():
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("child %s did not pause", i.child.name)
	case i.status() == StatusStopping && i.base != nil:
		_, err = i.base.Await(ctx, Status.Terminal)
	}
	return err
}

func (s *Supervisor) proceed(ctx context.Context, running func() error) error {
	err := s.resumeAll(ctx, s.snapshot())
	return errors.Join(err, running(), s.releaseStarts(ctx))
}

func (s *Supervisor) resumeAll(ctx context.Context, children []*child) error {
	var errs []error
	for _, c := range children {
		w := c.current()
		if !c.lives() || w.status() != StatusSuspended {
			continue
		}
		if child, ok := w.Worker.(Suspender); ok {
			errs = append(errs, call.Within(ctx, c.name, call.Settle, func() error { return child.Resume(ctx) }))
		}
	}
	return errors.Join(errs...)
}

// holdStarts makes the loop start no more children. It returns once none is starting or
// stopping.
func (s *Supervisor) holdStarts(ctx context.Context) error {
	err := s.request(ctx, "hold the starts of "+s.Name(), func(reply chan<- error) {
		s.suspended = true
		s.awaitSettled = append(s.awaitSettled, reply)
	})
	switch {
	case ctx.Err() != nil:
		return errors.New("a child is still starting or stopping")
	case call.Is(err, ErrSupervisorEnded):
		return cannotPause(s.Status())
	}
	return err
}

// answerSettled answers holdStarts once no child is starting or stopping.
func (s *Supervisor) answerSettled() {
	if len(s.awaitSettled) == 0 || slices.ContainsFunc(s.children, (*child).isStartingOrStopping) {
		return
	}
	for _, reply := range s.awaitSettled {
		reply <- nil
	}
	s.awaitSettled = nil
}

func (c *child) isStartingOrStopping() bool {
	return c.op != nil || c.instance != nil && c.instance.running && c.instance.asked
}

// releaseStarts lets the loop start children again.
func (s *Supervisor) releaseStarts(ctx context.Context) error {
	return s.request(ctx, "start children of "+s.Name(), func(reply chan<- error) {
		s.suspended = false
		reply <- nil
		for _, c := range slices.Clone(s.children) {
			s.advance(c.group)
		}
	})
}
