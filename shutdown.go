package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/drainwindow"
)

// stop is the one stop of an App: its reason, its progress and its errors.
type stop struct {
	requested  fsm.Signal // T0; the App's own goroutines watch it
	draining   fsm.Signal // T0, just after requested; users watch it
	skip       fsm.Signal // the App does not wait for the rest of the drain window
	windowOver fsm.Signal // the drain window has ended, or there was none
	open       drainwindow.Window
	cancelled  atomic.Bool // units have been told to stop

	mu        sync.Mutex // guards the fields below
	armed     bool       // Run has begun: a request begins the stop
	request   *stopRequest
	further   []error   // of later requests and of the stop's steps
	t0        time.Time // when the stop began, zero before
	window    string    // how the drain window ended
	windowEnd time.Time
	by        time.Time // when the process will be killed, by EndBy; zero when that is not known
	drained   []Outcome // drainers that have returned, were abandoned or were skipped
	cut       int       // requests in flight when their time was over
	refused   uint64    // connections that the kernel refused, at most
	abandoned []string  // checks, health clients and reports that the App abandoned at the end
	over      ending
	untold    bool // the first part of result is not in the log at error level yet
}

// ending is the result of a stop.
type ending struct {
	at     time.Time // when the last hook had returned
	joined bool      // Run has its error
	result error     // of Run
	status int       // ExitCode of result
}

// stopRequest says why the App should stop.
type stopRequest struct {
	reason string       // for people
	cause  error        // what units see as their context's cause; nil when nothing is wrong
	err    error        // the primary part of Run's error; nil for a clean stop
	signal *SignalError // set when the request was a signal
	again  bool         // run the program once more
	unit   bool         // the end of a unit is the reason
	told   bool         // err is in the log at error level
}

// ask records a request. first reports whether it is the first, the only one that
// counts. begin reports whether the stop begins now, at T0. When the request comes
// before Run, the stop begins with Run.
func (s *stop) ask(req stopRequest) (first, begin bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.request != nil {
		s.request.again = s.request.again && req.again
		return false, false
	}
	s.request = &req
	if s.armed {
		s.t0 = time.Now()
	}
	return true, s.armed
}

// arm makes the next request begin the stop. If a request came before, arm reports
// true: the stop begins now.
func (s *stop) arm() (begin bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = true
	if s.request != nil {
		s.t0 = time.Now()
	}
	return s.request != nil
}

// add records an error that Run joins behind the primary one, unless it has its result.
func (s *stop) add(err error) (taken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && !s.over.joined {
		s.further = append(s.further, err)
	}
	return !s.over.joined
}

// noteDrained records how a drainer ended.
func (s *stop) noteDrained(out Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drained = append(s.drained, out)
}

// why returns the request, or a zero stopRequest before the first.
func (s *stop) why() stopRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.request == nil {
		return stopRequest{}
	}
	return *s.request
}

// began returns T0, or the zero time before T0.
func (s *stop) began() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.t0
}

// unlessBegun calls fn under the lock and returns true, unless a stop was requested.
func (s *stop) unlessBegun(fn func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.request != nil {
		return false
	}
	fn()
	return true
}

// endWindow records how the drain window ended, "" when there was none, and returns
// the time of its end. Only the first call counts.
func (s *stop) endWindow(how string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.windowEnd.IsZero() {
		s.window, s.windowEnd = how, time.Now()
		if how == "" {
			s.windowEnd = s.t0
		}
		s.windowOver.Signal()
	}
	return s.windowEnd
}

// killedAt records EndBy's time and returns T0. It returns the zero time when that time
// changes nothing.
func (s *stop) killedAt(at time.Time) (t0 time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.windowEnd.IsZero() && !s.t0.IsZero() && (s.by.IsZero() || at.Before(s.by)) {
		s.by, t0 = at, s.t0
	}
	return t0
}

// skipWindow ends the wait of the drain window early. It reports false when no
// window is left to skip, or it was skipped before.
func (s *stop) skipWindow() bool { return !s.windowOver.HasSignaled() && s.skip.Signal() }

