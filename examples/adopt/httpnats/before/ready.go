package main

import (
	"errors"
	"sync/atomic"
)

// readiness is up until the service stops.
type readiness struct{ stopping atomic.Bool }

func (r *readiness) down() { r.stopping.Store(true) }

func (r *readiness) err() error {
	if r.stopping.Load() {
		return errors.New("stopping")
	}
	return nil
}
