package worker

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// child is one place in a supervisor's order, and the instance that is in it.
type child struct {
	s    *Supervisor
	name string
	make func(name string) (Worker, error) // the spec's New, or in a Dynamic what takes its place
	spec *Spec                             // without Name and New, and shared; the loop alone uses it, and holds s.mu when it replaces it

	// Guarded by s.mu.
	w        *instance   // the present or the last instance; nil before the first
	held     *BaseWorker // in place of an instance: a pending worker, or a failed start
	exit     *Exit       // of the last instance that ended
	op       *startOp
	probing  *probing
	restarts int32
	// abandoned says that w did not stop in time.
	abandoned bool

	// Only the loop uses the fields below.
	want     bool // the group has to start it
	tried    bool
	ran      bool  // a start has succeeded
	at       int32 // its index, in a Dynamic
	stopping int32 // calls of Stop that have not returned
	done     bool  // it has ended and is not started again
	listed   bool  // it is in s.history
	asked    bool  // its function was asked to stop and has not returned
	decided  bool  // the loop has acted on the end of w
	parked   bool  // StopChild has stopped it, or is about to
	group    *group
	began    time.Time
	delays   *delays
	callers  []caller
}

// current returns the instance, and the worker that is pending in its place. A
// start may change both at any time.
func (c *child) current() (w *instance, held *BaseWorker) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.w, c.held
}

// lives reports whether the child has an instance that has not ended.
func (c *child) lives() bool {
	c.s.mu.Lock()
	w, abandoned := c.w, c.abandoned
	c.s.mu.Unlock()
	return w != nil && !abandoned && !w.ended()
}

// unheard reports whether the child's instance has ended and the loop has not
// acted on that yet.
func (c *child) unheard() bool { return c.w != nil && !c.decided && c.w.ended() }

func (c *child) state() State {
	c.s.mu.Lock()
	w, held, restarts := c.w, c.held, c.restarts
	c.s.mu.Unlock()
	var state State
	switch {
	case held != nil:
		if state = held.State(); state.Status == "" { // the instance has just taken over
			return c.state()
		}
	case w != nil:
		state = w.state(c.name)
	default:
		state = State{Name: c.name, Status: StatusCreated}
	}
	state.Restarts += int(restarts)
	if state.Exit == nil {
		state.Exit = c.lastExit()
	}
	return state
}

// hold makes the child pending. The next instance continues the life that begins
// here.
func (s *Supervisor) hold(c *child, reason error, due time.Time) {
	if _, held := c.current(); held != nil && held.rehold(reason.Error(), due) {
		return
	}
	held := &BaseWorker{}
	held.Init("child", c.name)
	s.Adopt(held)
	_ = held.hold(reason, due)
	s.mu.Lock()
	c.held = held
	s.mu.Unlock()
}

// unhold stops the worker that is pending in c's place, so that it never starts.
func (s *Supervisor) unhold(c *child) {
	if _, held := c.current(); held != nil {
		held.RequestStop(ErrStopRequested)
	}
}

// instanceEnded handles the end of an instance. It is called again for an abandoned
// instance, when none of its code runs any more.
func (s *Supervisor) instanceEnded(c *child, w *instance) {
	if w.base != nil && !w.base.gone.Load() {
		s.markAbandoned(w, c.name)
	} else {
		s.markReturned(w)
	}
	if now, _ := c.current(); now != w || c.op != nil || c.stopping > 0 {
		return // startEnded or stopEnded acts on it
	}
	if c.asked {
		c.asked = false
		s.stopped(c)
		return
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
	if !s.consider(c, end.status, end.err) {
		s.logFailure(c, notAgain, end.status, end.err)
		s.retire(c)
	}
}

// recordExit stores how c's instance ended.
func (s *Supervisor) recordExit(c *child) ending {
	end := c.w.ending(c.name)
	exit := end.exit
	if _, ok := c.w.Worker.(*Func); ok {
		exit = untold
	}
	if exit == nil {
		exit = exitOfWorker(end.status, end.err, time.Now())
	}
	s.mu.Lock()
	c.exit = exit
	s.mu.Unlock()
	return end
}

// untold stands for the Exit of a function in c.w, which lastExit makes when a caller
// wants it.
var untold = &Exit{}

// lastExit returns how the last instance that ended did so, nil for none.
func (c *child) lastExit() *Exit {
	c.s.mu.Lock()
	exit, w := c.exit, c.w
	c.s.mu.Unlock()
	if exit != untold {
		return exit
	}
	status, at := w.base.machine.Since()
	return exitOfWorker(status, w.base.Err(), at)
}

func exitOfWorker(status Status, err error, at time.Time) *Exit {
	exit := &Exit{Status: status, At: at}
	if err != nil {
		exit.Error, exit.Code = err.Error(), -1
	}
	return exit
}

// stop calls w's Stop in the background. stopEnded handles its end. Stop may take
// the child's StopTimeout, or until the given time if that is earlier and not
// zero.
func (s *Supervisor) stop(c *child, w *instance, by time.Time) {
	end := by
	if limit, bounded := c.spec.stopLimit(w.Worker); bounded {
		if own := time.Now().Add(limit); end.IsZero() || own.Before(end) {
			end = own
		}
	}
	if f, ok := w.Worker.(*Func); ok && (end.IsZero() || time.Until(end) > 0) {
		s.askFunc(c, w, f, end)
		return
	}
	s.calls++
	c.stopping++
	c.asked = false
	ctx, cancel := withStopCause(context.Background(), s.cause), context.CancelFunc(func() {})
	var guard *time.Timer
	if !end.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, end)
		guard = time.AfterFunc(time.Until(end)+time.Second, func() { s.box.Post(stopOverdue{c: c, i: w}) })
	}
	call.Go(c.name, func() error { return w.Stop(ctx) }, func(err error) {
		cancel()
		if guard != nil {
			guard.Stop()
		}
		w.settle(c.name)
		s.box.Post(stopEnded{c: c, i: w, err: err})
	})
}

