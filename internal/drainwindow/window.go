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
	Quiet          time.Duration // how long without traffic ends the window early; with 0 nothing does
}

// Window is the drain window of one stop. The zero value has not begun. All methods
// may be called concurrently.
type Window struct {
	mu    sync.Mutex // guards the fields below; Wait reads begun and moved without it, because Begin came before
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

// EndAt moves the end of the window. The zero time restores the end by Times. The last call
// counts.
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

// ends returns when the window may end early, when it ends, how it then has ended, and its times.
func (w *Window) ends() (earliest, end time.Time, how string, t Times) {
	w.mu.Lock()
	defer w.mu.Unlock()
	end, how = w.begun.Add(w.times.Full), Full
	earliest = end
	at := w.at
	if latest := w.begun.Add(w.times.Max); at.After(latest) {
		at = latest
	}
	switch {
	case at.IsZero():
	case at.After(end):
		earliest, end, how = at, at, Held
	default:
		if earliest = at; earliest.Before(w.begun.Add(w.times.Min)) {
			earliest = w.begun.Add(w.times.Min)
		}
	}
	if w.short {
		how = Short
	}
	return earliest, end, how, w.times
}

// Traffic is what an App sees of its clients.
type Traffic struct {
	Serving bool      // a request is in flight, or a handler has taken over a connection
	Busy    bool      // Serving, or a connection is open on which the App cannot see requests
	Last    time.Time // when a client came last
}

// Wait waits for the end of the window, and returns how it has ended. The caller closes drained
// when every drainer has returned. From then on the window may end early, in two ways: at the
// time of EndAt when no client is served, and after Quiet without traffic. Without traffic to wait
// for, which is nil then, it ends with the last drainer.
func (w *Window) Wait(skip, drained <-chan struct{}, traffic func() Traffic) (how string) {
	for {
		earliest, end, how, times := w.ends()
		if drained == nil && traffic == nil {
			return Early
		}
		if drained == nil {
			seen := traffic()
			switch {
			case earliest.Before(end) && !time.Now().Before(earliest) && !seen.Serving:
				return Early
			case w.isQuiet(times, seen):
				return Quiet
			}
		}
		select {
		case <-time.After(time.Until(end)):
			return how
		case <-skip:
			return Skipped
		case <-w.moved:
		case <-time.After(lookAfter(times, earliest, end)):
		case <-drained:
			drained = nil // a closed channel is always ready
		}
	}
}

// lookAfter returns after which time to look at the traffic again. Wait has to look, because it
// gets no message when a client leaves.
func lookAfter(t Times, earliest, end time.Time) time.Duration {
	next := time.Hour
	if q := t.Quiet; q > 0 {
		next = min(max(q/10, 10*time.Millisecond), 250*time.Millisecond)
	}
	if earliest.Before(end) {
		next = min(next, max(time.Until(earliest), 50*time.Millisecond))
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
