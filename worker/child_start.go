package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// startOp is one start of a child, from the factory's call to Running.
type startOp struct {
	c         *child
	call      call.Call
	timer     *time.Timer        // calls startOverdue
	awaiting  context.Context    // of the wait until the instance is Running
	cutWait   context.CancelFunc // ends that wait, even if it has not begun yet
	mayStart  chan bool          // whether the instance that was made may start
	cancelled bool               // the start must end without an instance
	placed    *instance          // the instance once it is in its place, and may run; guarded by s.mu
}

// start begins a start of c. startEnded handles its end.
func (s *Supervisor) start(c *child) {
	op := &startOp{c: c, mayStart: make(chan bool, 1)}
	op.awaiting, op.cutWait = context.WithCancel(context.Background())
	s.calls++
	s.mu.Lock()
	if c.tried {
		c.restarts++
	}
	restarts, previous := c.restarts, c.exit
	c.op = op
	s.mu.Unlock()
	c.toStart, c.done = false, false
	c.upSince = time.Time{}
	c.answer(wantsStop, nil)
	if c.base == nil {
		c.base = call.WithLabels(s.base, KindWorker, c.name)
	}
	factory := c.factory
	if s.dynamic != nil && c.spec.Restart.once() {
		c.factory = nil // do not keep the argument
	}
	op.timer = time.AfterFunc(c.spec.StartTimeout, func() { s.box.Post(func() { s.startOverdue(op) }) })
	makeAndStart := func() error { return s.makeAndStart(op, factory, restarts, previous) }
	op.call.Start(c.base, "start", c.name, makeAndStart, func(err error) {
		op.timer.Stop()
		op.cutWait()
		s.box.Post(func() { s.startEnded(op, err) })
	})
}

// makeAndStart makes an instance, starts it once the loop allows that, and waits while it is
// Starting.
func (s *Supervisor) makeAndStart(op *startOp, factory func(name string) (Worker, error), restarts int, previous *Exit) error {
	i, err := makeInstance(op.c, factory)
	if err != nil {
		return fmt.Errorf("make %s: %w", op.c.name, err)
	}
	i.restarts, i.previous = restarts, previous
	s.box.Post(func() { s.instanceMade(op, i) })
	if !<-op.mayStart {
		return errors.Join(errGivenUp, stopUnstarted(i))
	}
	s.connect(i)
	if err := i.Start(context.WithValue(op.c.base, handoverKey{}, i)); err != nil {
		return err
	}
	a, ok := i.Worker.(interface {
		Await(context.Context, func(Status) bool) (Status, error)
	})
	if ok && i.status() == StatusStarting {
		_, _ = a.Await(op.awaiting, func(st Status) bool { return st != StatusStarting })
	}
	return nil
}

// makeInstance calls the factory and checks the worker that it returns.
func makeInstance(c *child, factory func(name string) (Worker, error)) (*instance, error) {
	w, err := factory(c.name)
	switch {
	case err != nil:
		return nil, err
	case w == nil:
		return nil, errors.New("the function New returned nil, want a worker")
	case call.IsNil(w):
		return nil, fmt.Errorf("the function New returned a nil %T, want a worker", w)
	case w.Name() != c.name:
		return nil, fmt.Errorf("the function New returned a worker named %q, want the name it was given", w.Name())
	}
	i, err := newInstance(c, w)
	if err == nil && i.base != nil {
		err = i.base.claim()
	}
	return i, err
}

// stopUnstarted stops a worker that was never started.
func stopUnstarted(w Worker) error {
	ctx, cancel := context.WithTimeout(context.Background(), defaultStopTimeout)
	defer cancel()
	return w.Stop(ctx)
}

// claim makes the caller the only supervisor of a worker that has not begun. The error says
// that a supervisor has it already, or that it has begun.
func (b *BaseWorker) claim() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch s := b.machine.State(); {
	case b.claimed:
		return fmt.Errorf("a supervisor already has the worker that New returned, want a new one from each call: %w",
			ErrNotStartable)
	case s != StatusCreated && s != StatusPending:
		return fmt.Errorf("the worker that New returned is %s, want a new one from each call: %w",
			s, ErrNotStartable)
	}
	b.claimed = true
	return nil
}

// instanceMade puts a new instance in its place before its Start is called, unless the
// start must not start anything any more. The instance continues the life that was pending
// in its place.
func (s *Supervisor) instanceMade(op *startOp, i *instance) {
	if op.cancelled {
		op.mayStart <- false
		return
	}
	c := op.c
	i.running = true
	s.mu.Lock()
	if c.held != nil && i.base != nil {
		i.base.takeOver(c.held)
	}
	c.instance, c.held, op.placed = i, nil, i
	s.mu.Unlock()
	op.mayStart <- true
}

