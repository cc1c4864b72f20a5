// Package sig has what the App and SignalContext know of the signals of a process.
package sig

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"time"
)

// Context returns a copy of parent that the first of the signals cancels, with what cause
// returns for it. stop cancels the context, restores the default effect of the signals and
// waits for that. The default effect also comes back debounce after the first signal; repeats
// within that time count as one. Without signals, only the parent and stop cancel it.
func Context(parent context.Context, debounce time.Duration, cause func(os.Signal) error, signals []os.Signal) (ctx context.Context, stop context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	// Room for one of each kind is enough: Notify drops signals that do not fit, and
	// only the first one counts.
	ch := make(chan os.Signal, len(signals))
	if len(signals) > 0 { // for none, Notify takes each signal that there is
		signal.Notify(ch, signals...)
	}
	quit := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer signal.Stop(ch)
		select {
		case s := <-ch:
			cancel(cause(s))
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(debounce):
		case <-quit:
		}
	}()
	var once sync.Once
	return ctx, func() {
		once.Do(func() {
			cancel(nil)
			close(quit)
		})
		<-ended
	}
}
