package lifecycletest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// KindMark is the Kind of the events that [App.Mark] makes.
const KindMark = "mark"

type markState string

var markTable = fsm.Table[markState]{"": {"here"}, "here": {}}

// Mark puts an event of the test's own among those of the App, so that its place
// in the order is known. Call it from handlers, hooks and drainers; it may be
// called concurrently and with the same name again.
func (a *App) Mark(name string) {
	_ = fsm.MustNew(KindMark, name, markTable, "", a.App.Events()).To("here", nil) // the first change of a new one is allowed
}

// Recorded returns every event of the App so far, in the order in which they
// happened: its phases, its units' and probes' changes of state, and the marks.
func (a *App) Recorded() []fsm.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, cancel := context.WithCancel(context.Background())
	cancel() // take what there is
	for e := range a.reader.All(now) {
		a.events = append(a.events, e)
	}
	return append([]fsm.Event(nil), a.events...)
}

// Describe names an event as [App.WantOrder] and [App.Timeline] do: "app
// draining", "worker poller Stopped", "probe readiness/db down", "mark NAME".
func Describe(e fsm.Event) string {
	switch {
	case e.IsGap():
		return fmt.Sprintf("gap: %d events were lost", e.Seq)
	case e.Kind == KindMark:
		return "mark " + e.Name
	case e.Kind == "app":
		return "app " + e.To
	}
	return e.Kind + " " + e.Name + " " + e.To
}

// WantOrder fails the test unless the events happened, each after the one before
// it in the list. They are named as by [Describe]; of one that happens more than
// once any will do. Others may be in between.
func (a *App) WantOrder(events ...string) {
	a.t.Helper()
	seen := a.Recorded()
	i := 0
	for _, want := range events {
		from := i
		for i < len(seen) && Describe(seen[i]) != want {
			i++
		}
		if i < len(seen) {
			i++
			continue
		}
		for _, e := range seen[:from] {
			if Describe(e) == want {
				a.errorf("%q happened before %q, want it after; what happened:\n%s", want, Describe(seen[from-1]), a.Timeline())
				return
			}
		}
		a.errorf("%q did not happen; what happened:\n%s", want, a.Timeline())
		return
	}
}

// When returns how long after the App was made an event happened first, named as
// by [Describe]. It fails the test when it did not.
func (a *App) When(event string) time.Duration {
	a.t.Helper()
	for _, e := range a.Recorded() {
		if Describe(e) == event {
			return e.At.Sub(a.began)
		}
	}
	a.fatal("%q did not happen; what happened:\n%s", event, a.Timeline())
	return 0
}

// Timeline returns what happened, a line for each event, with the time since the
// App was made.
func (a *App) Timeline() string {
	var b strings.Builder
	for _, e := range a.Recorded() {
		fmt.Fprintf(&b, "\t%10v  %s", e.At.Sub(a.began).Round(time.Microsecond), Describe(e))
		if e.Cause != nil {
			fmt.Fprintf(&b, " (%s)", strings.ReplaceAll(e.Cause.Error(), "\n", "; "))
		}
		b.WriteByte('\n')
	}
	return b.String()
}
