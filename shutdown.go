package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// OnShutdown adds a hook to a stack that the App runs last, after every unit has
// returned: last in, first out, each hook once, all within ShutdownGrace, even when an
// earlier step has failed. Hooks also run when the App never reached the phase
// running, because main opened most of their resources before Run.
func (a *App) OnShutdown(name string, fn func(context.Context) error) *App {
	a.parts.add("shutdown hook", name, missing("OnShutdown", argument{"function", fn == nil}), func() { a.hooks.Add(name, fn) })
	return a
}

// ErrHookSkipped is the error for a shutdown hook that Shutdown did not call because
// no time was left.
var ErrHookSkipped = errors.New("skipped: no time was left")

// Shutdown is a stack of named hooks that close the resources of a process: like
// defer, with names, deadlines and a log. The hook added last runs first, so the
// server stops before the database that it uses closes.
//
// An [App] has one ([App.OnShutdown]). Shutdown also works without an App. The zero value is
// ready to use, and logs nothing. All methods may be called concurrently.
type Shutdown struct {
	log *slog.Logger // nil logs nothing

	// An App sets these. A Shutdown without one has their zero values.
	minSlice  time.Duration // reserved for each hook that has not run; 0 lets a hook take all the time that is left
	waiting   func(string)  // told which hook runs
	abandoned func(string)  // told which hook did not return
	events    *fsm.Dispatcher

	done fsm.Signal // Run has its result

	mu      sync.Mutex // guards the fields below
	hooks   []namedFunc
	refused []error
	began   bool
	err     error
	results []Outcome
}

// namedFunc is a hook, or another part that is a function with a name.
type namedFunc struct {
	name string
	fn   func(context.Context) error
}

// NewShutdown returns an empty stack. It logs each hook's outcome to log; nil
// logs nothing.
func NewShutdown(log *slog.Logger) *Shutdown {
	return &Shutdown{log: log}
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
	if s.add(name, fn) {
		s.say(slog.LevelError, "shutdown hook refused: the shutdown has begun", "hook", name)
	}
}

// add reports whether the hook came too late.
func (s *Shutdown) add(name string, fn func(context.Context) error) (late bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.began:
		s.refused = append(s.refused, fmt.Errorf("shutdown hook %q was added after the shutdown had begun", name))
	case name == "":
		s.refused = append(s.refused, errors.New("a shutdown hook has no name"))
	case fn == nil:
		s.refused = append(s.refused, fmt.Errorf("shutdown hook %q has no function", name))
	default:
		s.hooks = append(s.hooks, namedFunc{name, fn})
	}
	return s.began
}

// Run calls the hooks, the last added first, each once. grace is the time for all
// hooks together. Their context has ctx's values but not its cancellation, because
// most shutdowns begin when a context is cancelled.
//
// After a hook that fails or panics, Run calls the next one. Run abandons a hook that
// does not return within 100 ms after its deadline and names it in the error, with the line
// at which it was blocked. It skips and names hooks for which no time is left. It returns every
// error, joined, or nil. A second Run waits for the first and returns its result.
func (s *Shutdown) Run(ctx context.Context, grace time.Duration) error {
	return s.runUntil(ctx, time.Now().Add(grace))
}

func (s *Shutdown) runUntil(ctx context.Context, end time.Time) error {
	s.mu.Lock()
	if s.began {
		s.mu.Unlock()
		<-s.done.Signaled()
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
	s.done.Signal()
	return s.err
}

// call runs one hook until it returns or its deadline comes. slice is the time
// reserved for the next hook.
func (s *Shutdown) call(ctx context.Context, h namedFunc, deadline time.Time, slice time.Duration) Outcome {
	began := time.Now()
	if !began.Before(deadline) {
		s.say(slog.LevelError, "shutdown hook skipped: no time was left", "hook", h.name)
		_ = fsm.MustNew(KindHook, h.name, steps, resultPending, s.events).To(ResultSkipped, ErrHookSkipped) // allowed
		return Outcome{Name: h.name, Result: ResultSkipped, err: ErrHookSkipped}
	}
	if s.waiting != nil {
		s.waiting("hook " + h.name)
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	defer cancel()
	late := settle
	if slice > 0 {
		late = min(late, slice/4) // this time is taken from the next hook
	}
	life := step(KindHook, h.name, s.events)
	out := callPart(ctx, KindHook, h.name, ctx.Done(), late, func() error { return h.fn(ctx) })
	_ = life.To(out.Result, out.err)
	if out.Result == ResultAbandoned && s.abandoned != nil {
		s.abandoned(h.name)
	}
	if out.err != nil {
		s.say(slog.LevelError, "shutdown hook failed", call.Logged(out.err, "hook", h.name, "took", out.Took, "error", call.Unnamed(h.name, out.err))...)
	} else {
		s.say(slog.LevelInfo, "shutdown hook done", "hook", h.name, "took", out.Took)
	}
	return out
}

// settle is the time that a function has to return after its context has ended: 100 ms.
const settle = call.Settle

// say logs through the handler that the user gave to NewShutdown. A panic in it is
// lost, and does not keep the next hook from running.
func (s *Shutdown) say(level slog.Level, text string, args ...any) {
	if s.log == nil {
		return
	}
	_ = call.Do("log handler", func() error {
		s.log.Log(context.Background(), level, text, args...)
		return nil
	})
}
