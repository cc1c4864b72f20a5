package worker

import (
	"fmt"
	"sync"

	"github.com/pleme-io/lifecycle-go/internal/safe"
)

// What follows asks a worker that may be anybody's, for the one goroutine that a
// whole tree depends on: an answer that panics, exits the goroutine or does not
// come is an error, and takes nobody with it.

// instance tells one worker from the next. Workers themselves need not be
// comparable.
type instance struct {
	Worker
	base    *BaseWorker     // the one that is embedded, nil for none
	done    <-chan struct{} // whatever else it says, whether it has ended is this; nil where base alone is asked
	foreign *strange        // nil for a kind of this package: that one answers
}

// strange is what there is to know of a worker of somebody else's making.
type strange struct {
	answers safe.Answers

	mu       sync.Mutex // guards what follows
	settling bool       // somebody asks how it ended

	settled chan struct{} // closed when that is known
	end     ending        // set before that
}

// ending is how a worker says that it ended.
type ending struct {
	status Status
	err    error
	exit   *Exit // nil when there is no more to say
}

// newInstance asks w once for its Done. It may do anything.
func newInstance(w Worker) (*instance, error) {
	i := &instance{Worker: w}
	if b, ok := w.(interface{ self() *BaseWorker }); ok {
		i.base = b.self()
	}
	switch w.(type) {
	case *Func, *Process, *Container, *Restarter, *Supervisor:
		return i, nil // its Done is made when somebody waits for it
	}
	i.foreign = &strange{settled: make(chan struct{})}
	i.done = w.Done()
	if i.base != nil {
		i.done = i.base.Done() // the supervisor goes by the end that it hears of
	}
	if i.done == nil {
		return nil, fmt.Errorf("the Done of %s returned nil, want a channel that is closed when it has ended", w.Name())
	}
	return i, nil
}

func (i *instance) ended() bool {
	if i.done == nil {
		return i.base.Status().Terminal()
	}
	select {
	case <-i.done:
		return true
	default:
		return false
	}
}

// ask calls one of the worker's methods. It waits for a foreign worker no longer
// than [safe.AnswerIn].
func ask[T any](i *instance, method string, call func() T) (T, error) {
	f := i.foreign
	if f == nil {
		return call(), nil
	}
	return safe.Ask(&f.answers, method, call)
}

// status does without a whole State where it can. One that does not answer, or
// with a word that is none, is Running until it is done, and Failed then.
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

// sensible is the status that a worker has which says that it is s.
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

// state is its State, or what can be said of one that does not answer.
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

// ending is how it ended. For a foreign one it is asked for once, and in a
// goroutine that may wait: see settle.
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

// settle asks a foreign worker that has ended how it did, once.
func (i *instance) settle(name string) {
	if i.foreign == nil || !i.ended() {
		return
	}
	f := i.foreign
	f.mu.Lock()
	first := !f.settling
	f.settling = true
	f.mu.Unlock()
	if !first {
		<-f.settled
		return
	}
	err, failed := ask(i, "Err", i.Worker.Err)
	if failed == nil {
		failed = safe.Do("Err", func() error { return err }) // what cannot be read is an error too
	}
	f.end = ending{status: i.status(), err: failed, exit: i.state(name).Exit}
	close(f.settled)
}

// tell calls one of the optional methods.
func (i *instance) tell(method string, call func()) {
	_, _ = ask(i, method, func() struct{} { call(); return struct{}{} })
}