// OnShutdown adds a hook to a stack that the App runs last, after every unit has
// returned: last in, first out, each hook once, all within ShutdownGrace, even when an
// earlier step has failed. Hooks also run when the App never reached the phase
// running, because main opened most of their resources before Run.
func (a *App) OnShutdown(name string, fn func(context.Context) error) *App {
	a.parts.add("shutdown hook", name, fn == nil, func() { a.hooks.Add(name, fn) })
	return a
}

// OnReport adds a function that tells of the stop when it is over: all of them run at
// once, after the last shutdown hook, while the health server still answers. fn gets the
// report, which is complete but for the last phase, and a context that ends with
// ShutdownGrace; Config.ReportSlice reserves time for it. The log says when one fails or
// is abandoned; that does not make the stop fail. When a registration was refused, or
// the process is killed, none runs.
func (a *App) OnReport(name string, fn func(context.Context, Report) error) *App {
	a.parts.add("report", name, fn == nil, func() {
		a.parts.tells = append(a.parts.tells, hook{name, func(ctx context.Context) error { return fn(ctx, a.Report()) }})
	})
	return a
}

// stopIsOver records the result after the last hook, and again after the health server.
func (a *App) stopIsOver(result error) {
	status := call.Status(result, ExitStuck)
	a.stop.mu.Lock()
	defer a.stop.mu.Unlock()
	if a.stop.over.at.IsZero() {
		a.stop.over.at = time.Now()
	}
	a.stop.over.result, a.stop.over.status = result, status
}

func (a *App) reportSlice() time.Duration {
	if slice := a.budget.ReportSlice; slice > 0 || len(a.parts.tells) == 0 {
		return slice
	}
	return min(time.Second, a.budget.HookSlice/4)
}

// tell runs the functions of OnReport and waits for one last scrape.
func (a *App) tell(base context.Context, end time.Time) {
	a.nowDoing("the reports")
	ctx, cancel := context.WithDeadline(base, end)
	defer cancel()
	var all sync.WaitGroup
	if slice := a.budget.ReportSlice; slice > 0 && a.health.server != nil && a.extra["/metrics"] != nil {
		all.Go(func() { a.log.Info("the last scrape was awaited", "came", a.last.scrape.Await(ctx, slice)) })
	}
	for _, t := range a.parts.tells {
		all.Go(func() {
			if out := timed(t.name, ctx.Done(), settle, func() error { return t.fn(ctx) }); out.err != nil {
				a.log.Error("the report was not told", "to", t.name, "took", out.Took, "error", call.Unnamed(t.name, out.err))
			}
		})
	}
	all.Wait()
}

// ErrHookSkipped is the error for a shutdown hook that Shutdown did not call because
// no time was left.
var ErrHookSkipped = errors.New("skipped: no time was left")

// Shutdown is a stack of named hooks that close the resources of a process: like
// defer, with names, deadlines and a log. The hook added last runs first, so the
// server stops before the database that it uses closes.
//
// An [App] has one ([App.OnShutdown]). Shutdown also works without an App. All
// methods may be called concurrently.
type Shutdown struct {
	log      *slog.Logger
	minSlice time.Duration
	now      func(string)
	events   *eventStream // of the App; nil without one

	mu      sync.Mutex // guards the fields below
	hooks   []hook
	refused []error
	began   bool
	done    chan struct{}
	err     error
	results []Outcome
}

type hook struct {
	name string
	fn   func(context.Context) error
}

// ShutdownOption configures a [Shutdown].
type ShutdownOption func(*Shutdown)

// WithMinSlice reserves d for every hook that has not run yet, however long the
// earlier hooks take, or an equal share of the remaining time when that is less.
// Without it a hook may take all the time that is left.
func WithMinSlice(d time.Duration) ShutdownOption {
	return func(s *Shutdown) { s.minSlice = max(d, 0) }
}

// NewShutdown returns an empty stack. It logs each hook's outcome to log; nil
// logs nothing. A nil option is an error of Run.
func NewShutdown(log *slog.Logger, opts ...ShutdownOption) *Shutdown {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Shutdown{log: log, done: make(chan struct{})}
	for i, opt := range opts {
		if opt == nil {
			s.refused = append(s.refused, fmt.Errorf("NewShutdown: %w", nilOption(i)))
			continue
		}
		opt(s)
	}
	return s
}

func (s *Shutdown) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.hooks)
}

