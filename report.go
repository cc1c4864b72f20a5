package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/text"
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
	Reloads     []Outcome   `json:"reloads,omitempty"`     // the last 32, oldest first
	CutRequests int         `json:"cutRequests,omitempty"` // requests still in flight when their time was over
	Refused     []string    `json:"refused,omitempty"`     // registrations that came too late
	Left        []string    `json:"left,omitempty"`        // what the end did not wait for: a check that hangs, a health client that still read

	// ReloadCounts counts every reload of the life, by name and result; Reloads
	// has only the last ones.
	ReloadCounts map[string]map[Result]uint64 `json:"reloadCounts,omitempty"`
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
	ResultAbandoned Result = "abandoned" // it did not return in time
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

// timed calls fn behind the one door for foreign code, waits for it until over is
// closed and for the moment longer, and describes how it ended.
func timed(name string, over <-chan struct{}, moment time.Duration, fn func() error) Outcome {
	began := time.Now()
	return outcome(name, began, call.Start(name, fn).Wait(over, moment))
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
		s += " (" + text.Clip(o.Error, maxOutcomeText) + ")"
	}
	return s
}

// Report returns the account of the App's life so far. After Run has returned
// it is complete. It may be called at any time.
func (a *App) Report() Report {
	r := Report{Name: a.cfg.Name, Phase: a.phases.State(), Phases: a.phaseTimes(), Hooks: a.hooks.outcomes()}
	a.stop.describe(&r)
	a.parts.describe(&r)
	a.reloads.describe(&r)
	return r
}

// describe adds what the stop knows.
func (s *stop) describe(r *Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.request != nil {
		r.Reason = s.request.reason
	}
	if s.result != nil {
		r.Error = s.result.Error()
	}
	r.Window, r.CutRequests = s.window, s.cut
	r.Drainers = slices.Clone(s.drained)
	r.Left = slices.Clone(s.abandoned)
}

// describe adds how each unit is or ended, and which registrations came too late.
func (p *parts) describe(r *Report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range p.units {
		r.Units = append(r.Units, u.outcome())
	}
	for _, err := range p.late {
		r.Refused = append(r.Refused, err.Error())
	}
}

// phaseTimes lists the phases that were entered, and how long each lasted.
func (a *App) phaseTimes() (times []PhaseTime) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range inOrder {
		if at := a.entered[p]; !at.IsZero() {
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
		return // the log drops the record, which takes a while to compose
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

// lastWords keeps the termination log, the file that the kubelet shows as the
// reason of a container's end.
type lastWords struct {
	path   string
	exists atomic.Bool
	turn   atomic.Uint64
	final  atomic.Bool // the process is being ended by force

	mu      sync.Mutex // held while the file is written; guards the fields below
	written uint64     // the turn of what stands in the file
	said    string     // and the text of that
}

// finalWords is the turn of what is written while the process is ended by force.
const finalWords = math.MaxUint64

// terminationLog writes where the App is and what is known to be wrong, so that
// even a process that is killed leaves a cause. It is rewritten at each phase,
// at each step of the teardown, and soon after a unit ends. It may be called
// concurrently: what is written last knows of every change before it.
func (a *App) terminationLog() {
	if !a.words.exists.Load() {
		return // a life has many steps
	}
	turn := a.words.turn.Add(1)
	a.words.write(a.cfg.Name, a.lifeInBrief(), turn)
}

// lifeInBrief is the phase, why it stops or has stopped, for how long it did,
// and what it waits for or ended with.
func (a *App) lifeInBrief() string {
	phase := a.lastReached() // takes no lock
	words := string(phase)
	reason, result := a.stop.outcome()
	if reason != "" {
		words += ": " + reason
	}
	switch phase {
	case PhaseStarting, PhaseDraining, PhaseStopping:
		if on := a.blocking(); on != "" {
			words += "; waiting for " + on
		}
	case PhaseStopped, PhaseFailed:
		words += a.stopTimes()
	}
	if result != nil && result.Error() != reason {
		words += ": " + result.Error()
	}
	return words
}

// outcome returns why the App stops and what Run returns, as far as that is known.
func (s *stop) outcome() (reason string, result error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.request != nil {
		reason = s.request.reason
	}
	return reason, s.result
}

// stopTimes says how long the phases of the stop took, in parentheses, and the
// start when it never got further.
func (a *App) stopTimes() string {
	var times []string
	for _, p := range a.phaseTimes() {
		switch {
		case p.Phase == PhaseStarting && a.EnteredAt(PhaseRunning).IsZero(), p.Phase == PhaseDraining, p.Phase == PhaseStopping:
			times = append(times, fmt.Sprintf("%s %v", p.Phase, p.Duration.Round(time.Millisecond)))
		}
	}
	if times == nil {
		return ""
	}
	return " (" + strings.Join(times, ", ") + ")"
}

// find looks, as Run begins, whether there is a termination log at path: a kubelet
// makes the file before it starts the process.
func (w *lastWords) find(path string) {
	if path == "off" {
		return
	}
	w.path = path
	info, err := os.Stat(path)
	w.exists.Store(err == nil && info.Mode().IsRegular())
}

// write overwrites the termination log, if there is one. The kubelet mounts the
// file into the container: write must not create or replace it. It writes only to
// a regular file, because opening a pipe could block. It drops words whose turn is
// over because later ones were written. Once the process is being ended by force
// it writes only the final ones.
func (w *lastWords) write(name, words string, turn uint64) {
	if !w.exists.Load() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if turn < w.written || w.final.Load() && turn != finalWords {
		return
	}
	w.written = turn
	if words == w.said {
		return
	}
	w.said = words
	f, err := os.OpenFile(w.path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	_, _ = f.WriteString(text.Clip(name+": "+words, maxLastWords))
}

// blocking names what the App waits for at this moment. It takes no lock, so
// that the watchdog may call it whatever is stuck.
func (a *App) blocking() string {
	var names []string
	if doing := a.death.waitingFor.Load(); doing != nil && *doing != "" {
		names = append(names, *doing)
	}
	if a.stop.cancelled.Load() {
		for _, u := range a.parts.units {
			if u.launched.Load() && !u.over.HasSignaled() {
				names = append(names, "unit "+u.name)
			}
		}
	}
	return strings.Join(names, ", ")
}

// nowDoing records what the App waits for from here on. Run's goroutine calls it.
func (a *App) nowDoing(what string) {
	a.death.waitingFor.Store(&what)
	a.terminationLog()
}
