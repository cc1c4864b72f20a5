//go:build !linux

package dockertest

import "fmt"

// Engine has no implementation on this system.
type Engine struct{}

// Start returns [ErrUnavailable].
func Start(...string) (*Engine, error) {
	return nil, fmt.Errorf("%w: it needs Linux", ErrUnavailable)
}

func (e *Engine) socket() string  { return "" }
func (e *Engine) logTail() string { return "" }

// Again is not available on this system.
func (e *Engine) Again() error { return ErrUnavailable }

// Shutdown is not available on this system.
func (e *Engine) Shutdown() error { return ErrUnavailable }

// Kill is not available on this system.
func (e *Engine) Kill() error { return ErrUnavailable }

// Freeze is not available on this system.
func (e *Engine) Freeze() error { return ErrUnavailable }

// Thaw is not available on this system.
func (e *Engine) Thaw() error { return ErrUnavailable }

// Close is not available on this system.
func (e *Engine) Close() error { return ErrUnavailable }
