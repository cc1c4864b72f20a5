package main

import (
	"fmt"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// timeline has the times of a shutdown's picture, counted from T0, the
// first stop request.
type timeline struct {
	Drain       time.Duration // the drain window
	GoAwayAfter time.Duration // GOAWAY on HTTP/2, from T0
	AcceptQuiet time.Duration // listeners close after this long without a new connection
	Linger      time.Duration // open connections are served this long after the window
	Grace       time.Duration // from the window's end, for the whole teardown
	UnitSlice   time.Duration // of Grace, reserved for units
	HookSlice   time.Duration // of Grace, reserved for hooks
	Margin      time.Duration // from the end of Grace to the watchdog
}

// defaults returns the timeline of an App with the default Config.
func defaults() timeline {
	c := lifecycle.Config{}.WithDefaults()
	return timeline{
		Drain:       c.DrainInterval,
		GoAwayAfter: c.GoAwayAfter,
		AcceptQuiet: c.AcceptQuiet,
		Linger:      c.Linger,
		Grace:       c.ShutdownGrace,
		UnitSlice:   c.UnitSlice,
		HookSlice:   c.HookSlice,
		Margin:      lifecycle.Margin,
	}
}

// serveEnd returns when in-flight requests and lingering connections are cut.
func (t timeline) serveEnd() time.Duration { return t.Drain + t.Grace - t.UnitSlice - t.HookSlice }

// unitEnd returns when units that have not returned are abandoned.
func (t timeline) unitEnd() time.Duration { return t.Drain + t.Grace - t.HookSlice }

// graceEnd returns when everything has ended.
func (t timeline) graceEnd() time.Duration { return t.Drain + t.Grace }

// watchdog returns when the watchdog ends the process.
func (t timeline) watchdog() time.Duration { return t.Drain + t.Grace + t.Margin }

func (t timeline) validate() error {
	for name, d := range map[string]time.Duration{"Drain": t.Drain, "Grace": t.Grace, "UnitSlice": t.UnitSlice, "HookSlice": t.HookSlice, "Margin": t.Margin} {
		if d <= 0 {
			return fmt.Errorf("%s is %v: the picture needs it above zero", name, d)
		}
	}
	if t.serveEnd() <= t.Drain {
		return fmt.Errorf("the unit slice %v and the hook slice %v leave no time of the grace %v", t.UnitSlice, t.HookSlice, t.Grace)
	}
	if t.GoAwayAfter > t.Drain {
		return fmt.Errorf("GOAWAY after %v is outside the window of %v", t.GoAwayAfter, t.Drain)
	}
	return nil
}

// seconds writes a duration as the axis shows it: "5 s", "0.5 s".
func seconds(d time.Duration) string { return fmt.Sprintf("%g s", d.Seconds()) }
