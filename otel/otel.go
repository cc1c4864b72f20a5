// Package otel shows the life of a [lifecycle.App] as OpenTelemetry spans, and its stop
// as metrics. It reads the App's events; the spans have their times.
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
// The spans of units, drainers, hooks and reloads have the ID of their life as
// lifecycle.id, and the ID of its parent as lifecycle.parent: see [fsm.Event].
// Names may repeat, IDs do not.
//
// The start, the stop, each run and each reload begin a trace of their own,
// because they are hours apart. All others are linked to the start. The changes
// of status of a unit are span events. A span of a unit or step that failed,
// panicked, was abandoned or killed has the status Error and says why, in 256
// bytes at most. A requested stop is not an error. The span of the stop has its budget,
// the requests that were cut and the number of abandoned parts; the span of the start says
// how the process before it ended, when Config.LastStopFile has kept that.
//
// A span that is open cannot be exported. So when [Traces.Close] begins, it ends
// the spans of the stop, of the shutdown and of its own hook, and exports all
// spans. When Close is the last hook to run, the collector has them before Run
// returns. Three things are not exported: hooks that were registered before Close
// and so run after it, the time that Close takes, and the final phase, which is
// in the report. [Metrics] exports what is known when the last hook has returned.
//
// When the collector cannot be reached, the hook fails and Run's error says so.
// Close takes no longer than its part of the grace. A collector that runs as a
// sidecar must be a native sidecar, which stops after the service (Kubernetes
// 1.29, KEP-753). The caller shuts the provider down, after Run.
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

// maxUnread is how many events may wait to become spans. Further events are lost,
// and a span event says how many.
const maxUnread = 4096

// Traces makes spans of what happens in one App.
type Traces struct {
	provider trace.TracerProvider
	tracer   trace.Tracer

	mu   sync.Mutex // guards everything below
	stop func()     // ends the reading; nil before it began and after it ended
	used bool
	app  *lifecycle.App
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

// Option makes the Traces read the events of an App, in a goroutine that
// [Traces.Close] ends. Call Close also when New fails because of a later option.
// [lifecycle.New] fails when the provider is nil, and when another App got the
// option before.
func (t *Traces) Option() lifecycle.Option {
	return lifecycle.WithSetup(func(a *lifecycle.App) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		switch {
		case t.tracer == nil:
			return errors.New("otel: the tracer provider is nil")
		case t.used:
			return errors.New("otel: these Traces belong to another App: make new ones for each App")
		}
		t.used, t.app = true, a
		t.life = life{tracer: t.tracer, parts: map[run]*open{}, previous: a.Report().Previous}
		t.stop = a.Events().Listen(maxUnread, func(e fsm.Event) { t.life.read(e) })
		return nil
	})
}

// Close makes spans of all events so far, ends the open spans, and flushes the
// provider, if the provider can flush, within ctx. It is a shutdown hook.
// Register it before all others, so that it runs last: it ends the span of the
// stop, and hooks after it have no spans. The provider itself stays open. Close
// returns the error of the flush. A second call does nothing and returns nil.
func (t *Traces) Close(ctx context.Context) error {
	t.mu.Lock()
	stop := t.stop
	t.stop = nil
	t.mu.Unlock()
	if stop == nil {
		return nil
	}
	stop()
	t.life.end(t.app.Report())
	if p, ok := t.provider.(interface{ ForceFlush(context.Context) error }); ok {
		return p.ForceFlush(ctx)
	}
	return nil
}
