package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// startOp is one start, from the factory's call to Running.
type startOp struct {
	call   *call.Call  // nil for a start that takes no time
	timer  *time.Timer // posts startOverdue; nil for a start that takes no time
	ending bool        // only the loop uses it: the start must end without an instance

	// Guarded by s.mu.
	late   bool               // the start must not start anything any more
	cut    bool               // the start must not wait for Running or for a Resume
	cancel context.CancelFunc // ends such a wait; nil while there is none
	gated  bool               // the start waits until the supervisor is resumed
	passed bool               // the instance is in its place, and may run
}

// start begins a start of c. It reports whether the start is over: c runs. Otherwise
// startEnded handles its end.
func (s *Supervisor) start(c *child) (over bool) {
	previous := c.lastExit()
	s.mu.Lock()
	if c.tried {
		c.restarts++
	}
	restarts := int(c.restarts)
	c.exit = previous
	s.mu.Unlock()
	c.want, c.decided, c.done, c.asked = false, false, false, false
	c.answer(awaitsStop, nil)
	factory, plain := c.factory()
	if plain {
		if err := s.startPlain(c, factory, restarts, previous); err != nil {
			op := &startOp{}
			s.underway(c, op)
			s.box.Post(startEnded{c: c, op: op, err: err})
			return false
		}
		s.started(c, true)
		return true
	}
	c.began = time.Now()
	op := &startOp{}
	op.timer = time.AfterFunc(c.spec.StartTimeout, func() { s.box.Post(startOverdue{c: c, op: op}) })
	op.call = new(call.Call)
	s.underway(c, op)
	op.call.Start(c.name, func() error { return s.bring(c, factory, op, restarts, previous) }, func(err error) {
		op.timer.Stop()
		s.box.Post(startEnded{c: c, op: op, err: err})
	})
	return false
}

// startPlain starts a function whose factory makes a new [Func] and nothing else. Nothing
// else knows the Func before its Start, so it needs no locks and no checks.
func (s *Supervisor) startPlain(c *child, factory func(name string) (Worker, error), restarts int, previous *Exit) error {
	w, _ := factory(c.name) // never fails
	f, ok := w.(*Func)
	if !ok {
		return fmt.Errorf("make %s: New returned a %T, want a *Func", c.name, w) // cannot happen
	}
	i := &instance{Worker: f, base: &f.BaseWorker, c: c, restarts: restarts, previous: previous}
	f.claimed, f.hook = true, i
	f.panics = f.panics || s.cfg.PassThroughPanics
	f.machine.PublishTo(s.parts)
	s.mu.Lock()
	s.adoptLocked(c, i)
	s.mu.Unlock()
	err := f.Start((*startContext)(i))
	_, c.began = f.machine.Since()
	return err
}

// underway records that a start is under way.
func (s *Supervisor) underway(c *child, op *startOp) {
	s.calls++
	s.mu.Lock()
	c.op = op
	s.mu.Unlock()
}

// started records that a start has succeeded.
func (s *Supervisor) started(c *child, plain bool) {
	c.ran = true
	c.answerStart(nil)
	s.try(c)
	if c.spec.Probe != nil || c.probing != nil || !plain { // a plain function has no Probe of its own
		s.watchHealth(c)
	}
}

// factory returns the function that makes c's next instance. It reports whether the
// function, and the Start of its worker, return at once.
func (c *child) factory() (factory func(name string) (Worker, error), plain bool) {
	k := c.s.kin
	if k == nil {
		return c.make, c.spec.immediate(c.make)
	}
	factory = c.make
	if c.spec.Restart.once() {
		c.make = nil // do not keep the argument
	}
	return factory, k.plain
}

// makeInstance calls the factory and checks the worker that it returns.
func (s *Supervisor) makeInstance(c *child, factory func(name string) (Worker, error)) (*instance, error) {
	w, err := factory(c.name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("make %s: %w", c.name, err)
	case w == nil:
		return nil, fmt.Errorf("make %s: New returned nil, want a worker", c.name)
	case isNil(w):
		return nil, fmt.Errorf("make %s: New returned a nil %T, want a worker", c.name, w)
	case w.Name() != c.name:
		return nil, fmt.Errorf("make %s: New returned a worker named %q, want the name it was given", c.name, w.Name())
	}
	i, err := newInstance(c, w)
	if err == nil && i.base != nil {
		err = i.base.claim()
	}
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", c.name, err)
	}
	return i, nil
}

