//go:build unix

package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/worker"
)

// stoppedBy runs an App that stops for a reason other than a signal.
func stoppedBy() int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	a := scenarioApp()
	a.OnShutdown("stuck", func(context.Context) error {
		hangForEver("hook begins")
		return nil
	})
	a.Go("work", func(ctx context.Context) error {
		<-a.Reached(PhaseRunning)
		switch mode() {
		case "Stop":
			a.Stop(nil)
		case "parent":
			cancel(errors.New("enough"))
		case "fault":
			return errors.New("broken")
		}
		return untilStopped(ctx)
	})
	return runApp(ctx, a)
}

// raiseNow sends SIGTERM to the process itself, once.
var raiseNow = sync.OnceFunc(func() {
	say("raised")
	_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
})

// raise runs an App in which the user's own code sends the process a signal.
func raise() int {
	var opts []Option
	if mode() == "log handler" {
		opts = append(opts, WithLogger(slog.New(raisingHandler{slog.NewTextHandler(os.Stderr, nil)})))
	}
	ctx := context.Background()
	if mode() == "parent context" {
		ctx = raisingContext{ctx}
	}
	a := scenarioApp(opts...).OnShutdown("db", sayHook)
	switch mode() {
	case "unit":
		a.Go("work", func(ctx context.Context) error { raiseNow(); return untilStopped(ctx) })
	case "actor":
		done := make(chan struct{})
		a.Actor("work", func() error { raiseNow(); <-done; return nil }, func(error) { close(done) })
	case "Start":
		a.Add(newOwnWorker("work", func() { raiseNow() }))
	case "start condition":
		a.Go("work", func(ctx context.Context) error {
			raiseNow()
			<-ctx.Done()
			MarkStarted(ctx)
			return ctx.Err()
		}, WithStartCondition())
	case "probe":
		a.Probe("db", ProbeFunc(func(context.Context) error { raiseNow(); return nil }))
	case "listener":
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		a.Serve("http", &http.Server{}, WithListener(raisingListener{ln}))
	}
	return runApp(ctx, a)
}

type raisingHandler struct{ slog.Handler }

func (h raisingHandler) Handle(ctx context.Context, r slog.Record) error {
	raiseNow()
	return h.Handler.Handle(ctx, r)
}

type raisingContext struct{ context.Context }

func (c raisingContext) Err() error { raiseNow(); return c.Context.Err() }

type raisingListener struct{ net.Listener }

func (l raisingListener) Accept() (net.Conn, error) { raiseNow(); return l.Listener.Accept() }

// ownWorker is a foreign worker that runs the test's function in Start.
type ownWorker struct {
	worker.BaseWorker
	inStart func()
}

func newOwnWorker(name string, inStart func()) *ownWorker {
	w := &ownWorker{inStart: inStart}
	w.Init("own", name)
	return w
}

func (w *ownWorker) Start(ctx context.Context) error {
	if err := w.Begin(ctx); err != nil {
		return err
	}
	if w.inStart != nil {
		w.inStart()
	}
	w.MarkRunning()
	context.AfterFunc(ctx, func() { w.Finish(nil) })
	return nil
}

func (w *ownWorker) Stop(ctx context.Context) error {
	w.RequestStop(worker.ErrStopRequested)
	select {
	case <-w.Done():
	case <-ctx.Done():
		w.Kill(&AbandonedError{Name: w.Name()})
	}
	return nil
}

// rollback runs an App whose start does not end by itself.
func rollback() int {
	a := scenarioApp().OnShutdown("db", sayHook).Go("first", sayUnit)
	switch mode() {
	case "start condition":
		a.Go("slow", func(ctx context.Context) error {
			say("slow begins")
			return untilStopped(ctx) // it never calls MarkStarted
		}, WithStartCondition())
	case "Start":
		a.Add(newOwnWorker("slow", func() { hangForEver("slow begins") }))
	case "probe":
		a.Probe("slow", ProbeFunc(func(ctx context.Context) error {
			say("slow begins")
			return untilStopped(ctx)
		}), health.WithTimeout(time.Hour), health.WithCache(time.Hour))
	}
	a.Go("never", func(ctx context.Context) error {
		say("the unit behind has begun")
		return untilStopped(ctx)
	})
	return runApp(context.Background(), a)
}
