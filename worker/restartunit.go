package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// ErrNotRestartable is returned by [RestartUnit] and [Restarter.Restart] for a worker
// that cannot be restarted. The error around it says why: nothing supervises the worker,
// or it is stopping, or at its end.
var ErrNotRestartable = errors.New("it cannot be restarted")

// RestartUnit starts a unit again. w has the given name, and the unit is w itself or is below
// it. The unit's path has the names from w down to the unit, as in State, with / between them.
// A child of a supervisor whose name has a / cannot be reached.
// The unit is a [Restarter] or a child of a [Supervisor]: RestartUnit calls
// [Restarter.Restart] or [Supervisor.RestartChild], and returns its result. It returns
// [ErrNoChild] for a path without a unit, and [ErrNotRestartable] for a unit that is not
// supervised or is stopping. It may be called concurrently.
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
	return fmt.Errorf("%w: nothing supervises it; a unit that may be restarted is added with Supervise, "+
		"or as a child of a worker.Supervisor", ErrNotRestartable)
}

// restartBelow is RestartUnit for the children of a supervisor.
func (s *Supervisor) restartBelow(ctx context.Context, path string) error {
	if path == "" {
		return fmt.Errorf("%w: no other supervisor has it; restart its children", ErrNotRestartable)
	}
	name, rest, _ := strings.Cut(path, "/")
	s.mu.Lock()
	c := s.byName[name]
	s.mu.Unlock()
	switch {
	case c == nil:
		return ErrNoChild
	case rest != "":
		w := c.current()
		if w == nil {
			return ErrNoChild
		}
		return RestartUnit(ctx, w.Worker, name, path)
	case c.state().Status == StatusStopping:
		return fmt.Errorf("%w: it is %s already", ErrNotRestartable, StatusStopping)
	}
	return s.RestartChild(ctx, name)
}
