package worker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/progress"
)

// Func is a worker that runs a function.
type Func struct {
	BaseWorker
	fn      func(context.Context) error
	refused error // of the options; Start returns it
	pauses  pauses

	hasStartCondition bool        // the worker stays Starting until the function calls MarkStarted
	conditionMet      atomic.Bool // the function has called MarkStarted
	passesPanics      bool        // a panic of the function ends the process

	progress progress.Meter // of the calls of Progress, in nanoseconds since 1970
}

// funcKey is the key under which the context of a function has its Func.
type funcKey struct{}

// FuncOption shapes a [Func].
type FuncOption func(*Func)

// WithStartCondition keeps the worker Starting until its function calls
// [MarkStarted] with the context that it was given. Returning nil before that is
// a failure, [ErrStartCondition]. Without it a worker is Running as soon as its
// function was called.
func WithStartCondition() FuncOption { return func(f *Func) { f.hasStartCondition = true } }

// PassThroughPanics lets a panic of the function end the process, with the trace of its
// goroutine, as a panic in any goroutine of a Go program does. Without it the worker is
// Failed with a [*PanicError]. Use it where a debugger or a core dump should see the panic,
// or where a process whose code has panicked must not go on.
func PassThroughPanics() FuncOption { return func(f *Func) { f.passesPanics = true } }

// NewFunc returns a worker that runs fn. The context that fn gets is cancelled
// when the worker is stopped, or when the context given to Start is cancelled;
// its context.Cause says why. fn should then return soon, with nil or with the
// context's error. A nil option is an error of Start.
func NewFunc(name string, fn func(context.Context) error, opts ...FuncOption) *Func {
	f := newFunc(fn, opts)
	f.Init("func", name)
	return f
}

func newFunc(fn func(context.Context) error, opts []FuncOption) *Func {
	f := &Func{fn: fn}
	if fn == nil {
		f.refused = errors.New("there is no function")
	}
	for i, opt := range opts {
		if opt == nil {
			f.refused = nilOption(i)
			continue
		}
		opt(f)
	}
	return f
}

// nilOption returns the error for the option at index i.
func nilOption(i int) error { return fmt.Errorf("option %d is nil", i+1) }

// MarkStarted makes the worker whose function was given ctx Running: its start
// condition is met. It does nothing for a worker that has no start condition, when
// called again, and for any other context.
func MarkStarted(ctx context.Context) {
	if f, ok := ctx.Value(funcKey{}).(*Func); ok && f != nil {
		f.conditionMet.Store(true)
		f.MarkRunning()
	}
}

// Progress says that the worker whose function was given ctx gets on: a loop calls it in each
// round. [State.Progress] has it, and the operators of a fleet see a worker that gave such signs
// and gives none any more. Progress does nothing for any other context. It may be called often: it
// takes no lock.
func Progress(ctx context.Context) {
	f, ok := ctx.Value(funcKey{}).(*Func)
	if !ok || f == nil {
		return
	}
	f.progress.Sign(time.Now().UnixNano())
}

// State returns a snapshot.
func (f *Func) State() State {
	s := f.BaseWorker.State()
	s.Progress, s.ProgressGap = f.progress.Told(time.Unix(0, 0))
	return s
}

// Start runs the function in a goroutine of its own and returns. Cancelling ctx
// asks the worker to stop. Without a function the worker is Failed, and Start says
// so.
func (f *Func) Start(ctx context.Context) error {
	own, err := f.beginWork(call.WithLabels(ctx, KindWorker, f.Name()))
	if err != nil {
		return err
	}
	if f.refused != nil {
		return f.refuse(f.refused)
	}
	if !f.hasStartCondition {
		f.MarkRunning()
	}
	own = context.WithValue(own, funcKey{}, f)
	call.GoUnder(own, f.Name(), f.passesPanics, func() error { return f.fn(own) }, func(err error) {
		if err == nil && f.hasStartCondition && !f.conditionMet.Load() && own.Err() == nil {
			err = ErrStartCondition
		}
		f.Finish(err)
	})
	return nil
}

// withoutFunc returns ctx without the Func that it belongs to. Workers that the
// function starts get such a context, so that they cannot mark or pause the Func.
func withoutFunc(ctx context.Context) context.Context {
	if ctx.Value(funcKey{}) == nil {
		return ctx
	}
	return context.WithValue(ctx, funcKey{}, (*Func)(nil))
}

// Stop cancels the function's context and waits until it has returned. When ctx
// ends first the function is abandoned: the worker is Killed, and the error is
// an [*AbandonedError] with the stack of the function's goroutine.
func (f *Func) Stop(ctx context.Context) error {
	f.RequestStop(stopCause(ctx))
	return f.awaitStop(ctx, func() error { return call.Abandoned(KindWorker, f.Name()) })
}
