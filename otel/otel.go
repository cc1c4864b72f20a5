// Package otel shows the life of a [lifecycle.App] as OpenTelemetry spans. It
// reads the App's events; the spans have their times.
//
//	traces := lifecycleotel.New(provider)
//	app, err := lifecycle.New(cfg, traces.Option())
//	if err != nil {
//		return err
//	}
//	app.OnShutdown("traces", traces.Close) // first, and so the last to run
//
// The spans:
//
//	lifecycle.start           from Run until everything runs
//	lifecycle.stop            from the stop request to the end
//	├─ lifecycle.drain        the drain window and the listeners' end
//	│  └─ lifecycle.drainer   each drainer
//	└─ lifecycle.shutdown     units are awaited, hooks run
//	   └─ lifecycle.hook      each shutdown hook
//	lifecycle.unit            one life of a worker, and one for each run of a
//	                          supervised function: those have lifecycle.attempt
//	lifecycle.reload          each reload
//
// The spans of units, drainers, hooks and reloads have the ID of the life that they
// are about, and of the one that it belongs to, as lifecycle.id and
// lifecycle.parent: see [fsm.Event]. Names repeat, IDs do not.
//
// The start, the stop, each run and each reload begin a trace of their own,
// because they lie hours apart; all but the start are linked to it. The changes of
// status of a unit are span events. A span of a unit or step that failed, panicked,
// was abandoned or killed has the status Error and says why, in 256 bytes at most. A
// stop that was asked for is no error.
//
// A span that is open cannot be exported. So [Traces.Close] ends the spans of the
// stop, of the shutdown and of its own hook when it begins, and exports everything
// up to there. When Close is the hook that runs last, the collector has all of that
// before Run returns. These are not exported: hooks that were registered before
// Close and so run after it; the time that Close takes; the final phase, which is in
// the report.
//
// When the collector cannot be reached, the hook fails and Run's error says so.
// Close takes no longer than its part of the grace. A collector that is a sidecar
// has to be a native one, which stops after the service (Kubernetes 1.29, KEP-753).
// The caller shuts the provider down, after Run.
package otel

import (
	"context"
	"errors"
	"sync"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fsm"
	"go.opentelemetry.io/otel/trace"
)

// Scope is the name of the tracer.
const Scope = "github.com/pleme-io/lifecycle-go/otel"

// maxUnread is how many events may wait to become spans. More at once are lost,
// and a span event says how many.
const maxUnread = 4096

// Traces makes spans of what happens in one App.
type Traces struct {
	provider trace.TracerProvider
	tracer   trace.Tracer

	mu   sync.Mutex // guards everything below
	stop func()     // ends the reading; nil before it began and after it ended
	used bool
	life life // only for the reader, while there is one
}

// New returns a reader that makes spans with provider. It serves one App; see
// [Traces.Option].
func New(provider trace.TracerProvider) *Traces {
	t := &Traces{provider: provider}
	if provider != nil {
		t.tracer = provider.Tracer(Scope)
	}
	return t
}

// Option makes an App the one whose events are read, in a goroutine that
// [Traces.Close] ends; call it also when New fails after that, because of an
// option that was given later. [lifecycle.New] fails when there is no provider, and when
// the option was given to another App before.
func (t *Traces) Option() lifecycle.Option {
	return lifecycle.WithSetup(func(a *lifecycle.App) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		switch {
		case t.tracer == nil:
			return errors.New("otel: the tracer provider is nil")
		case t.used:
			return errors.New("otel: these traces are another App's: make new ones for each App")
		}
		t.used = true
		t.life = newLife(t.tracer)
		t.stop = a.Events().Listen(maxUnread, func(e fsm.Event) { t.life.read(e) })
		return nil
	})
}

// Close makes spans of everything that has happened, ends those that are open,
// and has the provider export all, as far as it can flush, by the end of ctx. It
// is a shutdown hook: register it before all others, because it ends the span of
// the stop, and hooks that run after it are not seen. The provider itself stays
// open. The error is that of the flush. A second call does nothing and returns
// nil.
func (t *Traces) Close(ctx context.Context) error {
	t.mu.Lock()
	stop := t.stop
	t.stop = nil
	t.mu.Unlock()
	if stop == nil {
		return nil
	}
	stop()
	t.life.end()
	if p, ok := t.provider.(interface{ ForceFlush(context.Context) error }); ok {
		return p.ForceFlush(ctx)
	}
	return nil
}
