package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/pleme-io/lifecycle-go/worker"
)

// Report is the account of one life of an [App]: why it stopped, how long each
// phase took, and how each of its parts ended. It is plain data.
type Report struct {
	Name        string      `json:"name"`
	Phase       Phase       `json:"phase"`            // where it is, or ended
	Reason      string      `json:"reason,omitempty"` // why it stopped
	Error       string      `json:"error,omitempty"`  // what Run returned
	Phases      []PhaseTime `json:"phases"`           // in the order in which they were entered
	Window      string      `json:"window,omitempty"` // how the drain window ended: "full", "quiet" or why it was skipped
	Units       []Outcome   `json:"units,omitempty"`  // in the order of registration
	Drainers    []Outcome   `json:"drainers,omitempty"`
	Hooks       []Outcome   `json:"hooks,omitempty"`       // in the order in which they ran
	Reloads     []Outcome   `json:"reloads,omitempty"`     // the last KeptReloads, oldest first
	CutRequests int         `json:"cutRequests,omitempty"` // requests still in flight when their time was over
	Refused     []string    `json:"refused,omitempty"`     // registrations that came too late
	Left        []string    `json:"left,omitempty"`        // what the end did not wait for: a check that hangs, a health client that still read

	// ReloadCounts counts every reload of the life, also those that are no longer
	// among Reloads: one entry for each name and result, in the order in which
	// each came first.
	ReloadCounts []ReloadCount `json:"reloadCounts,omitempty"`
}

// KeptReloads is how many outcomes [Report.Reloads] holds at most. A process may
// live for a year and reload once a minute; the older ones are only counted.
const KeptReloads = 32

// ReloadCount is how often the reload of one name ended in one way.
type ReloadCount struct {
	Name   string `json:"name"`
	Result Result `json:"result"`
	Count  uint64 `json:"count"`
}

// PhaseTime is one phase of a life and how long it lasted. The last one's
// duration is 0.
type PhaseTime struct {
	Phase    Phase         `json:"phase"`
	Entered  time.Time     `json:"entered"`
	Duration time.Duration `json:"duration"`
}

// Result says how something ended.
type Result string

// The results.
const (
	ResultOK        Result = "ok"
	ResultFailed    Result = "failed"
	ResultPanicked  Result = "panicked"
	ResultAbandoned Result = "abandoned" // it did not return in time and was left behind
	ResultSkipped   Result = "skipped"   // no time was left to begin it
	ResultRunning   Result = "running"   // it has not ended
)

// Outcome says how one unit, drainer, hook or reload ended.
type Outcome struct {
	Name   string        `json:"name"`
	Result Result        `json:"result"`
	Took   time.Duration `json:"took"`
	Error  string        `json:"error,omitempty"` // without the name
	Stack  string        `json:"stack,omitempty"` // of its goroutine, when it was abandoned

	err error
}

// outcome describes what began at began and ended just now with err.
func outcome(name string, began time.Time, err error) Outcome {
	out := Outcome{Name: name, Result: ResultOK, Took: time.Since(began), err: err}
	var panicked *worker.PanicError
	var abandoned *worker.AbandonedError
	switch {
	case err == nil:
		return out
	case errors.As(err, &abandoned):
		out.Result, out.Stack = ResultAbandoned, abandoned.Stack
	case errors.As(err, &panicked):
		out.Result = ResultPanicked
	default:
		out.Result = ResultFailed
	}
	out.Error = unnamed(name, err).Error()
	return out
}

// maxOutcomeText bounds what the text of an error adds to the line of an outcome,
// in bytes.
const maxOutcomeText = 1 << 10

func (o Outcome) String() string {
	s := fmt.Sprintf("%s %s in %v", o.Name, o.Result, o.Took.Round(time.Millisecond))
	if o.Error != "" {
		s += " (" + clip(o.Error, maxOutcomeText) + ")"
	}
	return s
}

// goroutine holds the id of a goroutine that is looked for later.
type goroutine = atomic.Uint64

// Report returns the account of the App's life so far. After Run has returned
// it is complete. It may be called at any time.
func (a *App) Report() Report {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := Report{Name: a.cfg.Name, Phase: a.phases.State(), Window: a.window, CutRequests: a.cut}
	if a.request != nil {
		r.Reason = a.request.reason
	}
	if a.result != nil {
		r.Error = a.result.Error()
	}
	r.Phases = a.phaseTimesLocked()
	for _, u := range a.units {
		r.Units = append(r.Units, u.outcome())
	}
	r.Drainers = append(r.Drainers, a.drained...)
	r.Reloads = append(r.Reloads, a.reloaded...)
	r.ReloadCounts = append(r.ReloadCounts, a.reloadsN...)
	r.Hooks = a.hooks.outcomes()
	for _, err := range a.late {
		r.Refused = append(r.Refused, err.Error())
	}
	r.Left = append(r.Left, a.left...)
	return r
}

// phaseTimesLocked lists the phases that were entered, and how long each lasted.
func (a *App) phaseTimesLocked() (times []PhaseTime) {
	for _, p := range inOrder {
		if at := a.phases.EnteredAt(p); !at.IsZero() {
			if n := len(times); n > 0 {
				times[n-1].Duration = at.Sub(times[n-1].Entered)
			}
			times = append(times, PhaseTime{Phase: p, Entered: at})
		}
	}
	return times
}

func (s *Shutdown) outcomes() []Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Outcome(nil), s.results...)
}

