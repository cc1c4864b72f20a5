package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// Suspender is a worker that can pause and keep its resources: [Func] and
// [Restarter] if their function calls [Pause], [Process] on Unix systems,
// [Container], and [Supervisor] if all its running children can pause.
type Suspender interface {
	// Suspend returns nil once the worker has paused and is Suspended. When ctx
	// ends first, or the worker cannot pause, the worker goes on and the error
	// says why. For a suspended worker it returns nil.
	Suspend(ctx context.Context) error
	// Resume makes a suspended worker Running again. For a running worker it does
	// nothing. For a worker that has ended, or is being stopped, it returns an
	// error.
	Resume(ctx context.Context) error
}

// ErrNotSuspendable is returned by Suspend for a worker that is not Running or
// that cannot pause.
var ErrNotSuspendable = errors.New("worker cannot be suspended")

func notSuspendable(name string, s Status) error {
	return fmt.Errorf("suspend %s: %w: it is %s", name, ErrNotSuspendable, s)
}

// pause synchronizes a function that calls [Pause] with a caller of Suspend.
type pause struct {
	mu        sync.Mutex // guards everything below
	asked     bool
	requested chan struct{} // closed while a Suspend waits; made by the first PauseRequested
	resumed   chan struct{} // closed when the function may go on
}

type funcKey struct{}

