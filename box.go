package lifecycle

import (
	"context"
	"runtime/trace"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/blackbox"
)

// blackBox records for Config.BlackBoxDir while the App runs.
type blackBox struct {
	recorder atomic.Pointer[blackbox.Recorder] // nil before Run, and when the Config has no folder
	flight   *trace.FlightRecorder             // of the program; nil for none
}

// openBox begins to record, if the Config has a folder. It returns the function that ends it. A
// folder that cannot be made costs the black box, and not the start.
func (a *App) openBox() (end func()) {
	if a.cfg.BlackBoxDir == "" {
		return func() {}
	}
	r, err := blackbox.Open(a.cfg.BlackBoxDir, a.cfg.Name, a.box.flight, a.log)
	if err != nil {
		a.log.Error("there is no black box", "error", err)
		return func() {}
	}
	a.box.recorder.Store(r)
	return r.Close
}

// saveBox begins to write a box. It does not wait: the time belongs to what the stop still
// has to do.
func (a *App) saveBox(why string) {
	if r := a.box.recorder.Load(); r != nil {
		r.Save(why, a.Report())
	}
}

// awaitBox waits for a box that is being written, so that the report names it and the process
// does not end before it is complete. The wait ends before the watchdog would end the process.
func (a *App) awaitBox(end time.Time) {
	ctx, cancel := context.WithDeadline(context.Background(), end.Add(Margin/2))
	defer cancel()
	a.box.recorder.Load().Wait(ctx)
}
