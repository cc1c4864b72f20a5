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
	told    bool    // listeners know that the check fails
	hidden  *hidden // the failure that listeners do not know of yet, or nil
	closed  bool    // listeners hear of no more delayed failures
}

// hidden is a failure that listeners have not heard of yet.
type hidden struct {
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
	case n.hidden != nil:
		n.hidden.cause = cause
		return
	default:
		h := &hidden{cause: cause}
		h.timer = time.AfterFunc(n.delay, func() { c.reveal(h) })
		n.hidden = h
		return
	}
	n.tell(state, cause)
}

// reveal tells the listeners of a failure that has lasted for the delay.
func (c *check) reveal(h *hidden) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.news.hidden != h {
		return // it ended meanwhile
	}
	c.news.hidden, c.news.told = nil, true
	c.news.tell(c.state, h.cause)
}

// closeNews ends the wait of a hidden failure for good.
func (c *check) closeNews() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.news.closed = true
	c.news.forget()
}

// forget ends the wait of a hidden failure.
func (n *news) forget() {
	if n.hidden != nil {
		n.hidden.timer.Stop()
		n.hidden = nil
	}
}

// tell publishes a state that the listeners do not know.
func (n *news) tell(state State, cause error) {
	if state != n.machine.State() {
		_ = n.machine.To(state, cause) // the table allows every change
	}
}