// logReport writes the report as one record.
func (a *App) logReport() {
	if !a.log.Enabled(context.Background(), slog.LevelError) {
		return // nobody would read what takes a while to compose
	}
	r := a.Report()
	attrs := []any{"reason", r.Reason}
	var times []any
	for _, p := range r.Phases {
		if p.Duration > 0 {
			times = append(times, slog.Duration(string(p.Phase), p.Duration.Round(time.Millisecond)))
		}
	}
	attrs = append(attrs, slog.Group("phases", times...))
	for _, part := range []struct {
		name     string
		outcomes []Outcome
	}{{"units", r.Units}, {"drainers", r.Drainers}, {"hooks", r.Hooks}} {
		if len(part.outcomes) > 0 {
			attrs = append(attrs, part.name, joined(part.outcomes))
		}
	}
	if r.CutRequests > 0 {
		attrs = append(attrs, "cut_requests", r.CutRequests)
	}
	if len(r.Left) > 0 {
		attrs = append(attrs, "left", strings.Join(r.Left, ", "))
	}
	if r.Error != "" {
		a.log.Error("the app failed", append(attrs, "error", r.Error)...)
		return
	}
	a.log.Info("the app stopped", attrs...)
}

func joined(outcomes []Outcome) string {
	all := make([]string, len(outcomes))
	for i, o := range outcomes {
		all[i] = o.String()
	}
	return strings.Join(all, ", ")
}

// maxLastWords bounds what is written to the termination log. The kubelet keeps
// the last 4096 bytes of all containers of a pod together.
const maxLastWords = 1 << 10

// finalWords is the turn of what is written while the process is ended by force.
const finalWords = math.MaxUint64

// terminationLog writes where the App is and what is known to be wrong, so that
// even a process that is killed leaves a cause. It is rewritten at each phase,
// at each step of the teardown, and soon after a unit ends. It may be called
// concurrently: what is written last knows of every change before it.
func (a *App) terminationLog() {
	if !a.hasLog.Load() {
		return // nobody reads it, and a life has many steps
	}
	turn := a.wordsTurn.Add(1)
	a.lastWords(a.lifeInBrief(), turn)
}

// lifeInBrief is the phase, why it stops or has stopped, for how long it did,
// and what it waits for or ended with.
func (a *App) lifeInBrief() string {
	phase := a.lastReached() // which waits for no reader of phases
	words := string(phase)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.request != nil {
		words += ": " + a.request.reason
	}
	switch phase {
	case PhaseStarting, PhaseDraining, PhaseStopping:
		if on := a.blocking(); on != "" {
			words += "; waiting for " + on
		}
	case PhaseStopped, PhaseFailed:
		words += a.stopTimesLocked()
	}
	if a.result != nil && (a.request == nil || a.result.Error() != a.request.reason) {
		words += ": " + a.result.Error()
	}
	return words
}

// stopTimesLocked says how long the phases of the stop took, in parentheses,
// and that of the start when it never got further.
func (a *App) stopTimesLocked() string {
	var times []string
	for _, p := range a.phaseTimesLocked() {
		switch {
		case p.Phase == PhaseStarting && a.phases.EnteredAt(PhaseRunning).IsZero(), p.Phase == PhaseDraining, p.Phase == PhaseStopping:
			times = append(times, fmt.Sprintf("%s %v", p.Phase, p.Duration.Round(time.Millisecond)))
		}
	}
	if times == nil {
		return ""
	}
	return " (" + strings.Join(times, ", ") + ")"
}

// findLog looks, as Run begins, whether there is a termination log: a kubelet
// makes it before it makes the process.
func (a *App) findLog() {
	if a.cfg.TerminationLog == "off" {
		return
	}
	info, err := os.Stat(a.cfg.TerminationLog)
	a.hasLog.Store(err == nil && info.Mode().IsRegular()) // not outside of Kubernetes, mostly
}

// lastWords overwrites the termination log, if there is one. The file is the
// kubelet's, mounted into the container: it must not be created or replaced.
// Anything but a regular file is left alone; to open a pipe could take for ever.
// Words whose turn is over, because later ones were written, are dropped. Once
// the process is being ended by force only the final ones are written.
func (a *App) lastWords(words string, turn uint64) {
	if !a.hasLog.Load() {
		return
	}
	a.words.Lock()
	defer a.words.Unlock()
	if turn < a.wordsWritten || a.dying.Load() && turn != finalWords {
		return
	}
	a.wordsWritten = turn
	if words == a.wordsSaid {
		return
	}
	a.wordsSaid = words
	f, err := os.OpenFile(a.cfg.TerminationLog, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	_, _ = f.WriteString(clipWords(a.cfg.Name + ": " + words))
}

// clipWords makes s valid UTF-8 of at most maxLastWords bytes.
func clipWords(s string) string {
	const more = " …"
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxLastWords {
		return s
	}
	end := maxLastWords - len(more)
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + more
}

// blocking names what the App waits for at this moment. It takes no lock, so
// that the watchdog may call it whatever is stuck.
func (a *App) blocking() string {
	var names []string
	if doing := a.doing.Load(); doing != nil && *doing != "" {
		names = append(names, *doing)
	}
	if a.cancelled.Load() {
		for _, u := range a.units {
			if u.launched.Load() && !u.ended.Load() {
				names = append(names, "unit "+u.name)
			}
		}
	}
	return strings.Join(names, ", ")
}

// nowDoing notes what the App waits for from here on. Run's goroutine calls it.
func (a *App) nowDoing(what string) {
	a.doing.Store(&what)
	a.terminationLog()
}
