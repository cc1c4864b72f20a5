package lifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/laststop"
	"github.com/pleme-io/lifecycle-go/internal/sdnotify"
	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Report describes one life of an [App]: why it stopped, how long each phase took,
// and how each of its parts ended. It is plain data. In its JSON a duration is a number of
// nanoseconds.
type Report struct {
	Name        string      `json:"name"`
	Phase       Phase       `json:"phase"`            // the present or last phase
	Reason      string      `json:"reason,omitempty"` // why it stopped
	Error       string      `json:"error,omitempty"`  // the error of Run
	Phases      []PhaseTime `json:"phases"`           // in the order in which the App entered them
	Window      string      `json:"window,omitempty"` // how the drain window ended, such as "full" or "quiet", or why the App did not wait for it
	Units       []Outcome   `json:"units,omitempty"`  // in the order of registration
	Drainers    []Outcome   `json:"drainers,omitempty"`
	Hooks       []Outcome   `json:"hooks,omitempty"`       // in the order in which they ran
	Reloads     []Outcome   `json:"reloads,omitempty"`     // the last 32, oldest first
	CutRequests int         `json:"cutRequests,omitempty"` // requests that were in flight when their time ran out
	Refused     []string    `json:"refused,omitempty"`     // registrations that came too late
	Left        []string    `json:"left,omitempty"`        // abandoned at the end: a check that hung, a health client that still read

	// ReloadCounts counts all reloads, by name and result; Reloads has only the last
	// ones.
	ReloadCounts map[string]map[Result]uint64 `json:"reloadCounts,omitempty"`

	BlackBox string `json:"blackBox,omitempty"` // the newest box of Config.BlackBoxDir, a folder

	Requested  time.Time     `json:"requested,omitzero"`   // T0 of the stop
	Done       time.Time     `json:"done,omitzero"`        // when the last hook had returned, or the process was killed
	Budget     time.Duration `json:"budget"`               // the longest that a stop may take
	ExitStatus int           `json:"exitStatus,omitempty"` // [ExitCode] of Error, once Done
	Previous   *Report       `json:"previous,omitempty"`   // the life before this one, in brief, from Config.LastStopFile
}

// PhaseTime is one phase of a life and its duration. The duration of the last phase
// is 0.
type PhaseTime struct {
	Phase    Phase         `json:"phase"`
	Entered  time.Time     `json:"entered"`
	Duration time.Duration `json:"duration"`
}

// Result says how a part ended.
type Result string

