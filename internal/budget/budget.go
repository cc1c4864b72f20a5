// Package budget holds the times of an App's stop, and shortens them to the time that a stop
// really has.
package budget

import (
	"time"

	"github.com/pleme-io/lifecycle-go/internal/drainwindow"
	"github.com/pleme-io/lifecycle-go/internal/httpdrain"
)

// Budget holds the times of a stop. No duration is negative.
type Budget struct {
	Window                                drainwindow.Times
	GoAwayAfter, Linger                   time.Duration // of a server's goodbye
	AcceptQuiet, AcceptMax                time.Duration // until its listener closes
	Grace, UnitSlice, HookSlice, MinSlice time.Duration // of everything after the window
	ReportSlice                           time.Duration // of Grace, after the hooks
	ShareSlice                            bool          // MinSlice was not given: hooks share HookSlice
	Patience                              time.Duration // to wait for a server that does not return when its time is over
	Margin                                time.Duration // from the end of Grace to the watchdog
	Total                                 time.Duration // from T0 to the watchdog
}

// Within returns the budget, with every time shortened in proportion when its total is
// more than d.
func (b Budget) Within(d time.Duration) Budget {
	if part := max(d.Seconds(), 0) / b.Total.Seconds(); part < 1 {
		for _, t := range []*time.Duration{
			&b.Window.Min, &b.Window.Full, &b.Window.Max, &b.Window.Quiet, &b.GoAwayAfter, &b.AcceptQuiet, &b.AcceptMax, &b.Linger,
			&b.Grace, &b.UnitSlice, &b.HookSlice, &b.MinSlice, &b.ReportSlice, &b.Patience, &b.Margin, &b.Total,
		} {
			*t = time.Duration(float64(*t) * part)
		}
	}
	return b
}

// After returns the times of the steps after the window, and reports whether they differ from
// b's. window is how long the window took. When the steps need more time than left, they are
// shortened to it. When the window ended early, requests in flight and open connections get
// the rest of it, as far as left allows: they are served until the same time as after a whole window.
func (b Budget) After(window time.Duration, early bool, left time.Duration) (Budget, bool) {
	switch need := b.Grace + b.Margin; {
	case left < need:
		b.Window, b.Total = drainwindow.Times{}, need
		return b.Within(left), true
	case early:
		rest := min(b.Window.Full-window, left-need)
		b.Grace += rest
		b.Linger += rest
		b.AcceptMax += rest
		return b, true
	}
	return b, false
}

// HookShare returns the time that each of this many hooks is sure to get, and whether
// MinSlice fits into HookSlice. If it does not fit, the time is an equal share of HookSlice:
// so every hook still runs.
func (b Budget) HookShare(hooks int) (share time.Duration, fits bool) {
	if hooks == 0 {
		return b.MinSlice, true
	}
	share = b.HookSlice / time.Duration(hooks)
	switch {
	case b.ShareSlice:
		return min(time.Second, share), true
	case b.MinSlice > share:
		return share, false
	}
	return b.MinSlice, true
}

// InFlight returns the part of Grace that is not reserved for units, hooks and reports.
func (b Budget) InFlight() time.Duration {
	return b.Grace - b.UnitSlice - b.HookSlice - b.ReportSlice
}

// Goodbye returns the times of a server's goodbye.
func (b Budget) Goodbye() httpdrain.Config {
	return httpdrain.Config{
		AcceptQuiet: b.AcceptQuiet,
		AcceptMax:   b.AcceptMax,
		Linger:      b.Linger,
		GoAwayAfter: b.GoAwayAfter,
		Patience:    b.Patience,
	}
}
