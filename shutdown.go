package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/safe"
	"github.com/pleme-io/lifecycle-go/worker"
)

// ErrHookSkipped marks a shutdown hook that was not called because the time was
// over.
var ErrHookSkipped = errors.New("skipped: no time was left")

// Shutdown is a stack of named hooks that close what a process has opened: the
// observable kin of defer. What was added last runs first, so the server stops
// before the database that it uses closes.
//
// An [App] has one ([App.OnShutdown]); it is useful alone too. All methods may
// be called concurrently.
type Shutdown struct {
	log      *slog.Logger
	minSlice time.Duration
	now      func(string)
	events   *eventStream // of the App; nil without one

	mu      sync.Mutex // guards what follows
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

// ShutdownOption shapes a [Shutdown].
type ShutdownOption func(*Shutdown)

// WithMinSlice keeps d for every hook that is still to come, whatever the one
// before it takes, or an equal share of the time that there is when that is
// less. Without it a hook may take all the time that is left.
func WithMinSlice(d time.Duration) ShutdownOption {
	return func(s *Shutdown) { s.minSlice = max(d, 0) }
}

// NewShutdown returns an empty stack. It logs each hook's outcome to log; nil
// logs nothing.
func NewShutdown(log *slog.Logger, opts ...ShutdownOption) *Shutdown {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Shutdown{log: log, done: make(chan struct{})}
	for _, opt := range opts {
		if opt != nil {
			opt(s)
		}
	}
	return s
}

func (s *Shutdown) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.hooks)
}

// Add puts a hook on top of the stack. The context that fn gets carries its
// deadline. A hook without a name or a function, and one that comes when Run
// has begun, is refused: it does not run, the log says so at error level, and
// the result of Run holds it, if Run has not returned yet.
func (s *Shutdown) Add(name string, fn func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.began:
		s.log.Error("shutdown hook refused: the shutdown has begun", "hook", name)
		s.refused = append(s.refused, fmt.Errorf("shutdown hook %q was added after the shutdown had begun", name))
	case name == "":
		s.refused = append(s.refused, errors.New("a shutdown hook has no name"))
	case fn == nil:
		s.refused = append(s.refused, fmt.Errorf("shutdown hook %q has no function", name))
	default:
		s.hooks = append(s.hooks, hook{name, fn})
	}
}

// Run calls the hooks, the last added first, each once. All together have grace
// of time; their context has ctx's values and not its cancellation, because a
// shutdown is mostly begun by a context that is cancelled.
//
// A hook that fails or panics does not keep the others from running. One that
// does not return by its deadline is left behind, named in the error with the
// place where it stood; hooks for which no time is left are skipped and named.
// The result is every error, joined, or nil. A second Run waits for the first
// and returns its result.
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
		slice = min(slice, max(time.Until(end), 0)/n) // or the first to run would get nothing
	}

	var errs []error
	for i := len(hooks) - 1; i >= 0; i-- {
		deadline := end.Add(-time.Duration(i) * slice)
		out := s.call(ctx, hooks[i], deadline, slice)
		if out.err != nil {
			errs = append(errs, about("shutdown hook", out.Name, out.err))
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

// call runs one hook until it returns or its deadline comes. slice is what is kept
// for the one behind it.
func (s *Shutdown) call(ctx context.Context, h hook, deadline time.Time, slice time.Duration) Outcome {
	began := time.Now()
	if !began.Before(deadline) {
		s.log.Error("shutdown hook skipped: no time was left", "hook", h.name)
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
		late = min(late, slice/4) // the hook behind it pays for this
	}
	life := step(KindHook, h.name, s.events)
	out := awaitFor(h.name, began, ctx.Done(), late, func() error { return h.fn(ctx) })
	_ = life.To(out.Result, out.err)
	if out.err != nil {
		s.log.Error("shutdown hook failed", "hook", h.name, "took", out.Took, "error", unnamed(h.name, out.err))
	} else {
		s.log.Info("shutdown hook done", "hook", h.name, "took", out.Took)
	}
	return out
}

// settle is what a function that minds its context gets to return in, after the
// context has ended.
const settle = 100 * time.Millisecond

// await is [awaitFor] with the usual moment.
func await(name string, began time.Time, over <-chan struct{}, fn func() error) Outcome {
	return awaitFor(name, began, over, settle, fn)
}

// awaitFor calls fn in a goroutine of its own and waits for it, until over is
// closed and a moment longer. Then fn is abandoned.
func awaitFor(name string, began time.Time, over <-chan struct{}, moment time.Duration, fn func() error) Outcome {
	result := make(chan error, 1) // the one send finds room, whether or not anybody still waits
	var goid goroutine
	safe.Go(name, fn, goid.Store, func(err error) { result <- err })
	var err error
	select {
	case err = <-result:
	case <-over:
		late := time.NewTimer(moment)
		defer late.Stop()
		select {
		case err = <-result:
		case <-late.C:
			err = worker.Abandoned(name, goid.Load())
		}
	}
	return outcome(name, began, err)
}
