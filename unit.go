package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/safe"
	"github.com/pleme-io/lifecycle-go/worker"
)

// UnitOption shapes a unit of an [App].
type UnitOption func(*unitConfig)

type unitConfig struct{ startCondition bool }

// WithStartCondition declares that the unit has started only once its function
// calls [MarkStarted]: the App is not ready before. Without it a unit has
// started as soon as its function was called.
func WithStartCondition() UnitOption { return func(c *unitConfig) { c.startCondition = true } }

// MarkStarted says that the unit whose function was given ctx has met its start
// condition. For a unit without one, for any other context and when called
// again it does nothing.
func MarkStarted(ctx context.Context) { worker.MarkStarted(ctx) }

func unitOptions(opts []UnitOption) (c unitConfig, w []worker.FuncOption) {
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	if c.startCondition {
		w = append(w, worker.WithStartCondition())
	}
	return c, w
}

// unit is one worker of an App, and what its end means.
type unit struct {
	name string
	worker.Worker
	endsApp bool // its end, also a good one, is the end of the App

	launched atomic.Bool   // Start was called
	begun    chan struct{} // closed when Start has returned; nil for our own functions
	ended    atomic.Bool   // it is over, or was given up
	over     chan struct{} // closed then
	once     sync.Once
	answers  safe.Answers

	learned chan struct{} // of a worker that is not ours: closed when what follows is known
	done    <-chan struct{}
	doneErr error

	mu    sync.Mutex // guards what follows
	began time.Time
	end   time.Time
	bare  error // what went wrong with it, for where its name is known
	err   error // the same with its name: what its end adds to the result of Run
}

// isFunction reports whether the unit is a function under a context, run once
// or again and again: its Start returns at once, and its context is all it
// needs to be stopped.
func (u *unit) isFunction() bool {
	switch u.Worker.(type) {
	case *worker.Func, *worker.Restarter:
		return true
	}
	return false
}

// What follows asks a worker that may be anybody's: one that panics has failed,
// and takes nobody with it. What askUnit asks is waited for no longer than
// [safe.AnswerIn], so that nothing hangs on it but what is shown.

// ours reports whether the worker is of a kind of this project, whose answers
// take no time.
func (u *unit) ours() bool {
	switch u.Worker.(type) {
	case *worker.Func, *worker.Restarter, *worker.Process, *worker.Container, *worker.Supervisor, *actor, *leader, *server:
		return true
	}
	return false
}

func askUnit[T any](u *unit, method string, call func() T) (T, error) {
	if u.ours() {
		return call(), nil
	}
	return safe.Ask(&u.answers, u.name+": "+method, call)
}

// state is the worker's State, for those who go by it: a unit that does not say
// whether it has started keeps the App starting, and the watchdog is what ends
// that.
func (u *unit) state() (s worker.State) {
	if err := safe.Do(u.name+": State", func() error { s = u.State(); return nil }); err != nil {
		return worker.State{Name: u.name, Status: worker.StatusFailed, Error: err.Error()}
	}
	return s
}

// shown is the worker's State, for those who only look. One that does not answer
// runs, as far as they can tell.
func (u *unit) shown() worker.State {
	s, err := askUnit(u, "State", u.State)
	switch {
	case errors.Is(err, safe.ErrNoAnswer) && !u.ended.Load():
		return worker.State{Name: u.name, Status: worker.StatusRunning, Error: err.Error()}
	case err != nil:
		return worker.State{Name: u.name, Status: worker.StatusFailed, Error: err.Error()}
	}
	return s
}

// awaitDone returns the worker's Done. When there is none to be had the channel
// is closed, and the error says why. A Done that does not return is waited for
// until the unit is given up.
func (u *unit) awaitDone() (<-chan struct{}, error) {
	if u.ours() {
		return u.Done(), nil
	}
	safe.Go(u.name+": Done", func() error { u.done = u.Done(); return nil }, nil, func(err error) {
		if err != nil {
			closed := make(chan struct{})
			close(closed)
			u.done, u.doneErr = closed, err
		}
		close(u.learned)
	})
	select {
	case <-u.learned:
		return u.done, u.doneErr
	case <-u.over:
		return nil, nil
	}
}

