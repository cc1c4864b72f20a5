package worker

import (
	"errors"
	"fmt"

	"github.com/pleme-io/lifecycle-go/internal/safe"
)

// What follows asks a worker that may be anybody's, in the one goroutine that a
// whole tree depends on: an answer that panics is an error, and takes nobody
// with it. (A Goexit in one of them cannot be stopped.)

// instance tells one worker from the next. Workers themselves need not be
// comparable.
type instance struct {
	Worker
	done <-chan struct{} // its Done: whatever else it says, whether it has ended is this
}

// newInstance asks w once for its Done. It may panic.
func newInstance(w Worker) (*instance, error) {
	done := w.Done()
	if done == nil {
		return nil, fmt.Errorf("the Done of %s returned nil, want a channel that is closed when it has ended", w.Name())
	}
	return &instance{w, done}, nil
}

func (i *instance) ended() bool {
	select {
	case <-i.done:
		return true
	default:
		return false
	}
}

// status does without a whole State where it can. One that does not answer is
// Running until it is done, and Failed then.
func (i *instance) status() (s Status) {
	err := safe.Do("Status", func() error {
		if b, ok := i.Worker.(interface{ Status() Status }); ok {
			s = b.Status()
		} else {
			s = i.Worker.State().Status
		}
		return nil
	})
	switch {
	case err == nil:
		return s
	case i.ended():
		return StatusFailed
	}
	return StatusRunning
}

// state is its State, or what can be said of one that does not answer.
func (i *instance) state(name string) (s State) {
	if err := safe.Do("State", func() error { s = i.Worker.State(); return nil }); err != nil {
		s = State{Name: name, Status: i.status(), Error: err.Error()}
	}
	return s
}

// err is its Err. One that does not answer has failed.
func (i *instance) err() (out error) {
	failed := safe.Do("Err", func() error { out = i.Worker.Err(); return nil })
	return errors.Join(out, failed)
}

// tell calls one of the optional methods.
func (i *instance) tell(method string, call func()) {
	_ = safe.Do(method, func() error { call(); return nil })
}
