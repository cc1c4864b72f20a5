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

// Suspender is a worker that can pause and keep what it holds: [Func] and
// [Restarter] where their function calls [Pause], [Process] on Unix systems,
// [Container], [Supervisor] when all its running children can.
type Suspender interface {
	// Suspend returns once the worker is quiescent and Suspended. When ctx ends
	// first, or the worker cannot pause, it goes on as if nothing had been, and
	// the error says so. For one that is suspended already it returns nil.
	Suspend(ctx context.Context) error
	// Resume makes a suspended worker Running again. For one that runs it does
	// nothing; one that has ended, or is being stopped, is an error.
	Resume(ctx context.Context) error
}

// ErrNotSuspendable is returned by Suspend for a worker that is not Running or
// that cannot pause.
var ErrNotSuspendable = errors.New("worker cannot be suspended")

func notSuspendable(name string, s Status) error {
	return fmt.Errorf("suspend %s: %w: it is %s", name, ErrNotSuspendable, s)
}

// pause is how a function and whoever suspends it meet.
type pause struct {
	mu        sync.Mutex // guards what follows
	asked     bool
	requested chan struct{} // closed while asked; made when somebody looks
	resumed   chan struct{} // closed when the function may go on
}

type funcKey struct{}

// Pause is where the function of a [Func] can be suspended. It returns at once
// when nobody asked for that. Otherwise the worker is Suspended and Pause returns
// after [Func.Resume], with nil, or when ctx, which must come from the one that
// the function was given, is cancelled, with its error. In between the function
// must do nothing: only the goroutine that calls Pause is held.
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

// PauseRequested returns a channel that is closed while somebody waits for the
// function that was given ctx to call [Pause]. It is for a function that waits for
// other things; ask for the channel anew before each wait. With any other context
// it is nil.
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

// withdrawLocked ends a request, met or not.
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
	if f.Status() == StatusSuspended { // it did as ctx ended
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

// Suspend asks the run that is on to pause, and waits until it has. One that has
// failed meanwhile is not started again before [Restarter.Resume].
func (r *Restarter) Suspend(ctx context.Context) error {
	r.suspending.Lock()
	defer r.suspending.Unlock()
	switch s := r.Status(); {
	case s == StatusSuspended:
		return nil
	case s != StatusRunning:
		return notSuspendable(r.Name(), s)
	}
	r.begun.Lock() // from here on no run begins
	r.nowMu.Lock()
	r.gate = make(chan struct{})
	child := r.child
	r.nowMu.Unlock()
	r.begun.Unlock()
	_, err := child.Await(ctx, func(s Status) bool { return s != StatusStarting })
	if err == nil && child.Status() == StatusRunning {
		if err = child.Suspend(ctx); err != nil && child.Status().Terminal() {
			err = nil // nothing of it runs
		}
	}
	if err == nil {
		if err = r.SetStatus(StatusSuspended); err == nil {
			return nil
		}
	}
	return errors.Join(fmt.Errorf("suspend %s: %w", r.Name(), err), r.open())
}

// Resume lets the run go on, and one that waits begin.
func (r *Restarter) Resume(context.Context) error {
	r.suspending.Lock()
	defer r.suspending.Unlock()
	if err := r.resume(); err != nil {
		return err
	}
	return r.open()
}

// open takes the gate away, and lets a suspended run go on.
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

// Suspend stops the program's whole group with SIGSTOP and returns once the
// kernel says that the program is. Its connections stay open and nobody answers
// on them. On Windows it is refused.
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
		case <-p.exited:
			timer.Stop()
			return notSuspendable(p.Name(), StatusFailed)
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(fmt.Errorf("suspend %s: %w", p.Name(), ctx.Err()), p.Signal(sigCont))
		}
	}
	if err := p.SetStatus(StatusSuspended); err != nil { // a stop came in between, and needs it to run
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

// Suspend suspends the children in reverse order. Those that are pending stay
// so, and none is started before [Supervisor.Resume]. When one cannot be suspended,
// or ctx ends, those that were are resumed in order.
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
				continue // by somebody else
			}
			child, ok := w.Worker.(Suspender)
			if !ok {
				return notSuspendable(c.spec.Name, w.status())
			}
			if err := within(ctx, c.spec.Name, child.Suspend); err != nil {
				if c.lives() {
					return err
				}
				continue // it has ended: nothing of it is left to suspend
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

// Resume resumes the children in order, and lets pending ones start. A child
// that cannot be resumed keeps none of the others from it; the error names it.
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

// alone waits until nobody else suspends or resumes.
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
			errs = append(errs, within(ctx, c.spec.Name, child.Resume))
		}
	}
	return errors.Join(errs...)
}

// setHold makes the loop start no children, or those that wait.
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

// within calls a child and waits until ctx ends, and a moment longer: the child has
// the same context and mostly returns.
func within(ctx context.Context, name string, fn func(context.Context) error) error {
	err := call.Within(ctx, name, call.Settle, func() error { return fn(ctx) })
	if abandoned, ok := err.(*AbandonedError); ok && abandoned.Name == name { //nolint:errorlint // this call, not what it returned
		return fmt.Errorf("%w: %w", err, ctx.Err())
	}
	return err
}