// The results.
const (
	ResultOK        Result = "ok"
	ResultFailed    Result = "failed"
	ResultPanicked  Result = "panicked"
	ResultAbandoned Result = "abandoned" // it did not return in time
	ResultSkipped   Result = "skipped"   // it did not begin: no time was left, or a drainer had nothing to drain
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

// callPart calls the foreign function fn, of a part of this kind and name, and describes how it
// ended. It abandons the call when fn has not returned patience after over was closed. The
// goroutine of fn has the labels of ctx.
func callPart(ctx context.Context, kind, name string, over <-chan struct{}, patience time.Duration, fn func() error) Outcome {
	began := time.Now()
	return outcome(name, began, call.StartAs(ctx, kind, name, fn).Wait(over, patience))
}

// outcome describes a part that began at began and has just ended with err.
func outcome(name string, began time.Time, err error) Outcome {
	out := Outcome{Name: name, Result: ResultOK, Took: time.Since(began), err: err}
	if err == nil {
		return out
	}
	abandoned, isAbandoned := call.As[*AbandonedError](err)
	_, isPanic := call.As[*PanicError](err)
	switch {
	case isAbandoned:
		out.Result, out.Stack = ResultAbandoned, abandoned.Stack
	case isPanic:
		out.Result = ResultPanicked
	default:
		out.Result = ResultFailed
	}
	out.Error = call.Unnamed(name, err).Error()
	return out
}

// maxOutcomeText bounds the text of an error in Outcome.String, in bytes.
const maxOutcomeText = 1 << 10

func (o Outcome) String() string {
	s := fmt.Sprintf("%s %s in %v", o.Name, o.Result, o.Took.Round(time.Millisecond))
	if o.Error != "" {
		s += " (" + text.Clip(o.Error, maxOutcomeText) + ")"
	}
	return s
}

// Report describes the App's life so far. It is complete after Run has returned.
// Report may be called at any time.
func (a *App) Report() Report {
	r := Report{Name: a.cfg.Name, Phase: a.phases.State(), Phases: a.phaseTimes(), Hooks: a.hooks.outcomes()}
	a.stop.describe(&r)
	a.parts.describe(&r)
	a.reloads.describe(&r)
	r.Budget, r.Previous, r.BlackBox = a.times().Total, a.exitRecord.previous, a.box.recorder.Load().Newest()
	return r
}

// OnReport adds a function that reports the stop elsewhere when it is over. All such
// functions run at the same time, after the last shutdown hook, while the health server
// still answers. fn gets the report, which lacks only the last phase, and a context that
// ends with ShutdownGrace; Config.ReportSlice reserves time for it. The App logs a function
// that fails or is abandoned; that does not make the stop fail. When a registration was
// refused, or the process is killed, none runs.
func (a *App) OnReport(name string, fn func(context.Context, Report) error) *App {
	a.parts.add("report", name, missing("OnReport", argument{"function", fn == nil}), func() {
		a.parts.reports = append(a.parts.reports, namedFunc{name, func(ctx context.Context) error { return fn(ctx, a.Report()) }})
	})
	return a
}

func (a *App) reportSlice() time.Duration {
	if slice := a.budget.ReportSlice; slice > 0 || len(a.parts.reports) == 0 {
		return slice
	}
	return min(time.Second, a.budget.HookSlice/4)
}

// runReports runs the functions of OnReport and waits for one last scrape.
func (a *App) runReports(base context.Context, end time.Time) {
	a.setWaiting("the reports")
	ctx, cancel := context.WithDeadline(base, end)
	defer cancel()
	var all sync.WaitGroup
	isReplaced := a.stop.why().successor != 0 // a scrape reaches the new process
	servesMetrics := a.health.server != nil && a.extra["/metrics"] != nil && !isReplaced
	if slice := a.budget.ReportSlice; slice > 0 && servesMetrics {
		all.Go(func() { a.log.Info("the last scrape was awaited", "came", a.exitRecord.scrape.Await(ctx, slice)) })
	}
	for _, r := range a.parts.reports {
		all.Go(func() {
			out := callPart(ctx, "report", r.name, ctx.Done(), settle, func() error { return r.fn(ctx) })
			if out.err != nil {
				a.log.Error("a function of OnReport failed", "report", r.name, "took", out.Took, "error", call.Unnamed(r.name, out.err))
			}
		})
	}
	all.Wait()
}

// exitRecord is what an App leaves behind for the operator and the next start.
type exitRecord struct {
	terminationLog sdnotify.TerminationLog
	file           laststop.File
	scrape         laststop.Scrape
	previous       *Report
}

// describe adds the reason, the window, the drainers and the result of the stop.
func (s *stopRecord) describe(r *Report) {
	r.Reason = s.why().text()
	if err := s.runError(); err != nil {
		r.Error = err.Error() // without the lock: a text may take a second
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Window, r.CutRequests = s.window, s.cut
	r.Requested, r.Done, r.ExitStatus = s.t0, s.result.at, s.result.status
	r.Drainers = slices.Clone(s.drained)
	r.Left = slices.Clone(s.abandoned)
}

// describe adds how each unit runs or has ended, and which registrations came too
// late.
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

// phaseTimes lists the phases that the App has entered, with their durations.
func (a *App) phaseTimes() (times []PhaseTime) {
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
		return // the log drops the record at every level, and it takes a while to compose
	}
	r := a.Report()
	a.stop.mu.Lock()
	unlogged := a.stop.unlogged
	a.stop.mu.Unlock()
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
			attrs = append(attrs, part.name, text.Join(part.outcomes))
		}
	}
	if r.CutRequests > 0 {
		attrs = append(attrs, "cut_requests", r.CutRequests)
	}
	if len(r.Left) > 0 {
		attrs = append(attrs, "left", strings.Join(r.Left, ", "))
	}
	if r.Error != "" {
		level := slog.LevelWarn // its parts are in the log at error level, each once
		if unlogged {
			level = slog.LevelError
		}
		a.log.Log(context.Background(), level, "the app failed", append(attrs, "error", r.Error)...)
		return
	}
	a.log.Info("the app stopped", attrs...)
}

// terminationLog writes the App's phase and faults to the termination log, so that
// Kubernetes shows a cause even for a process that is killed. The App rewrites it at
// each phase, at each step of the teardown, and soon after a unit ends.
func (a *App) terminationLog() {
	if !a.upgrade.standby.Load() {
		a.exitRecord.terminationLog.Write(a.terminationLine)
	}
}

// terminationLine returns one line: the phase, the reason of the stop, the times of the
// stop, and the parts for which the App waits or the error with which it ended.
func (a *App) terminationLine() string {
	phase := a.lastReached() // without a lock
	line := string(phase)
	reason := a.stop.why().text()
	result := a.stop.runError()
	if reason != "" {
		line += ": " + reason
	}
	switch phase {
	case PhaseStarting, PhaseDraining, PhaseStopping:
		if on := a.waitingFor(); on != "" {
			line += "; waiting for " + on
		}
	case PhaseStopped, PhaseFailed:
		line += a.stopTimes()
	}
	if result != nil && result.Error() != reason {
		line += ": " + result.Error()
	}
	return line
}

