package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// Func is a worker that runs a function.
type Func struct {
	BaseWorker
	fn     func(context.Context) error
	marked bool        // the worker stays Starting until the function calls MarkStarted
	panics bool        // a panic of the function ends the process
	met    atomic.Bool // the function has called MarkStarted
	whole  *Restarter  // of which this is one run; nil for most

	begun  sync.Mutex // orders Start against Stop, and guards everything below
	number uint64     // of the function's call
	cancel context.CancelCauseFunc
}

// funcContext is the context of the function of a Func: it says to which Func it belongs.
type funcContext Func

func (f *funcContext) Deadline() (time.Time, bool) { return f.ctx.Deadline() }
func (f *funcContext) Done() <-chan struct{}       { return f.ctx.Done() }
func (f *funcContext) Err() error                  { return f.ctx.Err() }

// String is for the texts of contexts; without it fmt would read the fields.
func (f *funcContext) String() string { return "worker.Func(" + f.Name() + ")" }

func (f *funcContext) Value(key any) any {
	if _, ok := key.(funcKey); ok {
		return (*Func)(f)
	}
	return f.ctx.Value(key)
}

// FuncOption shapes a [Func].
type FuncOption func(*Func)

// WithStartCondition keeps the worker Starting until its function calls
// [MarkStarted] with the context that it was given. Returning nil before that is
// a failure, [ErrStartCondition]. Without it a worker is Running as soon as its
// function was called.
func WithStartCondition() FuncOption { return func(f *Func) { f.marked = true } }

// PassThroughPanics lets a panic of the function end the process, with the trace of its
// goroutine, as a panic in any goroutine of a Go program does. Without it the worker is
// Failed with a [*PanicError]. Use it where a debugger or a core dump should see the panic,
// or where a process whose code has panicked must not go on.
func PassThroughPanics() FuncOption { return func(f *Func) { f.panics = true } }

// NewFunc returns a worker that runs fn. The context that fn gets is cancelled
// when the worker is stopped, or when the context given to Start is cancelled;
// its context.Cause says why. fn should then return soon, with nil or with the
// context's error. A nil option is an error of Start.
func NewFunc(name string, fn func(context.Context) error, opts ...FuncOption) *Func {
	f := &Func{fn: fn}
	f.patient = true
	f.Init("func", name)
	f.apply(opts)
	return f
}

func (f *Func) apply(opts []FuncOption) {
	for i, opt := range opts {
		if opt == nil {
			f.rareLocked().refused = nilOption(i)
			continue
		}
		opt(f)
	}
}

// nilOption returns the error for the option at index i.
func nilOption(i int) error { return fmt.Errorf("option %d is nil", i+1) }

// MarkStarted makes the worker whose function was given ctx Running: its start
// condition is met. It does nothing for a worker that has no start condition, when
// called again, and for any other context.
func MarkStarted(ctx context.Context) {
	if f, ok := ctx.Value(funcKey{}).(*Func); ok && f != nil {
		f.mark()
	}
}

// Start runs the function in a goroutine of its own and returns. Cancelling ctx
// asks the worker to stop. Without a function the worker is Failed, and Start says
// so.
//
// When ctx ends, the function's own context ends at the same time. The change to
// Stopping and its event come at once when events of the worker have a reader at its
// Start, or a caller of [BaseWorker.Watch] or [BaseWorker.Await]. Otherwise they come
// when a caller asks for the status, or at the latest when the function returns: a
// worker without a reader has no goroutine that could notice the end earlier.
func (f *Func) Start(ctx context.Context) error {
	f.begun.Lock()
	defer f.begun.Unlock()
	own, cancel := context.WithCancelCause(ctx)
	f.mu.Lock()
	refused := f.seldomLocked().refused
	f.mu.Unlock()
	if f.fn == nil {
		refused = errors.New("there is no function")
	}
	if err := f.begin(own, ctx, !f.marked && refused == nil); err != nil {
		cancel(nil)
		return err
	}
	f.cancel = cancel
	if refused != nil {
		err := fmt.Errorf("start %s: %w", f.Name(), refused)
		f.Finish(err)
		cancel(nil)
		return err
	}
	start := call.GoJob
	if f.panics {
		start = call.GoJobUncaught
	}
	f.number = start(f.Name(), (*funcJob)(f))
	return nil
}

// funcJob is the call of the function.
type funcJob Func

func (j *funcJob) Run() error { return j.fn((*funcContext)(j)) }

func (j *funcJob) Ended(err error) {
	if err == nil && j.marked && !j.met.Load() && j.ctx.Err() == nil {
		err = ErrStartCondition
	}
	j.Finish(err)
	j.cancel(nil)
	if j.whole != nil {
		j.whole.runEnded((*Func)(j))
	}
}

// mark records that the start condition is met.
func (f *Func) mark() {
	f.met.Store(true)
	f.MarkRunning()
	if f.whole != nil {
		f.whole.follow(f)
	}
}

// unnamed returns ctx without the Func that it belongs to. Workers that the
// function starts get such a context, so that they cannot mark or pause the Func.
func unnamed(ctx context.Context) context.Context {
	if ctx.Value(funcKey{}) == nil {
		return ctx
	}
	return context.WithValue(ctx, funcKey{}, (*Func)(nil))
}

// Stop cancels the function's context and waits until it has returned. When ctx
// ends first the function is abandoned: the worker is Killed, and the error is
// an [*AbandonedError] with the stack of the function's goroutine.
func (f *Func) Stop(ctx context.Context) error {
	live, number := f.ask(stopCause(ctx))
	if !live {
		return f.killedErr()
	}
	select {
	case <-f.Done():
		return f.killedErr()
	case <-ctx.Done():
	}
	select {
	case <-f.Done(): // it returned as ctx ended
		return f.killedErr()
	default:
	}
	err := call.Abandoned(f.Name(), number)
	if f.Kill(err) {
		return err
	}
	return f.killedErr()
}

// ask asks the function to return. It reports whether the worker still has to end, and
// the number of the function's call.
func (f *Func) ask(cause error) (live bool, number uint64) {
	f.begun.Lock()
	live, cancel, number := f.RequestStop(ErrStopRequested), f.cancel, f.number
	f.begun.Unlock()
	if cancel != nil {
		cancel(cause)
	}
	return live, number
}