// Pause is a point at which the function of a [Func] can be suspended. ctx must
// be derived from the function's context. Pause returns at once unless a Suspend
// waits. Then the worker becomes Suspended, and Pause returns nil after
// [Func.Resume], or ctx's error when ctx is cancelled first. Pause blocks only
// the goroutine that calls it, so the function must not work in other goroutines
// meanwhile.
func Pause(ctx context.Context) error {
	f, ok := ctx.Value(funcKey{}).(*Func)
	if !ok || f == nil {
		return ctx.Err()
	}
	f.pause.mu.Lock()
	if !f.pause.asked || f.SetStatus(StatusSuspended) != nil {
		f.pause.mu.Unlock()
		return ctx.Err()
	}
	resumed := f.pause.resumed
	f.pause.mu.Unlock()
	select {
	case <-resumed:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// PauseRequested returns a channel that is closed while a Suspend waits for the
// function of ctx to call [Pause]. Use it in a function that waits for other
// events too, and call it again before each wait. For a context that does not
// come from a [Func] it returns nil.
func PauseRequested(ctx context.Context) <-chan struct{} {
	f, ok := ctx.Value(funcKey{}).(*Func)
	if !ok || f == nil {
		return nil
	}
	f.pause.mu.Lock()
	defer f.pause.mu.Unlock()
	return f.pause.requestedLocked()
}

func (p *pause) requestedLocked() chan struct{} {
	if p.requested == nil {
		p.requested = make(chan struct{})
	}
	return p.requested
}

// withdrawLocked ends a request to pause, even one that the function has answered.
func (p *pause) withdrawLocked() {
	if p.asked {
		p.asked, p.requested = false, nil
		close(p.resumed)
	}
}

// Suspend asks the function to pause and waits until it has called [Pause].
func (f *Func) Suspend(ctx context.Context) error {
	f.pause.mu.Lock()
	switch s := f.Status(); {
	case s == StatusSuspended:
		f.pause.mu.Unlock()
		return nil
	case s != StatusRunning:
		f.pause.mu.Unlock()
		return notSuspendable(f.Name(), s)
	}
	if !f.pause.asked {
		f.pause.asked, f.pause.resumed = true, make(chan struct{})
		close(f.pause.requestedLocked())
	}
	f.pause.mu.Unlock()
	s, err := f.Await(ctx, func(s Status) bool { return s != StatusRunning })
	if err == nil && s == StatusSuspended {
		return nil
	}
	f.pause.mu.Lock()
	defer f.pause.mu.Unlock()
	if err == nil {
		f.pause.withdrawLocked()
		return notSuspendable(f.Name(), s)
	}
	if f.Status() == StatusSuspended { // the function paused as ctx ended
		return nil
	}
	f.pause.withdrawLocked()
	return fmt.Errorf("suspend %s: it did not pause: %w", f.Name(), err)
}

// Resume lets the function return from [Pause].
func (f *Func) Resume(context.Context) error {
	f.pause.mu.Lock()
	defer f.pause.mu.Unlock()
	if err := f.resume(); err != nil {
		return err
	}
	f.pause.withdrawLocked()
	return nil
}

// resume moves a suspended worker to Running.
func (b *BaseWorker) resume() error {
	if b.Status() == StatusRunning {
		return nil
	}
	if err := b.SetStatus(StatusRunning); err != nil {
		return fmt.Errorf("resume %s: %w", b.Name(), err)
	}
	return nil
}

// Suspend asks the current run to pause, and waits until it has paused. When the
// run fails first, the next run does not start before [Restarter.Resume].
func (r *Restarter) Suspend(ctx context.Context) error {
	r.suspending.Lock()
	defer r.suspending.Unlock()
	switch s := r.Status(); {
	case s == StatusSuspended:
		return nil
	case s != StatusRunning:
		return notSuspendable(r.Name(), s)
	}
	r.begun.Lock() // from now on no run begins
	r.nowMu.Lock()
	r.gate = make(chan struct{})
	child := r.child
	r.nowMu.Unlock()
	r.begun.Unlock()
	_, err := child.Await(ctx, func(s Status) bool { return s != StatusStarting })
	if err == nil && child.Status() == StatusRunning {
		if err = child.Suspend(ctx); err != nil && child.Status().Terminal() {
			err = nil // there is no run
		}
	}
	if err == nil {
		if err = r.SetStatus(StatusSuspended); err == nil {
			return nil
		}
	}
	return errors.Join(fmt.Errorf("suspend %s: %w", r.Name(), err), r.open())
}

// Resume lets the current run go on, and lets a waiting one start.
func (r *Restarter) Resume(context.Context) error {
	r.suspending.Lock()
	defer r.suspending.Unlock()
	if err := r.resume(); err != nil {
		return err
	}
	return r.open()
}

// open removes the gate and resumes a suspended run.
func (r *Restarter) open() error {
	r.nowMu.Lock()
	gate, child := r.gate, r.child
	r.gate = nil
	r.nowMu.Unlock()
	if gate != nil {
		close(gate)
	}
	if child != nil && child.Status() == StatusSuspended {
		return child.Resume(context.Background())
	}
	return nil
}

// Suspend stops the program's whole group with SIGSTOP, and returns once the
// kernel has stopped the program. The program's connections stay open and get no
// answers. On Windows Suspend returns an error.
func (p *Process) Suspend(ctx context.Context) error {
	switch s := p.Status(); {
	case s == StatusSuspended:
		return nil
	case s != StatusRunning || sigStop == 0:
		return notSuspendable(p.Name(), s)
	}
	if err := p.Signal(sigStop); err != nil {
		return err
	}
	for pause := time.Millisecond; !p.isStopped(); pause = min(2*pause, 50*time.Millisecond) {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-p.exited.Signaled():
			timer.Stop()
			return notSuspendable(p.Name(), StatusFailed)
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(fmt.Errorf("suspend %s: %w", p.Name(), ctx.Err()), p.Signal(sigCont))
		}
	}
	if err := p.SetStatus(StatusSuspended); err != nil { // a Stop came in between; to stop, the program has to run
		return errors.Join(fmt.Errorf("suspend %s: %w", p.Name(), err), p.Signal(sigCont))
	}
	return nil
}

// Resume continues the program's group.
func (p *Process) Resume(context.Context) error {
	if err := p.resume(); err != nil {
		return err
	}
	return p.Signal(sigCont)
}

// Suspend suspends the children in reverse order. Pending children stay pending,
// and no child starts before [Supervisor.Resume]. When a child cannot be
// suspended, or ctx ends, Suspend resumes the suspended ones in order.
func (s *Supervisor) Suspend(ctx context.Context) error {
	if err := s.alone(ctx, "suspend"); err != nil {
		return err
	}
	defer func() { <-s.suspending }()
	switch status := s.Status(); {
	case status == StatusSuspended:
		return nil
	case status != StatusRunning:
		return notSuspendable(s.Name(), status)
	}
	if err := s.setHold(ctx, true); err != nil {
		return err
	}
	var paused []*child
	err := func() error {
		for _, c := range slices.Backward(s.snapshot()) {
			if !c.lives() {
				continue
			}
			w, _ := c.current()
			if w.status() == StatusSuspended {
				continue // another caller has suspended it
			}
			child, ok := w.Worker.(Suspender)
			if !ok {
				return notSuspendable(c.name, w.status())
			}
			if err := within(ctx, c.name, child.Suspend); err != nil {
				if c.lives() {
					return err
				}
				continue // the child has ended: there is nothing to suspend
			}
			paused = append(paused, c)
		}
		return s.SetStatus(StatusSuspended)
	}()
	if err == nil {
		return nil
	}
	err = fmt.Errorf("suspend %s: %w", s.Name(), err)
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), defaultStopTimeout)
	defer cancel()
	slices.Reverse(paused)
	return errors.Join(err, s.resumeAll(after, paused), s.setHold(after, false))
}

// Resume resumes the children in order, and lets pending ones start. It goes on
// when a child cannot be resumed; the error names that child.
func (s *Supervisor) Resume(ctx context.Context) error {
	if err := s.alone(ctx, "resume"); err != nil {
		return err
	}
	defer func() { <-s.suspending }()
	if s.Status() == StatusRunning {
		return nil
	}
	if status := s.Status(); status != StatusSuspended {
		return s.resume()
	}
	err := s.resumeAll(ctx, s.snapshot())
	return errors.Join(err, s.resume(), s.setHold(ctx, false))
}

// alone waits until no other caller suspends or resumes.
func (s *Supervisor) alone(ctx context.Context, what string) error {
	select {
	case s.suspending <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s %s: %w", what, s.Name(), ctx.Err())
	}
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
	return s.ask(ctx, "suspend "+s.Name(), func(reply chan<- error) message { return holdStarts{hold: hold, reply: reply} })
}

func (s *Supervisor) holdStarts(m holdStarts) {
	s.suspended = m.hold
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
