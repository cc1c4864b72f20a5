//go:build !linux

package worker

import "context"

// NewReaper returns a worker that does nothing until it is stopped. Only on Linux
// can a process inherit orphans.
func NewReaper(name string) *Func {
	return NewFunc(name, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
}