// stopTimes returns the durations of the phases of the stop, in parentheses. When the
// App never reached the phase running, it adds the duration of the start.
func (a *App) stopTimes() string {
	neverRan := a.phases.EnteredAt(PhaseRunning).IsZero()
	var times []string
	for _, p := range a.phaseTimes() {
		switch {
		case p.Phase == PhaseStarting && neverRan, p.Phase == PhaseDraining, p.Phase == PhaseStopping:
			times = append(times, fmt.Sprintf("%s %v", p.Phase, p.Duration.Round(time.Millisecond)))
		}
	}
	if times == nil {
		return ""
	}
	return " (" + strings.Join(times, ", ") + ")"
}

// waitingFor names the parts for which the App waits at this moment. It takes no lock that is
// held while other code runs, so that the watchdog may call it when a part is stuck.
func (a *App) waitingFor() string {
	var names []string
	if doing := a.forced.waitingFor.Load(); doing != nil && *doing != "" {
		names = append(names, *doing)
	}
	if a.stop.unitsCancelled.Load() {
		for _, u := range a.parts.units {
			if u.launched.Load() && !u.over.HasSignaled() {
				names = append(names, "unit "+u.name)
			}
		}
	}
	return strings.Join(names, ", ")
}

// setWaiting records the part for which the App waits from now on. Run's goroutine
// calls it.
func (a *App) setWaiting(what string) {
	a.forced.waitingFor.Store(&what)
	a.terminationLog()
}

// Status is a snapshot of an [App], as plain data; /statusz shows it. It holds names,
// times, states and the texts of errors. It has no stacks, no configuration and no
// data of requests.
type Status struct {
	At      time.Time `json:"at"`
	Report  Report    `json:"report"`            // the phases so far, and the parts that have ended
	Waiting string    `json:"waiting,omitempty"` // the parts for which a start or a stop waits
	// Suspended is the result of [App.Suspended]. Since is zero when the App is not
	// suspended.
	Suspended Suspension      `json:"suspended,omitzero"`
	Units     []worker.State  `json:"units,omitempty"` // each with its children; the Kind of a job is "job"
	Servers   []ServerStatus  `json:"servers,omitempty"`
	Probes    []health.Status `json:"probes,omitempty"` // with their last results; Status runs no probe
}

// ServerStatus describes a server that the App runs.
type ServerStatus struct {
	Name        string    `json:"name"`
	Addr        string    `json:"addr,omitempty"` // "" before it is bound
	InFlight    int64     `json:"inFlight"`       // requests in handlers; 0 for gRPC, whose requests the App cannot see
	Conns       int       `json:"conns"`          // open connections
	Hijacked    int       `json:"hijacked"`       // connections that handlers have taken over, such as websockets
	Accepted    uint64    `json:"accepted"`       // connections since the listener was bound
	LastArrival time.Time `json:"lastArrival,omitzero"`
	Panics      uint64    `json:"panics,omitempty"`    // requests whose handler has panicked, other than with http.ErrAbortHandler; 0 for gRPC
	LastPanic   string    `json:"lastPanic,omitempty"` // what the last of them said, at most 200 bytes
	Panicking   time.Time `json:"panicking,omitzero"`  // when the last but two of them was; zero while there are fewer
}

// Status describes the App as it is now. It may be called at any time. It waits one
// second for a worker whose State does not return. It does not wait for that worker
// again before the call has returned.
func (a *App) Status() Status {
	s := Status{At: time.Now(), Report: a.Report(), Probes: a.health.reg.Snapshot()}
	for _, list := range [][]Outcome{s.Report.Units, s.Report.Drainers, s.Report.Hooks, s.Report.Reloads} {
		for i := range list {
			list[i].Stack = "" // only App.Report has the stacks
		}
	}
	s.Suspended, _ = a.Suspended()
	if p := s.Report.Phase; p != PhaseCreated && p != PhaseRunning {
		s.Waiting = a.waitingFor()
	}
	units, servers := a.parts.view()
	for _, u := range units {
		s.Units = append(s.Units, u.shown())
	}
	for _, srv := range servers {
		st := srv.Stats()
		out := ServerStatus{
			Name:        srv.Name(),
			InFlight:    st.InFlight,
			Conns:       st.Conns,
			Hijacked:    st.Hijacked,
			Accepted:    st.Accepted,
			LastArrival: st.LastArrival,
			Panics:      st.Panics,
			LastPanic:   st.LastPanic,
			Panicking:   st.Panicking,
		}
		if addr := srv.drainingServer.Addr(); addr != nil {
			out.Addr = addr.String()
		}
		s.Servers = append(s.Servers, out)
	}
	return s
}