// Add puts a hook on top of the stack. The context of fn has the hook's deadline. Add
// refuses a hook without a name or a function, and every hook once Run has begun: the
// hook does not run, and Run's result has an error for it, if Run has not returned
// yet. Add also logs a late hook at error level.
func (s *Shutdown) Add(name string, fn func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.began:
		s.say(slog.LevelError, "shutdown hook refused: the shutdown has begun", "hook", name)
		s.refused = append(s.refused, fmt.Errorf("shutdown hook %q was added after the shutdown had begun", name))
	case name == "":
		s.refused = append(s.refused, errors.New("a shutdown hook has no name"))
	case fn == nil:
		s.refused = append(s.refused, fmt.Errorf("shutdown hook %q has no function", name))
	default:
		s.hooks = append(s.hooks, hook{name, fn})
	}
}

// Run calls the hooks, the last added first, each once. grace is the time for all
// hooks together. Their context has ctx's values but not its cancellation, because
// most shutdowns begin when a context is cancelled.
//
// After a hook that fails or panics, Run calls the next one. Run abandons a hook that
// does not return by its deadline and names it in the error, with the line at which
// it was blocked. It skips and names hooks for which no time is left. It returns every
// error, joined, or nil. A second Run waits for the first and returns its result.
func (s *Shutdown) Run(ctx context.Context, grace time.Duration) error {
	return s.runUntil(ctx, time.Now().Add(grace))
}

func (s *Shutdown) runUntil(ctx context.Context, end time.Time) error {
	s.mu.Lock()
	if s.began {
		s.mu.Unlock()
		<-s.done
		return s.err
	}
	s.began = true
	hooks := s.hooks
	s.mu.Unlock()
	if ctx == nil {
		ctx = context.Background()
	}
	slice := s.minSlice
	if n := time.Duration(len(hooks)); n > 0 {
		slice = min(slice, max(time.Until(end), 0)/n) // otherwise the first hook would get no time
	}

	var errs []error
	for i := len(hooks) - 1; i >= 0; i-- {
		deadline := end.Add(-time.Duration(i) * slice)
		out := s.call(ctx, hooks[i], deadline, slice)
		if out.err != nil {
			errs = append(errs, call.About("shutdown hook", out.Name, out.err))
		}
		s.mu.Lock()
		s.results = append(s.results, out)
		s.mu.Unlock()
	}

	s.mu.Lock()
	s.err = errors.Join(append(errs, s.refused...)...)
	s.mu.Unlock()
	close(s.done)
	return s.err
}

// call runs one hook until it returns or its deadline comes. slice is the time
// reserved for the next hook.
func (s *Shutdown) call(ctx context.Context, h hook, deadline time.Time, slice time.Duration) Outcome {
	began := time.Now()
	if !began.Before(deadline) {
		s.say(slog.LevelError, "shutdown hook skipped: no time was left", "hook", h.name)
		_ = fsm.MustNew(KindHook, h.name, steps, resultPending, s.events).To(ResultSkipped, ErrHookSkipped) // allowed
		return Outcome{Name: h.name, Result: ResultSkipped, err: ErrHookSkipped}
	}
	if s.now != nil {
		s.now("hook " + h.name)
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	defer cancel()
	late := settle
	if slice > 0 {
		late = min(late, slice/4) // this time is taken from the next hook
	}
	life := step(KindHook, h.name, s.events)
	out := timed(h.name, ctx.Done(), late, func() error { return h.fn(ctx) })
	_ = life.To(out.Result, out.err)
	if out.err != nil {
		s.say(slog.LevelError, "shutdown hook failed", call.Logged(out.err, "hook", h.name, "took", out.Took, "error", call.Unnamed(h.name, out.err))...)
	} else {
		s.say(slog.LevelInfo, "shutdown hook done", "hook", h.name, "took", out.Took)
	}
	return out
}

// settle is the time that a function has to return after its context has ended.
const settle = call.Settle

// say logs through the handler that the user gave to NewShutdown. A panic in it is
// lost, and does not keep the next hook from running.
func (s *Shutdown) say(level slog.Level, text string, args ...any) {
	_ = call.Do("log handler", func() error {
		s.log.Log(context.Background(), level, text, args...)
		return nil
	})
}
