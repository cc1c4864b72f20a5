//go:build !linux

package worker

import "context"

// NewReaper returns a worker that does nothing until it is stopped: only on
// Linux does a process inherit the orphans of others.
func NewReaper(name string) *Func {
	return NewFunc(name, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
}
