package worker

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// Actor is a worker that runs a function which cannot watch a context. A second
// function makes the first one return, as in oklog/run.
type Actor struct {
	BaseWorker
	execute   func() error
	interrupt func(error)
	cause     func() error
	clean     []error

	interrupted atomic.Bool
}

// NewActor returns a worker that runs execute. Stop calls interrupt, exactly once, also
// when execute has returned already, and never when the worker has not started.
// interrupt gets the result of cause, which says why the worker stops: nil when nothing
// is wrong. A nil cause stands for a function that returns nil.
//
// After the interrupt, the errors of a closed listener or file (net.ErrClosed,
// os.ErrClosed, io.ErrClosedPipe), context.Canceled, the cause itself and the errors in
// clean are clean.
func NewActor(name string, execute func() error, interrupt func(error), cause func() error, clean ...error) *Actor {
	if cause == nil {
		cause = func() error { return nil }
	}
	clean = append([]error{net.ErrClosed, os.ErrClosed, io.ErrClosedPipe, context.Canceled}, clean...)
	w := &Actor{execute: execute, interrupt: interrupt, cause: cause, clean: clean}
	w.Init("actor", name)
	return w
}

// Start runs execute in a goroutine of its own and returns. Without one of the two
// functions the worker is Failed, and Start says so.
func (w *Actor) Start(ctx context.Context) error {
	if err := w.Begin(ctx); err != nil {
		return err
	}
	if w.execute == nil || w.interrupt == nil {
		return w.refuse(errors.New("execute or interrupt is nil"))
	}
	w.MarkRunning()
	labels := call.WithLabels(ctx, KindWorker, w.Name())
	call.GoUnder(labels, w.Name(), false, w.execute, func(err error) {
		isClean := call.Only(err, append(slices.Clone(w.clean), w.cause())...) // an error that interrupt makes execute return
		if w.interrupted.Load() && isClean {
			err = errors.Join(ErrInterrupted, err)
		}
		w.Finish(err)
	})
	return nil
}

// Stop interrupts, once, and waits for execute to return. An interrupt or execute that
// has not returned shortly after the end of ctx is abandoned: the worker is then Killed,
// and the error is an [*AbandonedError].
func (w *Actor) Stop(ctx context.Context) error {
	w.RequestStop(ErrStopRequested) // first, so that no Start begins after the look
	var err error
	if w.hasBegun() && w.interrupt != nil && w.interrupted.CompareAndSwap(false, true) {
		err = call.Within(ctx, w.Name()+": interrupt", call.Settle, func() error {
			w.interrupt(w.cause())
			return nil
		})
	}
	killed := w.awaitStop(ctx, func() error {
		select {
		case <-w.Done():
			return nil
		case <-time.After(call.Settle):
			return call.Abandoned(KindWorker, w.Name())
		}
	})
	if err == nil {
		return killed // the very error that the actor ended with, so that callers can compare
	}
	return errors.Join(killed, err)
}