// hasEnded says why a worker whose Stop has returned cannot be taken for one that
// has ended. For a Done that has not returned it waits until ctx ends.
func (u *unit) hasEnded(ctx context.Context) error {
	var done <-chan struct{}
	if u.ours() {
		done = u.Done()
	} else {
		select {
		case <-u.learned:
		case <-ctx.Done():
			select {
			case <-u.learned: // both were true
			default:
				return errors.New("its Stop has returned, and its Done has not")
			}
		}
		done = u.done
	}
	select {
	case <-done:
		return nil // also when there was an error in place of it: that has been its end
	default:
		return errors.New("its Stop has returned, and it has not ended")
	}
}

// lastErr is the worker's Err. A worker that failed has one.
func (u *unit) lastErr() error {
	out, err := askUnit(u, "Err", u.Err)
	if err != nil {
		return err
	}
	if out == nil {
		if s := u.state(); s.Error != "" {
			return errors.New(s.Error)
		}
		return errors.New("it says that it failed, and not why")
	}
	return out
}

// holdRestarts tells the worker, if it restarts things, to let it be.
func (u *unit) holdRestarts() {
	r, ok := u.Worker.(interface{ HoldRestarts() })
	switch {
	case !ok:
	case u.isFunction():
		r.HoldRestarts() // ours, and returns at once
	default:
		safe.Go(u.name+": HoldRestarts", func() error { r.HoldRestarts(); return nil }, nil, func(error) {})
	}
}

// isNil reports whether v is nil or holds a nil pointer, function or the like.
func isNil(v any) bool {
	switch rv := reflect.ValueOf(v); rv.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Slice, reflect.Chan, reflect.Interface:
		return rv.IsNil()
	default:
		return false
	}
}

// finish notes the end of the unit, once, and returns what went wrong with it
// under its name.
func (u *unit) finish(bare error) error {
	u.once.Do(func() {
		u.mu.Lock()
		u.end, u.bare = time.Now(), bare
		if bare != nil {
			u.err = about("unit", u.name, bare)
		}
		u.mu.Unlock()
		u.ended.Store(true)
		close(u.over)
	})
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}

// about puts before err what it is about, as "unit db: ". A panic and whoever was
// abandoned name themselves: then only the kind is missing.
func about(kind, name string, err error) error {
	if strings.HasPrefix(err.Error(), name+": ") {
		return fmt.Errorf("%s %w", kind, err)
	}
	return fmt.Errorf("%s %s: %w", kind, name, err)
}

func (u *unit) outcome() Outcome {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.began.IsZero():
		return Outcome{Name: u.name, Result: ResultSkipped}
	case u.end.IsZero():
		return Outcome{Name: u.name, Result: ResultRunning, Took: time.Since(u.began)}
	}
	out := outcome(u.name, u.began, u.bare)
	out.Took = u.end.Sub(u.began)
	return out
}

// unnamed returns err without the name in front, for where that stands beside it.
func unnamed(name string, err error) error {
	if text, named := strings.CutPrefix(err.Error(), name+": "); named {
		return &unnamedError{err, text}
	}
	return err
}

type unnamedError struct {
	error
	text string
}

func (e *unnamedError) Error() string { return e.text }
func (e *unnamedError) Unwrap() error { return e.error }

// Go adds a function to run in a goroutine of its own. A nil return is fine and
// the App goes on, also when it was the last unit; an error, a panic or a
// runtime.Goexit stops the App.
//
// The context is cancelled when the App is stopping, which is after the drain:
// context.Cause says why. Returning the context's error then is clean.
// context.Canceled of anybody else's context is a failure.
func (a *App) Go(name string, fn func(context.Context) error, opts ...UnitOption) *App {
	_, w := unitOptions(opts)
	return a.addUnit(name, fn == nil, false, func() worker.Worker { return worker.NewFunc(name, fn, w...) })
}

