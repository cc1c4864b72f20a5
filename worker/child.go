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

	// Guarded by s.mu, and written by the loop alone.
	factory  func(name string) (Worker, error) // the spec's New, or in a Dynamic what takes its place
	spec     *Spec                             // without Name and New in a Dynamic, whose children share it
	instance *instance                         // the present or the last one; nil before the first
	held     *BaseWorker                       // in place of an instance: a pending worker, or a failed start
	exit     *Exit                             // of the last instance that ended
	op       *startOp                          // the start that is under way, nil for none
	probing  *probing
	restarts int

	// Only the loop uses the fields below.
	toStart bool    // the group has to start it
	leaving leaving // whether it was removed or stopped by its name
	tried   bool
	ran     bool // a start has succeeded
	done    bool // it has ended and is not started again
	index   int  // in s.children; kept up to date in a Dynamic alone
	group   *group
	next    *child          // starts beside it, to replace it; nil for none
	before  *child          // that it is to replace; nil for none
	upSince time.Time       // when the last start has succeeded; zero before
	base    context.Context // of its instances: the supervisor's values and the labels of its goroutine
	delays  *delays

	callers []caller
}

// caller waits for a change of a child. The channel has room for one answer.
type caller struct {
	wants wish
	reply chan<- error
}

// wish is what a caller waits for.
type wish int

const (
	wantsRemoval wish = iota // the child is removed
	wantsStop                // the child has stopped
	wantsStart               // a start of the child has succeeded or failed
)

// answer answers the callers that have this wish.
func (c *child) answer(w wish, err error) {
	c.callers = slices.DeleteFunc(c.callers, func(caller caller) bool {
		if caller.wants == w {
			caller.reply <- err
		}
		return caller.wants == w
	})
}

// answerStart answers the callers that wait for a start. When the group is about to stop c and
// start it again, they wait for that start.
func (c *child) answerStart(err error) {
	isStoppedFirst := c.group != nil && c.group.phase == groupStopping
	if isStoppedFirst && c.toStart {
		return
	}
	c.answer(wantsStart, err)
}

// answerAll answers the callers of a child that is removed, or whose supervisor ends. Callers
// that wait for a start get err.
func (c *child) answerAll(err error) {
	c.answer(wantsRemoval, nil)
	c.answer(wantsStop, nil)
	c.answer(wantsStart, err)
}

// leaving says whether a caller has taken a child out of service. Then no failure starts it
// again.
type leaving int

const (
	stays   leaving = iota
	parked          // StopChild has stopped it, or is about to
	removed         // Remove is about to stop it
)

// current returns the instance. A start may change it at any time.
func (c *child) current() *instance {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.instance
}

// lives reports whether the child has an instance that has not ended.
func (c *child) lives() bool {
	c.s.mu.Lock()
	w := c.instance
	lives := w != nil && !w.abandoned
	c.s.mu.Unlock()
	return lives && !w.hasEnded()
}

// isAbandoned reports whether the child has an instance that was abandoned and still runs.
func (c *child) isAbandoned() bool {
	c.s.mu.Lock()
	w := c.instance
	abandoned := w != nil && w.abandoned
	c.s.mu.Unlock()
	return abandoned && !w.isGone()
}

// isUp reports whether the child runs, starts or has to be started. Only the loop may call it.
func (c *child) isUp() bool {
	return c.instance != nil && c.instance.running || c.op != nil || c.toStart
}

// isDown reports whether nothing of the child runs and the loop has decided what comes next.
func (c *child) isDown() bool { return !c.isUp() && (c.instance == nil || c.instance.settled) }

func (c *child) state() State {
	c.s.mu.Lock()
	w, held, restarts, exit := c.instance, c.held, c.restarts, c.exit
	c.s.mu.Unlock()
	var state State
	switch {
	case held != nil:
		if state = held.State(); state.Status == "" { // the instance has just taken over, and held is nil by now
			return c.state()
		}
	case w != nil:
		state = w.state()
	default:
		state = State{Name: c.name, Status: StatusCreated}
	}
	state.Restarts += restarts
	if state.Exit == nil {
		state.Exit = exit
	}
	return state
}

// hold makes the child pending. The next instance continues the life that begins
// here.
func (s *Supervisor) hold(c *child, reason error, due time.Time) {
	if c.held != nil && c.held.hold(reason, due) == nil {
		return
	}
	held := s.newHeld(c)
	_ = held.hold(reason, due) // never fails for a new worker
	s.mu.Lock()
	c.held = held
	s.mu.Unlock()
}

// newHeld makes the worker that is shown in place of an instance.
func (s *Supervisor) newHeld(c *child) *BaseWorker {
	held := &BaseWorker{}
	held.Init("child", c.name)
	s.Adopt(held)
	return held
}

// unhold stops the worker that is pending in c's place: it never starts.
func (s *Supervisor) unhold(c *child) {
	if c.held != nil {
		c.held.RequestStop(ErrStopRequested)
	}
}

