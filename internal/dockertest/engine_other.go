//go:build !linux

package dockertest

import "fmt"

// Engine is a dockerd; there is none here.
type Engine struct{}

// Start returns [ErrUnavailable].
func Start(...string) (*Engine, error) {
	return nil, fmt.Errorf("%w: it needs Linux", ErrUnavailable)
}

func (e *Engine) socket() string  { return "" }
func (e *Engine) logTail() string { return "" }

// Again starts it again.
func (e *Engine) Again() error { return ErrUnavailable }

// Shutdown ends it as a service manager does.
func (e *Engine) Shutdown() error { return ErrUnavailable }

// Kill ends it with SIGKILL.
func (e *Engine) Kill() error { return ErrUnavailable }

// Freeze makes it deaf.
func (e *Engine) Freeze() error { return ErrUnavailable }

// Thaw ends a freeze.
func (e *Engine) Thaw() error { return ErrUnavailable }

// Close ends it.
func (e *Engine) Close() error { return ErrUnavailable }