// Actor adds work that cannot watch a context, in the way of oklog/run: execute
// blocks, and interrupt makes it return. Any return of execute stops the App; a
// nil one is a clean stop. interrupt is called exactly once, after the drain and
// also when execute has returned already, with the cause of the stop: nil when
// nothing went wrong. It is not called when execute never was.
//
// What an interrupted listener, server or file returns because it was closed
// (net.ErrClosed, http.ErrServerClosed, os.ErrClosed, io.ErrClosedPipe), and
// the cause handed back, are clean.
func (a *App) Actor(name string, execute func() error, interrupt func(error)) *App {
	return a.addUnit(name, execute == nil || interrupt == nil, true, func() worker.Worker {
		act := &actor{execute: execute, interrupt: interrupt, cause: a.stopCause}
		act.Init("actor", name)
		return act
	})
}

// Add adds a worker of any kind: a process, a tree of workers, a pool. It is
// started with Run, in the order of registration, and stopped after the drain.
// That it finishes or stops by itself is fine; that it fails stops the App. A
// worker that has been started already is an error.
func (a *App) Add(w worker.Worker) *App {
	if isNil(w) {
		return a.addUnit("", true, false, nil)
	}
	var name string
	if err := safe.Do("Name", func() error { name = w.Name(); return nil }); err != nil {
		a.refuse("unit", fmt.Sprintf("%T", w), err)
		return a
	}
	return a.addUnit(name, false, false, func() worker.Worker { return w })
}

func (a *App) addUnit(name string, missing, endsApp bool, build func() worker.Worker) *App {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.registerLocked("unit", name, missing) {
		return a
	}
	w := build()
	if p, ok := w.(interface{ PublishTo(*eventStream) }); ok {
		p.PublishTo(&a.events)
	}
	u := &unit{name: name, Worker: w, endsApp: endsApp, over: make(chan struct{})}
	if !u.ours() {
		u.learned = make(chan struct{})
	}
	a.units = append(a.units, u)
	return a
}

// actor is a worker around a pair of functions.
type actor struct {
	worker.BaseWorker
	execute   func() error
	interrupt func(error)
	cause     func() error

	goid        atomic.Uint64
	interrupted atomic.Bool
	once        sync.Once
}

func (w *actor) Start(ctx context.Context) error {
	if err := w.Begin(ctx); err != nil {
		return err
	}
	w.MarkRunning()
	safe.Go(w.Name(), w.execute, w.goid.Store, func(err error) {
		if w.interrupted.Load() && w.closedByUs(err) {
			err = errors.Join(worker.ErrInterrupted, err)
		}
		w.Finish(err)
	})
	return nil
}

// closedByUs reports whether err is what interrupt makes execute return, and
// nothing beside it.
func (w *actor) closedByUs(err error) bool {
	cause := w.cause()
	return err != nil && safe.Only(err, func(e error) bool {
		for _, closed := range []error{net.ErrClosed, http.ErrServerClosed, os.ErrClosed, io.ErrClosedPipe, context.Canceled, cause} {
			if closed != nil && safe.Same(e, closed) {
				return true
			}
		}
		return false
	})
}

// Stop interrupts, once, and waits for execute to return.
func (w *actor) Stop(ctx context.Context) error {
	began := w.Status() != worker.StatusCreated
	w.RequestStop(worker.ErrStopRequested)
	var err error
	w.once.Do(func() {
		if !began {
			return
		}
		w.interrupted.Store(true)
		out := await(w.Name()+": interrupt", time.Now(), ctx.Done(), func() error {
			w.interrupt(w.cause())
			return nil
		})
		err = out.err
	})
	select {
	case <-w.Done():
		return err
	case <-ctx.Done():
	}
	late := time.NewTimer(settle)
	defer late.Stop()
	select {
	case <-w.Done():
		return err
	case <-late.C:
	}
	abandoned := worker.Abandoned(w.Name(), w.goid.Load())
	if w.Kill(abandoned) {
		err = errors.Join(abandoned, err)
	}
	return err
}
