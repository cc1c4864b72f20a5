package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// child is one place in a supervisor's order, and the instance that is in it.
type child struct {
	s    *Supervisor
	spec *Spec

	// Guarded by s.mu.
	w        *instance   // the instance, also when it has ended; nil before the first
	held     *BaseWorker // in place of an instance: pending, or a start that failed
	restarts int
	exit     *Exit // of the last that ended
	op       *startOp
	probing  *probing

	abandoned bool // w did not stop in time

	// Only the loop uses the fields below.
	group    *group
	want     bool // its group is to start it
	tried    bool
	stopping int // calls of Stop that have not returned
	began    time.Time
	decided  bool   // the loop has acted on the end of w
	session  string // "" before the first start
	delays   *delays
	removed  []chan<- error // the callers of Remove; each has room for one answer
}

// startOp is one start, from the factory's call to Running.
type startOp struct {
	call   *call.Call  // nil for a start that takes no time
	timer  *time.Timer // posts startOverdue; nil for a start that takes no time
	ending bool        // only for the loop: the start is to end without an instance

	// Guarded by s.mu.
	late   bool               // it must start nothing any more
	cut    bool               // it must not wait for Running
	cancel context.CancelFunc // ends the wait for Running; nil while there is none
}

// current returns the instance, and what is pending in its place. A start may
// change both at any time.
func (c *child) current() (w *instance, held *BaseWorker) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.w, c.held
}

// lives reports whether the child's instance has not ended.
func (c *child) lives() bool {
	c.s.mu.Lock()
	w, abandoned := c.w, c.abandoned
	c.s.mu.Unlock()
	return w != nil && !abandoned && !w.ended()
}

// unheard reports whether its instance has ended and the loop has yet to act on
// that.
func (c *child) unheard() bool { return c.w != nil && !c.decided && c.w.ended() }

func (c *child) state() State {
	c.s.mu.Lock()
	w, held, restarts, exit := c.w, c.held, c.restarts, c.exit
	c.s.mu.Unlock()
	var state State
	switch {
	case held != nil:
		if state = held.State(); state.Status == "" { // its instance has taken over just now
			return c.state()
		}
	case w != nil:
		state = w.state(c.spec.Name)
	default:
		state = State{Name: c.spec.Name, Status: StatusCreated}
	}
	state.Restarts += restarts
	if state.Exit == nil {
		state.Exit = exit
	}
	return state
}

// hold makes the place pending. The life that begins here is the next instance's.
func (s *Supervisor) hold(c *child, reason string, due time.Time) {
	if _, held := c.current(); held != nil && held.rehold(reason, due) {
		return
	}
	held := &BaseWorker{}
	held.Init("child", c.spec.Name)
	s.Adopt(held)
	_ = held.Hold(reason, due)
	s.mu.Lock()
	c.held = held
	s.mu.Unlock()
}

// unhold ends what is pending: it never starts.
func (s *Supervisor) unhold(c *child) {
	if _, held := c.current(); held != nil {
		held.RequestStop(ErrStopRequested)
	}
}

// start begins a start of c. startEnded handles its end.
func (s *Supervisor) start(c *child) {
	again := c.tried
	op := &startOp{}
	if c.session == "" {
		c.session = s.sessionOf(c.spec.Name)
	}
	s.mu.Lock()
	c.op = op
	if again {
		c.restarts++
	}
	handover := Handover{Session: c.session, Restarts: c.restarts, Previous: c.exit}
	s.mu.Unlock()
	c.want, c.began, c.decided = false, time.Now(), false
	s.calls++
	if c.spec.immediate() {
		s.box.post(startEnded{c: c, op: op, err: s.bring(c, op, handover)})
		return
	}
	op.timer = time.AfterFunc(c.spec.StartTimeout, func() { s.box.post(startOverdue{c: c, op: op}) })
	op.call = new(call.Call)
	op.call.Start(c.spec.Name, func() error { return s.bring(c, op, handover) }, func(err error) {
		op.timer.Stop()
		s.box.post(startEnded{c: c, op: op, err: err})
	})
}