// connect makes the end of an instance a message to the loop, and its events events of the
// supervisor.
func (s *Supervisor) connect(i *instance) {
	if s.cfg.PassThroughPanics {
		switch w := i.Worker.(type) {
		case *Func:
			w.passesPanics = true
		case *Restarter:
			w.opts = append(slices.Clip(w.opts), PassThroughPanics())
		}
	}
	if p, ok := i.Worker.(interface{ PublishTo(*fsm.Dispatcher) }); ok {
		i.callOptional("PublishTo", func() { s.Adopt(p) })
	}
	if l, ok := i.Worker.(interface{ LogTo(*slog.Logger) }); ok && i.isBuiltin && s.log.log != nil {
		l.LogTo(s.log.log)
	}
	s.watch(i)
}

// cancelStart makes a start end without a running instance. When the start does not end by the
// given time, startOverdue abandons it.
func (s *Supervisor) cancelStart(op *startOp, by time.Time) {
	if op.cancelled && by.IsZero() {
		return
	}
	op.cancelled = true
	op.cutWait()
	limit, bounded := op.c.spec.stopLimit(nil)
	if !bounded {
		limit = defaultStopTimeout
	}
	if !by.IsZero() {
		limit = min(limit, time.Until(by))
	}
	op.timer.Reset(limit)
}

// startOverdue abandons a start that does not return in time.
func (s *Supervisor) startOverdue(op *startOp) {
	c := op.c
	if c.op != op {
		return
	}
	err := fmt.Errorf("start %s: %w", c.name, errAbandonedStart)
	op.cutWait()
	if i := op.placed; i != nil && i.running { // the child is Starting: it can be stopped like any other
		if why := i.state().Reason; why != "" {
			err = fmt.Errorf("%w: %s", err, why)
		}
		if c.before != nil {
			s.endNext(c.before, err)
			return
		}
		c.answerStart(err)
		if !s.restartByPolicy(c, StatusFailed, err) {
			s.logFailure(c, notAgain, &ending{status: StatusFailed, err: err})
			s.stop(i, s.deadline)
		}
		return
	}
	// New has not returned, or Start has not, although the instance has ended: the start can only be abandoned.
	s.abandoned[c.name]++
	op.cancelled = true
	if op.placed != nil {
		op.placed.settled = true
	}
	s.mu.Lock()
	c.op = nil
	s.mu.Unlock()
	s.startFailed(c, fmt.Errorf("%w: %w", err, op.call.Abandon()))
}

// startEnded handles the end of a start.
func (s *Supervisor) startEnded(op *startOp, err error) {
	s.calls--
	c, i := op.c, op.placed
	if c.op != op { // it was abandoned
		s.markReturned(c.name)
		return
	}
	s.mu.Lock()
	c.op = nil
	s.mu.Unlock()
	if err == nil && c.before != nil {
		if err = i.neverRan(); err == nil {
			s.takeOver(c)
		}
	}
	if err == nil {
		c.ran, c.upSince = true, time.Now()
		c.answerStart(i.neverRan())
		s.markTried(c)
		s.watchHealth(c)
		if !i.running && i.stops == 0 {
			s.settle(i)
		}
		s.advance(c.group)
		return
	}
	switch {
	case i == nil || i.settled:
	case i.running && !i.hasEnded(): // Start failed or panicked halfway
		s.stop(i, s.deadline)
	case i.stops == 0:
		i.running, i.settled = false, true // the failed start is its end
	}
	s.startFailed(c, err)
}

// markTried records that the supervisor has tried to start c.
func (s *Supervisor) markTried(c *child) {
	if c.tried {
		return
	}
	c.tried = true
	if s.untried--; s.untried == 0 {
		s.MarkRunning()
	}
}

// startFailed handles a failed start. When there is no instance to show the failure, it makes a
// failed worker that does.
func (s *Supervisor) startFailed(c *child, err error) {
	if c.before != nil {
		s.endNext(c.before, err)
		return
	}
	s.markTried(c)
	if c.instance == nil || c.held != nil { // the factory failed: an instance, if any, is the previous one
		held := c.held
		if held == nil {
			held = s.newHeld(c)
		}
		if held.SetStatus(StatusStarting) == nil {
			held.Finish(err)
		}
		s.mu.Lock()
		c.held = held
		s.mu.Unlock()
	}
	s.mu.Lock()
	c.exit = &Exit{Status: StatusFailed, Error: err.Error(), Code: -1, At: time.Now()}
	s.mu.Unlock()
	c.answerStart(err)
	if !s.restartByPolicy(c, StatusFailed, err) {
		c.answer(wantsStart, err) // no later start will answer
		s.logFailure(c, notAgain, &ending{status: StatusFailed, err: err})
		s.retire(c)
	}
	s.advance(c.group)
}
