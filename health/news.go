package health

import (
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// news is the state of one check as its listeners know it. It follows the check's
// state at once, except that listeners hear of a failure only after the failure
// has lasted for the delay. The check's lock guards it.
type news struct {
	machine *fsm.Machine[State] // its state is the state that listeners know
	delay   time.Duration
	told    bool            // listeners know that the check fails
	delayed *delayedFailure // the failure that listeners do not know of yet, or nil
	closed  bool            // listeners hear of no more delayed failures
}

// delayedFailure is a failure that listeners have not heard of yet.
type delayedFailure struct {
	timer *time.Timer
	cause error
}

// tellLocked tells the listeners of the check's new state, or begins to wait.
func (c *check) tellLocked(state State, cause error) {
	n := &c.news
	switch {
	case state == Up:
		n.told = false
		n.forget()
	case n.told || n.delay == 0:
		n.told = true
	case n.closed:
		return
	case n.delayed != nil:
		n.delayed.cause = cause
		return
	default:
		h := &delayedFailure{cause: cause}
		h.timer = time.AfterFunc(n.delay, func() { c.tellDelayed(h) })
		n.delayed = h
		return
	}
	n.tell(state, cause)
}

// tellDelayed tells the listeners of a failure that has lasted for the delay.
func (c *check) tellDelayed(h *delayedFailure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.news.delayed != h {
		return // it ended meanwhile
	}
	c.news.delayed, c.news.told = nil, true
	c.news.tell(c.state, h.cause)
}

// closeNews ends the wait of a delayed failure for good.
func (c *check) closeNews() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.news.closed = true
	c.news.forget()
}

// forget ends the wait of a delayed failure.
func (n *news) forget() {
	if n.delayed != nil {
		n.delayed.timer.Stop()
		n.delayed = nil
	}
}

// tell publishes a state that the listeners do not know.
func (n *news) tell(state State, cause error) {
	if state != n.machine.State() {
		_ = n.machine.To(state, cause) // the table allows every change
	}
}
