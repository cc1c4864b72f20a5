package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// ErrNotRestartable is returned by [RestartUnit] and [Restarter.Restart] for a worker
// that cannot be restarted. The error around it says why: nothing supervises the worker,
// or it is stopping, suspended, or at its end.
var ErrNotRestartable = errors.New("it cannot be restarted")

// errRestartAsked is the cause of the stop of a run that Restart ends.
var errRestartAsked = errors.New("a restart was asked for")

// RestartUnit starts a unit again. w has the given name, and the unit is w itself or is below
// it: its path has the names from w down to the unit, with / between them, as State has
// them. The unit is a [Restarter] or a child of a [Supervisor]. RestartUnit calls
// [Restarter.Restart] or [Supervisor.RestartChild], and returns what it returns. For a path
// that no unit has it returns [ErrNoChild], and [ErrNotRestartable] for a unit that nothing
// supervises and for one that is stopping. It may be called concurrently.
func RestartUnit(ctx context.Context, w Worker, name, path string) error {
	below, ok := strings.CutPrefix(path+"/", name+"/")
	if !ok {
		return ErrNoChild
	}
	below = strings.TrimSuffix(below, "/")
	switch w := w.(type) {
	case interface {
		restartBelow(ctx context.Context, path string) error
	}:
		return w.restartBelow(ctx, below)
	case *Restarter:
		switch below {
		case "":
			return w.Restart(ctx)
		case name:
			return fmt.Errorf("%w: it is a run of the unit %s; restart that", ErrNotRestartable, name)
		}
	}
	if below != "" {
		return ErrNoChild
	}
	return fmt.Errorf("%w: nothing supervises it; a unit that may be restarted is added with Supervise, or as a child of a worker.Supervisor", ErrNotRestartable)
}

// restartBelow is RestartUnit for the children of a supervisor.
func (s *Supervisor) restartBelow(ctx context.Context, path string) error {
	if path == "" {
		return fmt.Errorf("%w: no other supervisor has it; restart its children", ErrNotRestartable)
	}
	for end := len(path); end > 0; end-- { // the longest name first, which may contain a slash
		if end < len(path) && path[end] != '/' {
			continue
		}
		s.mu.Lock()
		c := s.byName[path[:end]]
		s.mu.Unlock()
		switch {
		case c == nil:
			continue
		case end < len(path):
			w, _ := c.current()
			if w == nil {
				return ErrNoChild
			}
			return RestartUnit(ctx, w.Worker, c.name, path)
		case c.state().Status == StatusStopping:
			return fmt.Errorf("%w: it is %s already", ErrNotRestartable, StatusStopping)
		}
		return s.RestartChild(ctx, c.name)
	}
	return ErrNoChild
}

// Restart ends the current run and begins the next one at once; a worker that waits for
// its backoff begins it at once. The context of the run is cancelled, and the next run
// begins when the function has returned: there are never two. The restart does not count
// against the [Backoff], and after a later failure the worker waits for Min again. What
// the function returns does not matter, but [ErrDoNotRestart] and [ErrTerminate] end the
// worker as they always do.
//
// Restart returns nil once the next run is Running, and otherwise the error of that run or
// of the worker's end. When ctx ends first, it returns ctx's cause and the restart goes on.
// It returns [ErrNotRestartable] and does nothing when the worker was not started, is
// suspended, is stopping, has ended, or after HoldRestarts. Calls at the same time are one
// restart.
func (r *Restarter) Restart(ctx context.Context) error {
	again, run, err := r.askAgain()
	if err != nil {
		return err
	}
	if run != nil {
		run.ask(errRestartAsked)
	}
	select {
	case <-again:
	case <-r.Done():
		return fmt.Errorf("it has ended in place of a restart: it is %s", r.Status())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	next := r.current()
	s, err := next.Await(ctx, func(s Status) bool { return s != StatusStarting })
	switch {
	case err != nil:
		return err
	case s == StatusFailed:
		return next.Err()
	}
	return nil
}

// askAgain makes the next run begin without a wait. It returns a channel that is closed
// when that run has begun, and the run that has to end first, nil for none.
func (r *Restarter) askAgain() (again <-chan struct{}, run *Func, err error) {
	r.begun.Lock()
	defer r.begun.Unlock()
	switch s := r.Status(); {
	case r.cancel == nil || s == StatusStopping || s == StatusSuspended || s.Terminal():
		return nil, nil, fmt.Errorf("%w: it is %s", ErrNotRestartable, s)
	case r.own.Err() != nil || r.hold.HasSignaled():
		return nil, nil, fmt.Errorf("%w: it is about to stop", ErrNotRestartable)
	case r.isGated():
		return nil, nil, fmt.Errorf("%w: it is about to be suspended", ErrNotRestartable)
	}
	if r.again == nil {
		r.again = make(chan struct{})
	}
	again = r.again
	if r.pending != nil {
		r.due = true
		r.goOnLocked()
		return again, nil, nil
	}
	return again, r.current(), nil
}

// isAskedAgain reports whether a Restart waits for the end of the current run.
func (r *Restarter) isAskedAgain() bool {
	r.begun.Lock()
	defer r.begun.Unlock()
	return r.again != nil
}