// isNil reports whether w is a pointer that is nil, which is not equal to nil.
func isNil(w Worker) bool {
	v := reflect.ValueOf(w)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// bring makes an instance, starts it, and waits until it is no longer Starting.
func (s *Supervisor) bring(c *child, factory func(name string) (Worker, error), op *startOp, restarts int, previous *Exit) error {
	i, err := s.makeInstance(c, factory)
	if err != nil {
		return err
	}
	w := i.Worker
	i.restarts, i.previous = restarts, previous
	gate, ok := s.adopt(c, op, i)
	for ; gate != nil; gate, ok = s.adopt(c, op, i) { // the supervisor was suspended meanwhile
		wait, cancel := s.waiting(op)
		select {
		case <-gate:
		case <-wait.Done():
		}
		cancel()
	}
	if !ok {
		return errors.Join(errGivenUp, stopUnstarted(w))
	}
	if err := w.Start((*startContext)(i)); err != nil {
		return err
	}
	a, ok := w.(interface {
		Await(context.Context, func(Status) bool) (Status, error)
	})
	if !ok || i.status() != StatusStarting {
		return nil
	}
	wait, cancel := s.waiting(op)
	defer cancel()
	_, _ = a.Await(wait, func(st Status) bool { return st != StatusStarting })
	return nil
}

// stopUnstarted stops a worker that was never started.
func stopUnstarted(w Worker) error {
	ctx, cancel := context.WithTimeout(context.Background(), defaultStopTimeout)
	defer cancel()
	return w.Stop(ctx)
}

// claim makes the caller the only supervisor of a worker that has not begun. The error
// says who has the worker.
func (b *BaseWorker) claim() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch s := b.machine.State(); {
	case b.claimed:
		return fmt.Errorf("a supervisor already has the worker that New returned, want a new one from each call: %w", ErrNotStartable)
	case s != StatusCreated && s != StatusPending:
		return fmt.Errorf("the worker that New returned is %s, want a new one from each call: %w", s, ErrNotStartable)
	}
	b.claimed = true
	return nil
}