// stopOverdue abandons an instance whose Stop ignores its context, even if the
// instance has ended.
func (s *Supervisor) stopOverdue(c *child, w *instance) {
	if now, _ := c.current(); now != w || c.stopping == 0 || c.abandoned {
		return
	}
	s.abandonChild(c, w, &AbandonedError{Name: c.name, Where: "its Stop, which did not keep to its context"})
	s.advance(c.group)
}

// abandonChild abandons c's instance, which still runs.
func (s *Supervisor) abandonChild(c *child, w *instance, err error) {
	s.markAbandoned(w, c.name)
	c.decided = true // ignore its end from now on
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
		s.abandonChild(c, w, errors.Join(&AbandonedError{Name: c.name, Where: "its Stop, which returned before it had ended"}, err))
	}
	if c.abandoned && w.ended() {
		s.markReturned(w)
	}
	if c.stopping == 0 {
		s.stopped(c)
	}
}

// stopped handles the end of a stop of c's instance.
func (s *Supervisor) stopped(c *child) {
	if c.w.ended() && !c.decided {
		c.decided = true
		end := s.recordExit(c)
		s.logFailure(c, "child failed as it stopped", end.status, end.err)
	}
	s.retire(c)
	s.advance(c.group)
}

// askFunc asks a function to stop, by the given time if that is not zero. Its end is a
// message of its own, so that needs neither a goroutine nor a timer for each function.
func (s *Supervisor) askFunc(c *child, w *instance, f *Func, by time.Time) {
	c.asked = true
	if !by.IsZero() {
		s.inTime = append(s.inTime, askedFunc{w, by})
		s.lookAt(by)
	}
	cause := s.cause
	if cause == nil {
		cause = ErrStopRequested
	}
	f.ask(cause)
}

// askedFunc is a function that was asked to stop by a time.
type askedFunc struct {
	w  *instance
	by time.Time
}

// waits reports whether the function has not returned, as far as the loop knows.
func (a askedFunc) waits() bool {
	w, _ := a.w.c.current()
	return w == a.w && a.w.c.asked
}

// lookAt makes the loop look for overdue functions at the given time, or earlier.
func (s *Supervisor) lookAt(at time.Time) {
	switch {
	case s.overdue == nil:
		s.overdue = time.AfterFunc(time.Until(at), func() { s.box.Post(askedOverdue{}) })
	case s.overdueAt.IsZero() || at.Before(s.overdueAt):
		s.overdue.Reset(time.Until(at))
	default:
		if len(s.inTime) == cap(s.inTime) { // make room, before append makes more
			s.inTime = slices.DeleteFunc(s.inTime, func(a askedFunc) bool { return !a.waits() })
		}
		return
	}
	s.overdueAt = at
}

// askedOverdue abandons the functions that have not returned in time.
func (s *Supervisor) askedOverdue() {
	all := s.inTime
	s.inTime, s.overdueAt = nil, time.Time{}
	now := time.Now()
	for _, a := range all {
		switch {
		case !a.waits():
		case now.Before(a.by):
			s.inTime = append(s.inTime, a)
			s.lookAt(a.by)
		default:
			s.stop(a.w.c, a.w, now)
		}
	}
}

// markAbandoned records that an abandoned instance or start of the child of this
// name is still running.
func (s *Supervisor) markAbandoned(what any, name string) {
	if _, known := s.abandoned[what]; !known {
		s.abandoned[what] = name
		s.abandonedOf[name]++
	}
}

// markReturned records that an abandoned instance or start has returned. When the
// last one of its name has returned, the next instance may start.
func (s *Supervisor) markReturned(what any) {
	if len(s.abandoned) == 0 {
		return
	}
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