// bring makes an instance, starts it and waits until it has left Starting.
func (s *Supervisor) bring(c *child, op *startOp, handover Handover) error {
	w, err := c.spec.New(c.spec.Name)
	switch {
	case err != nil:
		return fmt.Errorf("make %s: %w", c.spec.Name, err)
	case w == nil:
		return fmt.Errorf("make %s: New returned nil, want a worker", c.spec.Name)
	case w.Name() != c.spec.Name:
		return fmt.Errorf("make %s: New returned a worker named %q, want the name it was given", c.spec.Name, w.Name())
	}
	i, err := newInstance(w)
	if err != nil {
		return fmt.Errorf("make %s: %w", c.spec.Name, err)
	}
	if !s.adopt(c, op, i) {
		ctx, cancel := context.WithTimeout(context.Background(), defaultStopTimeout)
		defer cancel()
		return errors.Join(errAbandonedStart, w.Stop(ctx)) // it was never started
	}
	if err := w.Start(WithHandover(s.base, handover)); err != nil {
		return err
	}
	a, ok := w.(interface {
		Await(context.Context, func(Status) bool) (Status, error)
	})
	if !ok || i.status() != StatusStarting {
		return nil
	}
	wait, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.mu.Lock()
	op.cancel = cancel
	cut := op.cut
	s.mu.Unlock()
	if !cut {
		_, _ = a.Await(wait, func(st Status) bool { return st != StatusStarting })
	}
	return nil
}

