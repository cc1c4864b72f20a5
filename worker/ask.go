package worker

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// The loop of a supervisor calls the methods of its children through this file. A
// method of a foreign worker that panics, exits its goroutine or does not return is
// an error, and does not stop the loop.

// instance is one worker of a child. Supervisors compare instances, because
// workers themselves need not be comparable.
type instance struct {
	Worker
	base    *BaseWorker // the embedded base, nil for none
	foreign *strange    // nil for a kind of this package, whose methods always return

	c        *child // whose place it takes
	restarts int    // how many instances were there before it
	previous *Exit  // of the one before it
}

// startContext is the context that a child's Start gets: its supervisor's values, and
// its [Handover]. It never ends.
type startContext instance

func (x *startContext) Deadline() (time.Time, bool) { return time.Time{}, false }
func (x *startContext) Done() <-chan struct{}       { return nil }
func (x *startContext) Err() error                  { return nil }

// String is for the texts of contexts; without it fmt would read the fields.
func (x *startContext) String() string { return "worker.Supervisor(" + x.c.s.Name() + ")" }

func (x *startContext) Value(key any) any {
	if _, ok := key.(handoverKey); ok {
		return x
	}
	return x.c.s.base.Value(key)
}

// handover returns what the instance is told.
func (x *startContext) handover() Handover {
	return Handover{Session: x.c.s.sessionOf(x.c.name), Restarts: x.restarts, Previous: x.previous}
}

// workerEnded tells the loop that the instance has ended, or is gone.
func (i *instance) workerEnded() {
	if i.foreign == nil {
		i.c.s.box.Post((*instanceEnded)(i))
		return
	}
	go func() { // settle may call the worker, whose lock is held now
		i.settle(i.c.name)
		i.c.s.box.Post((*instanceEnded)(i))
	}()
}

// strange is what a supervisor knows about a foreign worker.
type strange struct {
	done    <-chan struct{} // closed when the worker has ended
	answers call.Answers

	settling atomic.Bool // settle was called
	settled  fsm.Signal  // end is known
	end      ending
}

// ending is how a worker ended, as its own methods report it.
type ending struct {
	status Status
	err    error
	exit   *Exit // nil when only the status and the error are known
}

// newInstance calls a foreign worker's Done once. That may never return, so a start that
// may hang calls newInstance in a goroutine that may be abandoned.
func newInstance(c *child, w Worker) (*instance, error) {
	i := &instance{Worker: w, c: c}
	if b, ok := w.(interface{ self() *BaseWorker }); ok {
		i.base = b.self()
	}
	switch w.(type) {
	case *Func, *Process, *Container, *Restarter, *Supervisor:
		return i, nil // do not call Done, which would make a channel
	}
	if treeOf(w) != nil {
		return i, nil
	}
	i.foreign = &strange{}
	if i.base != nil {
		i.foreign.done = i.base.Done() // Finish closes it; the supervisor does not use the worker's own Done
	} else {
		i.foreign.done = w.Done()
	}
	if i.foreign.done == nil {
		return nil, fmt.Errorf("the Done of %s returned nil, want a channel that is closed when it has ended", w.Name())
	}
	return i, nil
}

func (i *instance) ended() bool {
	if i.foreign == nil {
		return i.base.Status().Terminal()
	}
	select {
	case <-i.foreign.done:
		return true
	default:
		return false
	}
}

// ask calls one of the worker's methods. It waits for a foreign worker no longer
// than [call.AnswerIn].
func ask[T any](i *instance, method string, fn func() T) (T, error) {
	f := i.foreign
	if f == nil {
		return fn(), nil
	}
	return call.Ask(&f.answers, method, fn)
}

// status returns the worker's status, without computing a whole State where
// possible. A foreign worker that does not answer, or answers with a word that is
// not a status, counts as Running until it is done, and then as Failed.
func (i *instance) status() Status {
	if i.base != nil {
		return i.base.Status()
	}
	s, err := ask(i, "Status", func() Status {
		if b, ok := i.Worker.(interface{ Status() Status }); ok {
			return b.Status()
		}
		return i.Worker.State().Status
	})
	return i.sensible(s, err)
}

// sensible returns the status of a worker that reports s, which may be any word.
func (i *instance) sensible(s Status, err error) Status {
	_, known := transitions[s]
	ended := i.ended()
	switch {
	case err == nil && known && (s.Terminal() || !ended):
		return s
	case ended:
		return StatusFailed
	}
	return StatusRunning
}

// state returns the worker's State. For a worker that does not answer it returns
// what is known.
func (i *instance) state(name string) State {
	s, err := ask(i, "State", i.Worker.State)
	switch {
	case err != nil:
		s = State{Name: name, Status: i.status(), Error: err.Error()}
	case i.foreign != nil && i.base == nil:
		s.Status = i.sensible(s.Status, nil)
	}
	return s
}

// ending returns how the worker ended. For a foreign worker it returns what settle has
// found; call settle outside the loop first, so that ending does not wait.
func (i *instance) ending(name string) ending {
	if i.foreign != nil {
		i.settle(name)
		return i.foreign.end
	}
	e := ending{status: i.status(), err: i.Worker.Err()}
	switch i.Worker.(type) {
	case *Process, *Container:
		e.exit = i.Worker.State().Exit
	}
	return e
}

// settle asks an ended foreign worker, once, how it ended. It takes a few times
// [call.AnswerIn] at most. A second caller waits for the first. The supervisor
// calls it in a goroutine beside its loop before the loop calls ending.
func (i *instance) settle(name string) {
	f := i.foreign
	if f == nil || !i.ended() {
		return
	}
	if !f.settling.CompareAndSwap(false, true) {
		<-f.settled.Signaled()
		return
	}
	err, failed := ask(i, "Err", i.Worker.Err)
	if failed != nil {
		err = failed
	}
	f.end = ending{status: i.status(), err: err, exit: i.state(name).Exit}
	f.settled.Signal()
}

// tell calls one of the worker's optional methods.
func (i *instance) tell(method string, fn func()) {
	_, _ = ask(i, method, func() struct{} { fn(); return struct{}{} })
}
