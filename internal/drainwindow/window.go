// Package drainwindow decides when an App's drain window ends.
package drainwindow

import (
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// How a window has ended.
const (
	Full    = "full"
	Quiet   = "quiet"
	Skipped = "skipped by a second signal"
	Early   = "ended early" // by EndAt
	Held    = "held longer" // by EndAt
	Short   = "cut short"   // by Fit
)

// Times are the times of a window, from its beginning. The window ends after Full. It
// may end after Min, and last until Max.
type Times struct {
	Min, Full, Max time.Duration
	Quiet          time.Duration // without traffic after which it ends; 0 is never
}

// Window is the drain window of one stop. The zero value has not begun. All methods
// may be called concurrently.
type Window struct {
	mu    sync.Mutex // guards the fields below
	begun time.Time
	times Times
	at    time.Time // EndAt's; zero without one
	short bool      // Fit was called
	moved fsm.Wake  // at or times is new
}

// Begin begins the window. It is called once.
func (w *Window) Begin(now time.Time, t Times) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun, w.times, w.moved = now, t, fsm.NewWake()
}

// EndAt moves the end of the window, or with the zero time gives it its own again. The
// last call counts.
func (w *Window) EndAt(at time.Time) { w.change(func() { w.at = at }) }

// Fit shortens the times of the window.
func (w *Window) Fit(t Times) { w.change(func() { w.times, w.short = t, true }) }

func (w *Window) change(field func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun.IsZero() {
		return
	}
	field()
	w.moved.Notify()
}

// ends returns when the window may end, when it has to, and after which quiet it may.
func (w *Window) ends() (may, must time.Time, how string, t Times) {
	w.mu.Lock()
	defer w.mu.Unlock()
	must, how = w.begun.Add(w.times.Full), Full
	may = must
	at := w.at
	if latest := w.begun.Add(w.times.Max); at.After(latest) {
		at = latest
	}
	switch {
	case at.IsZero():
	case at.After(must):
		may, must, how = at, at, Held
	default:
		if may = at; may.Before(w.begun.Add(w.times.Min)) {
			may = w.begun.Add(w.times.Min)
		}
	}
	if w.short {
		how = Short
	}
	return may, must, how, w.times
}

// Traffic is what an App sees of its clients.
type Traffic struct {
	Serving bool      // a request is in flight, or a handler has taken over a connection
	Busy    bool      // Serving, or a connection is open on which the App cannot see requests
	Last    time.Time // when a client came last
}

// Wait waits for the end of the window, and returns how it has ended. Two ways lead to
// an early end, and neither while a client is served or before drained is closed, which
// says that every drainer has returned.
func (w *Window) Wait(skip, drained <-chan struct{}, traffic func() Traffic) (how string) {
	end, look := time.NewTimer(0), time.NewTimer(0)
	defer end.Stop()
	defer look.Stop()
	for {
		may, must, how, times := w.ends()
		if drained == nil {
			seen := traffic()
			switch {
			case may.Before(must) && !time.Now().Before(may) && !seen.Serving:
				return Early
			case w.isQuiet(times, seen):
				return Quiet
			}
		}
		end.Reset(time.Until(must))
		look.Reset(lookAfter(times, may, must))
		select {
		case <-end.C:
			return how
		case <-skip:
			return Skipped
		case <-w.moved:
		case <-look.C:
		case <-drained:
			drained = nil // a closed channel is always ready
		}
	}
}

// lookAfter returns when to look again, because a client leaves without a message.
func lookAfter(t Times, may, must time.Time) time.Duration {
	next := time.Hour
	if q := t.Quiet; q > 0 {
		next = min(max(q/10, 10*time.Millisecond), 250*time.Millisecond)
	}
	if may.Before(must) {
		next = min(next, max(time.Until(may), 50*time.Millisecond))
	}
	return next
}

// isQuiet reports whether no client is there, and none has come for Quiet.
func (w *Window) isQuiet(t Times, seen Traffic) bool {
	if t.Quiet <= 0 || seen.Busy || time.Since(w.begun) < t.Min {
		return false
	}
	since := w.begun
	if seen.Last.After(since) {
		since = seen.Last
	}
	return time.Since(since) >= t.Quiet
}