// waiting returns the context of a wait in a start. cutWait ends it.
func (s *Supervisor) waiting(op *startOp) (context.Context, context.CancelFunc) {
	wait, cancel := context.WithCancel(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	op.cancel = cancel
	if op.cut {
		cancel()
	}
	return wait, cancel
}

// cutWait ends a start's wait, even if the wait has not begun yet.
func (s *Supervisor) cutWait(op *startOp) {
	s.mu.Lock()
	op.cut = true
	cancel := op.cancel
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// adopt puts an instance in its place before its Start is called. It returns
// false when the start must not start anything any more. While the supervisor is
// suspended, it makes the child pending and returns the gate: the start has to call
// adopt again once the gate is open.
func (s *Supervisor) adopt(c *child, op *startOp, i *instance) (gate <-chan struct{}, ok bool) {
	s.mu.Lock()
	if op.gated && !op.late && s.gate == nil {
		op.timer.Reset(c.spec.StartTimeout)
	}
	op.gated = false
	switch {
	case op.late:
		s.mu.Unlock()
		return nil, false
	case s.gate != nil:
		defer s.mu.Unlock()
		op.gated = true
		op.timer.Stop()
		if c.held == nil {
			c.held = &BaseWorker{}
			c.held.Init("child", c.name)
			s.Adopt(c.held)
			_ = c.held.Hold(errSuspended.Error(), time.Time{}) // never fails for a new worker
		} else {
			c.held.rehold(errSuspended.Error(), time.Time{})
		}
		return s.gate, false
	}
	op.passed = true
	s.adoptLocked(c, i)
	s.mu.Unlock()
	s.connect(c, i)
	return nil, true
}

// adoptLocked puts an instance in its place. It goes on with the life that was pending
// there.
func (s *Supervisor) adoptLocked(c *child, i *instance) {
	if c.held != nil && i.base != nil {
		i.base.takeOver(c.held)
	}
	c.w, c.held, c.abandoned = i, nil, false
}

// connect makes the loop hear of the end of an instance, and the supervisor's readers of
// its events.
func (s *Supervisor) connect(c *child, i *instance) {
	if s.cfg.PassThroughPanics {
		switch w := i.Worker.(type) {
		case *Func:
			w.panics = true
		case *Restarter:
			w.opts = append(slices.Clip(w.opts), PassThroughPanics())
		}
	}
	if i.foreign == nil {
		s.Adopt(i.base)
		if s.log.log != nil {
			if l, ok := i.Worker.(interface{ LogTo(*slog.Logger) }); ok {
				l.LogTo(s.log.log)
			}
		}
		i.base.hookEnd(i)
		return
	}
	if p, ok := i.Worker.(interface{ PublishTo(*fsm.Dispatcher) }); ok {
		i.tell("PublishTo", func() { s.Adopt(p) })
	}
	if i.base != nil {
		i.base.hookEnd(i)
		return
	}
	go func() { // until the foreign worker ends, or the supervisor
		select {
		case <-i.foreign.done:
			i.settle(c.name)
			s.box.Post((*instanceEnded)(i))
		case <-s.Gone():
		}
	}()
}

// startOverdue abandons a start that does not return in time.
func (s *Supervisor) startOverdue(c *child, op *startOp) {
	s.mu.Lock()
	gated := op.gated
	s.mu.Unlock()
	if c.op != op || gated {
		return
	}
	err := fmt.Errorf("start %s: %w", c.name, errAbandonedStart)
	s.cutWait(op)
	if c.lives() { // the instance is Starting, and can be stopped
		c.answerStart(err)
		if !s.consider(c, StatusFailed, err) {
			s.logFailure(c, notAgain, StatusFailed, err)
			w, _ := c.current()
			s.stop(c, w, s.deadline)
		}
		return
	}
	s.markAbandoned(op, c.name)
	s.mu.Lock()
	op.late = true
	c.op = nil
	s.mu.Unlock()
	s.failedStart(c, fmt.Errorf("%w: %w", err, op.call.Abandon()))
}

// startEnded handles the end of a start.
func (s *Supervisor) startEnded(c *child, op *startOp, err error) {
	s.calls--
	if c.op != op { // it was abandoned
		s.markReturned(op)
		return
	}
	s.mu.Lock()
	c.op = nil
	s.mu.Unlock()
	stopped := c.asked && !c.lives() // the message of its end came while the start was under way, or is to come
	if stopped {
		c.asked = false
	}
	switch {
	case err != nil:
	case stopped:
		s.started(c, false)
		s.stopped(c)
		return
	default:
		s.started(c, false)
		if !c.lives() {
			s.decide(c)
		}
		s.advance(c.group)
		return
	}
	if c.lives() { // Start failed or panicked halfway
		s.stop(c, c.w, s.deadline)
	}
	s.failedStart(c, err)
}

// try records that the supervisor has tried to start c.
func (s *Supervisor) try(c *child) {
	if c.tried {
		return
	}
	c.tried = true
	if s.untried--; s.untried == 0 {
		s.MarkRunning()
	}
}

// failedStart records a failed start of which no instance shows the failure.
func (s *Supervisor) failedStart(c *child, err error) {
	s.try(c)
	s.mu.Lock()
	if c.w == nil || c.held != nil { // the factory failed: w, if any, is the previous instance
		if c.held == nil {
			c.held = &BaseWorker{}
			c.held.Init("child", c.name)
			s.Adopt(c.held)
		}
		if c.held.SetStatus(StatusStarting) == nil {
			c.held.Finish(err)
		}
	}
	c.exit = &Exit{Status: StatusFailed, Error: err.Error(), Code: -1, At: time.Now()}
	s.mu.Unlock()
	c.decided = true
	c.answerStart(err)
	if !s.consider(c, StatusFailed, err) {
		c.answer(awaitsStart, err) // no other start will
		s.logFailure(c, notAgain, StatusFailed, err)
		s.retire(c)
	}
	s.advance(c.group)
}