// cutWait ends the wait of a start for Running, also one that is yet to begin.
func (s *Supervisor) cutWait(op *startOp) {
	s.mu.Lock()
	op.cut = true
	cancel := op.cancel
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// adopt puts an instance in its place before it is started. It reports false when
// the start must start nothing any more.
func (s *Supervisor) adopt(c *child, op *startOp, i *instance) bool {
	s.mu.Lock()
	if op.late {
		s.mu.Unlock()
		return false
	}
	if c.held != nil && i.base != nil {
		i.base.takeOver(c.held)
	}
	c.w, c.held, c.abandoned = i, nil, false
	s.mu.Unlock()
	var ended message = instanceEnded{c: c, i: i}
	notice := func() { s.box.post(ended) }
	if i.foreign == nil {
		s.Adopt(i.base)
		i.base.hookEnd(notice)
		return true
	}
	if p, ok := i.Worker.(interface{ PublishTo(*fsm.Dispatcher) }); ok {
		i.tell("PublishTo", func() { s.Adopt(p) })
	}
	if i.base != nil {
		i.base.hookEnd(func() {
			go func() { // settle may ask the worker, whose lock is held now
				i.settle(c.spec.Name)
				notice()
			}()
		})
		return true
	}
	go func() { // until the foreign worker ends, or the supervisor
		select {
		case <-i.done:
			i.settle(c.spec.Name)
			notice()
		case <-s.Gone():
		}
	}()
	return true
}

// startOverdue abandons a start that does not return in time.
func (s *Supervisor) startOverdue(c *child, op *startOp) {
	if c.op != op {
		return
	}
	err := fmt.Errorf("start %s: %w", c.spec.Name, errAbandonedStart)
	s.cutWait(op)
	if c.lives() { // it is Starting, and can be stopped
		if !s.consider(c, StatusFailed, err) {
			w, _ := c.current()
			s.stop(c, w, s.deadline)
		}
		return
	}
	s.markAbandoned(op, c.spec.Name)
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
	if err == nil {
		s.try(c)
		s.watchHealth(c)
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

// failedStart records a failed start for which there is no instance that could say
// so.
func (s *Supervisor) failedStart(c *child, err error) {
	s.try(c)
	s.mu.Lock()
	if c.w == nil || c.held != nil { // the factory failed: w, if any, is the one before
		if c.held == nil {
			c.held = &BaseWorker{}
			c.held.Init("child", c.spec.Name)
			s.Adopt(c.held)
		}
		if c.held.SetStatus(StatusStarting) == nil {
			c.held.Finish(err)
		}
	}
	c.exit = &Exit{Status: StatusFailed, Error: err.Error(), Code: -1, At: time.Now()}
	s.mu.Unlock()
	c.decided = true
	s.consider(c, StatusFailed, err)
	s.advance(c.group)
}

// instanceEnded handles the end of an instance, and later that nothing of it runs
// any more.
func (s *Supervisor) instanceEnded(c *child, w *instance) {
	if w.base != nil && !w.base.isGone() {
		s.markAbandoned(w, c.spec.Name)
	} else {
		s.markReturned(w)
	}
	if now, _ := c.current(); now != w || c.op != nil || c.stopping > 0 {
		return // startEnded or stopEnded acts on it
	}
	s.decide(c)
	s.advance(c.group)
}

// decide acts on the end of c's instance, once.
func (s *Supervisor) decide(c *child) {
	if !c.unheard() {
		return
	}
	c.decided = true
	end := s.recordExit(c)
	s.consider(c, end.status, end.err)
}

// recordExit keeps how c's instance ended.
func (s *Supervisor) recordExit(c *child) ending {
	end := c.w.ending(c.spec.Name)
	exit := end.exit
	if exit == nil {
		exit = &Exit{Status: end.status, At: time.Now()}
		if end.err != nil {
			exit.Error, exit.Code = end.err.Error(), -1
		}
	}
	s.mu.Lock()
	c.exit = exit
	s.mu.Unlock()
	return end
}

// stop calls w's Stop in the background. stopEnded handles its end. Stop has until
// the child's StopTimeout is over or until the given time, if that is not zero and
// earlier.
func (s *Supervisor) stop(c *child, w *instance, by time.Time) {
	s.calls++
	c.stopping++
	end := by
	limit := c.spec.StopTimeout
	if _, tree := w.Worker.(*Supervisor); limit == 0 && !tree {
		limit = defaultStopTimeout
	}
	if limit != 0 {
		if own := time.Now().Add(limit); end.IsZero() || own.Before(end) {
			end = own
		}
	}
	ctx, cancel := withStopCause(context.Background(), s.cause), context.CancelFunc(func() {})
	var guard *time.Timer
	if !end.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, end)
		guard = time.AfterFunc(time.Until(end)+time.Second, func() { s.box.post(stopOverdue{c: c, i: w}) })
	}
	call.Go(c.spec.Name, func() error { return w.Stop(ctx) }, func(err error) {
		cancel()
		if guard != nil {
			guard.Stop()
		}
		w.settle(c.spec.Name)
		s.box.post(stopEnded{c: c, i: w, err: err})
	})
}

// stopOverdue abandons an instance whose Stop does not keep to its context, whether
// the instance has ended or not.
func (s *Supervisor) stopOverdue(c *child, w *instance) {
	if now, _ := c.current(); now != w || c.stopping == 0 || c.abandoned {
		return
	}
	s.abandonChild(c, w, &AbandonedError{Name: c.spec.Name, Where: "its Stop, which did not keep to its context"})
	s.advance(c.group)
}

// abandonChild abandons c's instance, which still runs.
func (s *Supervisor) abandonChild(c *child, w *instance, err error) {
	s.markAbandoned(w, c.spec.Name)
	c.decided = true // its end will not matter any more
	if s.ending {
		s.abandonedErrs = append(s.abandonedErrs, err)
	}
	s.mu.Lock()
	c.abandoned = true
	c.exit = &Exit{Status: StatusKilled, Error: err.Error(), Code: -1, At: time.Now()}
	s.mu.Unlock()
}

// stopEnded handles the return of a Stop.
func (s *Supervisor) stopEnded(c *child, w *instance, err error) {
	s.calls--
	c.stopping--
	if now, _ := c.current(); now != w {
		return
	}
	if !w.ended() && !c.abandoned {
		s.abandonChild(c, w, errors.Join(&AbandonedError{Name: c.spec.Name, Where: "its Stop, which returned before it had ended"}, err))
	}
	if c.abandoned && w.ended() {
		s.markReturned(w)
	}
	if c.stopping > 0 {
		return
	}
	if w.ended() && !c.decided {
		c.decided = true
		s.recordExit(c)
	}
	s.advance(c.group)
}

// markAbandoned records that an abandoned instance or start of the child of this
// name is still running.
func (s *Supervisor) markAbandoned(what any, name string) {
	if _, known := s.abandoned[what]; !known {
		s.abandoned[what] = name
		s.abandonedOf[name]++
	}
}

// markReturned records that an abandoned instance or start has returned. Once the
// last one of its name has, the next instance may start.
func (s *Supervisor) markReturned(what any) {
	name, known := s.abandoned[what]
	if !known {
		return
	}
	delete(s.abandoned, what)
	if s.abandonedOf[name]--; s.abandonedOf[name] > 0 {
		return
	}
	delete(s.abandonedOf, name)
	if c := s.byName[name]; c != nil {
		s.advance(c.group)
	}
}