// instanceEnded handles the end of an instance.
func (s *Supervisor) instanceEnded(i *instance, end *ending) {
	if !i.isGone() {
		s.markAbandoned(i)
		go func() {
			<-i.base.Gone()
			s.box.Post(func() { s.checkReturned(i) })
		}()
	}
	s.checkReturned(i)
	if !i.running {
		return // it was abandoned, or its start has failed
	}
	i.running, i.end = false, end
	if i.child.op == nil && i.stops == 0 { // otherwise startEnded or stopReturned decides
		s.settle(i)
	}
}

// settle decides, once, whether the child of an instance that has ended is started again. No
// call of the supervisor to the instance is under way by then.
func (s *Supervisor) settle(i *instance) {
	if i.settled {
		return
	}
	c := i.child
	i.settled = true
	s.mu.Lock()
	c.exit = i.end.exit
	s.mu.Unlock()
	switch {
	case i.asked:
		s.logFailure(c, "child failed as it stopped", i.end)
		s.retire(c)
	case !s.restartByPolicy(c, i.end.status, i.end.err):
		s.logFailure(c, notAgain, i.end)
		s.retire(c)
	}
	s.advance(c.group)
}

// stopUnlessAsked stops an instance. It does nothing when the instance was already asked to
// stop by that time.
func (s *Supervisor) stopUnlessAsked(i *instance, by time.Time) {
	if i.stops == 0 || isBefore(by, i.stopBy) {
		s.stop(i, by)
	}
}

// isBefore compares two deadlines, of which a zero one never comes.
func isBefore(a, b time.Time) bool { return !a.IsZero() && (b.IsZero() || a.Before(b)) }

// stop calls the instance's Stop in the background. Stop may take the child's
// StopTimeout, or until the given time if that is earlier and not zero.
func (s *Supervisor) stop(i *instance, by time.Time) {
	if limit, bounded := i.child.spec.stopLimit(i.Worker); bounded {
		if own := time.Now().Add(limit); isBefore(own, by) {
			by = own
		}
	}
	if isBefore(by, i.stopBy) {
		i.stopBy = by
	}
	s.calls++
	i.stops++
	i.asked = true
	ctx, cancel := withStopCause(context.Background(), s.cause), context.CancelFunc(func() {})
	var guard *time.Timer
	if !by.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, by)
		guard = time.AfterFunc(time.Until(by)+time.Second, func() { s.box.Post(func() { s.stopOverdue(i) }) })
	}
	call.Go(i.child.name, func() error { return i.Stop(ctx) }, func(err error) {
		cancel()
		if guard != nil {
			guard.Stop()
		}
		s.box.Post(func() { s.stopReturned(i, err) })
	})
}

// stopOverdue abandons an instance whose Stop ignores its context, even if the
// instance has ended.
func (s *Supervisor) stopOverdue(i *instance) {
	if i.stops > 0 && !i.settled {
		s.abandonInstance(i, &AbandonedError{Name: i.child.name, Where: "its Stop, which did not keep to its context"})
		s.settle(i)
	}
}

// stopReturned handles the return of a Stop.
func (s *Supervisor) stopReturned(i *instance, err error) {
	s.calls--
	i.stops--
	s.checkReturned(i)
	if i.running && !i.hasEnded() {
		early := &AbandonedError{Name: i.child.name, Where: "its Stop, which returned before it had ended"}
		s.abandonInstance(i, errors.Join(early, err))
	}
	if !i.running && i.stops == 0 && (i.child.op == nil || i.abandoned) {
		s.settle(i)
	}
}

// abandonInstance gives up an instance that still runs.
func (s *Supervisor) abandonInstance(i *instance, err error) {
	s.markAbandoned(i)
	i.running = false
	i.end = &ending{
		status: StatusKilled,
		err:    err,
		exit:   &Exit{Status: StatusKilled, Error: err.Error(), Code: -1, At: time.Now()},
	}
	if s.ending {
		s.abandonedErrs = append(s.abandonedErrs, err)
	}
	s.mu.Lock()
	i.abandoned = true
	s.mu.Unlock()
}

// markAbandoned records that an abandoned instance is still running.
func (s *Supervisor) markAbandoned(i *instance) {
	if !i.countedAbandoned {
		i.countedAbandoned = true
		s.abandoned[i.child.name]++
	}
}

// checkReturned calls markReturned once none of an abandoned instance's code runs any more.
func (s *Supervisor) checkReturned(i *instance) {
	if i.countedAbandoned && i.stops == 0 && i.isGone() {
		i.countedAbandoned = false
		s.markReturned(i.child.name)
	}
}

// markReturned records that an abandoned instance or start has returned. When the
// last one of its name has returned, the next instance may start.
func (s *Supervisor) markReturned(name string) {
	if s.abandoned[name]--; s.abandoned[name] > 0 {
		return
	}
	delete(s.abandoned, name)
	if c := s.byName[name]; c != nil {
		s.advance(c.group)
	}
}
