package lifecycletest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/suggest"
)

// KindMark is the Kind of the events that [App.Mark] makes.
const KindMark = "mark"

type markState string

var markTable = fsm.Table[markState]{"": {"here"}, "here": {}}

// Mark adds an event of the test to the App's events, so that the test can check its
// place in the order. Call it from handlers, hooks and drainers. It may be called
// concurrently, and more than once with one name.
func (a *App) Mark(name string) {
	_ = fsm.MustNew(KindMark, name, markTable, "", a.App.Events()).To("here", nil) // the first change of a new one is allowed
}

// Recorded returns every event of the App so far, in the order in which they
// happened: its phases, its units' and probes' changes of state, and the marks.
func (a *App) Recorded() []fsm.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, cancel := context.WithCancel(context.Background())
	cancel() // read the events that exist, and do not wait for more
	for e := range a.reader.All(now) {
		a.events = append(a.events, e)
	}
	return append([]fsm.Event(nil), a.events...)
}

// Describe names an event: "app draining", "worker poller Stopped", "probe
// readiness/db down", "drainer sessions ok", "hook db ok", "reload certificates failed",
// "mark NAME". A drainer, a hook or a reload is "running" first, and then has its
// [lifecycle.Result]. Names repeat: see [App.WantOrder].
func Describe(e fsm.Event) string {
	switch {
	case e.IsGap():
		return fmt.Sprintf("gap: %d events were lost", e.Seq)
	case e.Kind == KindMark:
		return "mark " + e.Name
	case e.Kind == lifecycle.KindApp:
		return "app " + e.To
	}
	return e.Kind + " " + e.Name + " " + e.To
}

// WantOrder fails the test unless the events happened in this order. Other events may
// happen in between.
//
// Events have the names that [Describe] gives them, and any event of that name matches.
// When several workers have the same name, write the names of the parents before it, up
// to a unit of the App: "worker tree/w Failed" is an event of child w of unit tree. For
// one run of a supervised function, write its number after the name:
// "worker poller#2 Running".
func (a *App) WantOrder(events ...string) {
	a.t.Helper()
	seen := a.Recorded()
	names := namesOf(seen)
	i := 0
	for _, want := range events {
		from := i
		for i < len(seen) && !names.is(seen[i], want) {
			i++
		}
		if i < len(seen) {
			i++
			continue
		}
		for _, e := range seen[:from] {
			if names.is(e, want) {
				a.errorf("%q happened before %q, want it after", want, Describe(seen[from-1]))
				return
			}
		}
		a.errorf("%s", names.missing(seen[from:], want))
		return
	}
}

// names has the last event of each ID: its name and parent.
type names map[uint64]fsm.Event

func namesOf(events []fsm.Event) names {
	l := make(names)
	for _, e := range events {
		if !e.IsGap() {
			l[e.ID] = e
		}
	}
	return l
}

// missing says that no event has the name want, and which name was probably meant.
func (l names) missing(seen []fsm.Event, want string) string {
	var known []string
	for _, e := range seen {
		known = append(known, Describe(e), l.describe(e))
	}
	near := suggest.Nearest(want, known)
	if subject := subjectOf(want); near == "" && subject != "" { // the same part, in another state
		for _, name := range known {
			if subjectOf(name) == subject {
				near = name
			}
		}
	}
	if near != "" {
		return fmt.Sprintf("%q did not happen; did you mean %q?", want, near)
	}
	return fmt.Sprintf("%q did not happen", want)
}

// subjectOf returns the part that an event is about: its name without the state.
func subjectOf(name string) string { return name[:max(0, strings.LastIndexByte(name, ' '))] }

// is reports whether want is the name of e, as Describe returns it or with its path.
func (l names) is(e fsm.Event, want string) bool { return Describe(e) == want || l.describe(e) == want }

// describe returns the name of e with the names of its parents below the App, and with
// the number of its run.
func (l names) describe(e fsm.Event) string {
	if e.IsGap() {
		return Describe(e)
	}
	for at := e; at.Parent != 0; {
		parent, known := l[at.Parent]
		if !known || parent.Kind == lifecycle.KindApp {
			break
		}
		e.Name = parent.Name + "/" + e.Name
		at = parent
	}
	if e.Attempt > 0 {
		e.Name += "#" + strconv.Itoa(e.Attempt)
	}
	return Describe(e)
}

// When returns the time from the making of the App to the first event of that name. The
// name is as for [App.WantOrder]. When fails the test if there is no such event.
func (a *App) When(event string) time.Duration {
	a.t.Helper()
	seen := a.Recorded()
	names := namesOf(seen)
	for _, e := range seen {
		if names.is(e, event) {
			return e.At.Sub(a.began)
		}
	}
	a.fatal("%s", names.missing(seen, event))
	return 0
}

// Timeline returns a line for each event, with the time since the App was made. The
// names have paths and runs, as for [App.WantOrder].
func (a *App) Timeline() string {
	var b strings.Builder
	seen := a.Recorded()
	names := namesOf(seen)
	for _, e := range seen {
		fmt.Fprintf(&b, "\t%10v  %s", e.At.Sub(a.began).Round(time.Microsecond), names.describe(e))
		if e.Cause != nil {
			fmt.Fprintf(&b, " (%s)", strings.ReplaceAll(e.Cause.Error(), "\n", "; "))
		}
		b.WriteByte('\n')
	}
	return b.String()
}
