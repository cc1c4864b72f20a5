//go:build !linux

package worker

import (
	"context"
	"errors"
	"fmt"
)

// NewReaper returns a worker that does nothing until it is stopped. Only on Linux
// can a process inherit orphans.
func NewReaper(name string) *Func {
	return NewFunc(name, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
}

// NewSubreaper returns a worker that fails: only Linux has child subreapers. Its
// error is [errors.ErrUnsupported].
func NewSubreaper(name string) *Func {
	return NewFunc(name, func(context.Context) error {
		return fmt.Errorf("only Linux has child subreapers: %w", errors.ErrUnsupported)
	})
}
