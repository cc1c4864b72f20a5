package worker

import (
	"fmt"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// A supervisor calls the methods of its children through this file. The methods of a foreign
// worker may panic, exit their goroutine or not return: the supervisor gets an error and
// goes on.

// instance is one worker of a child. Supervisors compare instances, because
// workers themselves need not be comparable.
type instance struct {
	Worker
	child     *child          // whose place it takes
	base      *BaseWorker     // the embedded base, nil for none
	isBuiltin bool            // a kind of this package, whose methods always return
	done      <-chan struct{} // of a worker without base: closed when it has ended
	answers   call.Answers    // of a foreign worker

	restarts int   // how many instances there were before it
	previous *Exit // of the instance before it

	abandoned bool // it did not stop in time; guarded by the supervisor's mu

	// Only the loop uses the fields below.
	running          bool      // from its place until the loop has handled its end
	countedAbandoned bool      // it runs, and is counted in the supervisor's abandoned
	settled          bool      // the loop has decided whether the child is started again
	asked            bool      // Stop was called
	stops            int       // calls of Stop that have not returned
	stopBy           time.Time // the earliest deadline of a Stop, zero for none
	end              *ending   // nil while it is running
}

// ending is how a worker ended, as its own methods report it.
type ending struct {
	status Status
	err    error
	exit   *Exit
}

// newInstance calls a foreign worker's Done once. That may never return, so a start that
// may hang calls newInstance in a goroutine that may be abandoned.
func newInstance(c *child, w Worker) (*instance, error) {
	i := &instance{Worker: w, child: c}
	if b, ok := w.(interface{ self() *BaseWorker }); ok {
		i.base = b.self()
	}
	switch w.(type) {
	case *Func, *Process, *Container, *Restarter, *Leader, *Actor:
		i.isBuiltin = true
	default:
		i.isBuiltin = treeOf(w) != nil
	}
	if i.base != nil {
		return i, nil // Finish ends it; the supervisor does not use the worker's own Done
	}
	if i.done = w.Done(); i.done == nil {
		return nil, fmt.Errorf("the Done of %s returned nil, want a channel that is closed when it has ended", w.Name())
	}
	return i, nil
}

// hasEnded reports whether the worker is in a terminal status.
func (i *instance) hasEnded() bool {
	if i.base != nil {
		return i.base.Status().Terminal()
	}
	return isClosed(i.done)
}

// neverRan returns why an instance that is not Starting any more never was Running: its error, or
// that it was stopped. It returns nil for one that was Running.
func (i *instance) neverRan() error {
	if i.base == nil || !i.base.StartedAt().IsZero() {
		return nil
	}
	if err := i.base.Err(); err != nil {
		return err
	}
	return errGivenUp
}

// isGone reports whether none of the worker's code runs any more. For a worker without a
// base the supervisor knows only whether it has ended.
func (i *instance) isGone() bool {
	if i.base != nil {
		return i.base.gone.HasSignaled()
	}
	return isClosed(i.done)
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// ask calls one of the worker's methods. It waits for a foreign worker no longer
// than [call.AnswerIn].
func ask[T any](i *instance, method string, fn func() T) (T, error) {
	if i.isBuiltin {
		return fn(), nil
	}
	return call.Ask(&i.answers, method, fn)
}

// callOptional calls one of the worker's optional methods.
func (i *instance) callOptional(method string, fn func()) {
	_, _ = ask(i, method, func() struct{} { fn(); return struct{}{} })
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
	return i.plausible(s, err)
}

// plausible returns s, the status that a worker reports, when that can be true. Otherwise it
// returns Failed for a worker that has ended, and Running for any other.
func (i *instance) plausible(s Status, err error) Status {
	_, isStatus := transitions[s]
	hasEnded := i.hasEnded()
	contradicts := hasEnded && !s.Terminal()
	switch {
	case err == nil && isStatus && !contradicts:
		return s
	case hasEnded:
		return StatusFailed
	}
	return StatusRunning
}

// state returns the worker's State. For a worker that does not answer it returns its name and
// status alone.
func (i *instance) state() State {
	s, err := ask(i, "State", i.Worker.State)
	switch {
	case err != nil:
		s = State{Name: i.child.name, Status: i.status(), Error: err.Error()}
	case i.base == nil:
		s.Status = i.plausible(s.Status, nil)
	}
	return s
}

// ending asks an ended worker how it ended. A foreign worker may take a few times
// [call.AnswerIn].
func (i *instance) ending() *ending {
	err, failed := ask(i, "Err", i.Worker.Err)
	if failed != nil {
		err = failed
	}
	e := &ending{status: i.status(), err: err}
	switch i.Worker.(type) {
	case *Process, *Container:
		e.exit = i.Worker.State().Exit
	default:
		if !i.isBuiltin {
			e.exit = i.state().Exit
		}
	}
	if e.exit == nil {
		e.exit = exitOfWorker(e.status, e.err, time.Now())
	}
	return e
}

func exitOfWorker(status Status, err error, at time.Time) *Exit {
	exit := &Exit{Status: status, At: at}
	if err != nil {
		exit.Error, exit.Code = err.Error(), -1
	}
	return exit
}

// watch posts a message to the loop when the instance has ended.
func (s *Supervisor) watch(i *instance) {
	report := func() {
		end := i.ending()
		s.box.Post(func() { s.instanceEnded(i, end) })
	}
	switch {
	case i.isBuiltin:
		i.base.OnEnd(report)
	case i.base != nil:
		i.base.OnEnd(func() { go report() })
	default:
		go func() { // ends with the worker or with the supervisor
			select {
			case <-i.done:
				report()
			case <-s.Gone():
			}
		}()
	}
}
