package otel

import (
	"context"
	"errors"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/worker"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// The attributes.
const (
	attrApp     = attribute.Key("lifecycle.app")
	attrName    = attribute.Key("lifecycle.name")    // of the unit, drainer, hook or reload
	attrID      = attribute.Key("lifecycle.id")      // of its life: fsm.Event.ID
	attrParent  = attribute.Key("lifecycle.parent")  // the ID of the life that it belongs to
	attrAttempt = attribute.Key("lifecycle.attempt") // which run of a supervised function it is
	attrState   = attribute.Key("lifecycle.state")   // the last state
	attrReason  = attribute.Key("lifecycle.reason")  // why it stops
	attrLost    = attribute.Key("lifecycle.lost")    // events

	// Of the stop, and with last_stop in their names of the life before, on the start.
	attrBudget     = attribute.Key("lifecycle.budget")       // in seconds
	attrCut        = attribute.Key("lifecycle.requests_cut") // in the stop
	attrAbandoned  = attribute.Key("lifecycle.abandoned")    // units, drainers and hooks
	attrLastState  = attribute.Key("lifecycle.last_stop.state")
	attrLastReason = attribute.Key("lifecycle.last_stop.reason")
	attrLastExit   = attribute.Key("lifecycle.last_stop.exit_status")
)

// maxText bounds an attribute, in bytes.
const maxText = 256

// open is a span that has not ended.
type open struct {
	trace.Span
	ctx  context.Context // with the span in it
	last string          // state
}

// life makes spans of events, one at a time.
type life struct {
	tracer trace.Tracer

	app                          string
	origin                       trace.SpanContext // of the start
	start, stop, drain, shutdown *open
	parts                        map[run]*open // units, drainers, hooks and reloads that run
	stopFailed                   bool
	previous                     *lifecycle.Report
	at                           time.Time // of the last event
}

// run identifies the subject of a span: a life, or one attempt of it.
type run struct {
	id      uint64
	attempt int
}

func (l *life) read(e fsm.Event) {
	l.at = e.At
	switch {
	case e.IsGap():
		for _, s := range []*open{l.start, l.stop} {
			if s != nil {
				s.AddEvent("lifecycle.events_lost", trace.WithTimestamp(e.At), trace.WithAttributes(attrLost.Int64(int64(e.Seq))))
			}
		}
	case e.Kind == lifecycle.KindApp:
		l.phase(e)
	case e.Kind == worker.KindWorker:
		l.unit(e)
	case e.Kind == lifecycle.KindDrainer:
		l.step(e, "lifecycle.drainer", l.drain)
	case e.Kind == lifecycle.KindHook:
		l.step(e, "lifecycle.hook", l.shutdown)
	case e.Kind == lifecycle.KindReload:
		l.step(e, "lifecycle.reload", nil)
	}
}

// begin begins a span below parent, or a trace of its own that is linked to the
// start.
func (l *life) begin(name string, parent *open, at time.Time, attrs ...attribute.KeyValue) *open {
	ctx := context.Background()
	opts := []trace.SpanStartOption{
		trace.WithTimestamp(at),
		trace.WithAttributes(attrs...),
		trace.WithAttributes(attrApp.String(l.app)),
	}
	if parent != nil {
		ctx = parent.ctx
	} else if l.origin.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: l.origin}))
	}
	ctx, span := l.tracer.Start(ctx, name, opts...)
	return &open{Span: span, ctx: ctx}
}

// finish ends a span, if there is one.
func finish(s **open, at time.Time, failure error) {
	if *s == nil {
		return
	}
	if failure != nil {
		(*s).SetStatus(codes.Error, text.Clip(failure.Error(), maxText))
	}
	if (*s).last != "" {
		(*s).SetAttributes(attrState.String((*s).last))
	}
	(*s).End(trace.WithTimestamp(at))
	*s = nil
}

func (l *life) phase(e fsm.Event) {
	l.app = text.Clip(e.Name, maxText)
	switch lifecycle.Phase(e.To) {
	case lifecycle.PhaseStarting:
		l.start = l.begin("lifecycle.start", nil, e.At)
		l.origin = l.start.SpanContext()
		if p := l.previous; p != nil {
			l.start.SetAttributes(attrLastState.String(string(p.Phase)), attrLastReason.String(text.Clip(p.Reason, maxText)))
			if !p.Done.IsZero() || p.ExitStatus != 0 { // absent after SIGKILL or a panic
				l.start.SetAttributes(attrLastExit.Int(p.ExitStatus))
			}
		}
	case lifecycle.PhaseRunning:
		finish(&l.start, e.At, nil)
	case lifecycle.PhaseDraining:
		l.beginStop(e)
		l.drain = l.begin("lifecycle.drain", l.stop, e.At)
	case lifecycle.PhaseStopping:
		finish(&l.start, e.At, failure(e.Cause)) // the stop came during the start
		finish(&l.drain, e.At, nil)
		if l.stop == nil {
			l.beginStop(e)
		}
		l.shutdown = l.begin("lifecycle.shutdown", l.stop, e.At)
	case lifecycle.PhaseStopped, lifecycle.PhaseFailed, lifecycle.PhaseKilled:
		finish(&l.start, e.At, e.Cause)
		finish(&l.drain, e.At, nil)
		finish(&l.shutdown, e.At, nil)
		l.noteLast(e.To)
		finish(&l.stop, e.At, e.Cause)
	}
}

func (l *life) beginStop(e fsm.Event) {
	l.stop = l.begin("lifecycle.stop", nil, e.At)
	if e.Cause != nil {
		l.stop.SetAttributes(attrReason.String(text.Clip(e.Cause.Error(), maxText)))
	}
	if err := failure(e.Cause); err != nil {
		l.fail(err)
	}
}

// fail marks the span of the stop as an error, once.
func (l *life) fail(err error) {
	if l.stop != nil && !l.stopFailed {
		l.stop.SetStatus(codes.Error, text.Clip(err.Error(), maxText))
		l.stopFailed = true
	}
}

func (l *life) noteLast(state string) {
	if l.stop != nil {
		l.stop.last = state
	}
}

// failure returns the cause of a stop, and nil when the stop was asked for.
func failure(cause error) error {
	_, bySignal := call.As[*lifecycle.SignalError](cause)
	wasAsked := call.Is(cause, lifecycle.ErrStopRequested) || call.Is(cause, lifecycle.ErrUpgraded)
	if bySignal || wasAsked || call.Is(cause, context.Canceled) {
		return nil
	}
	return cause
}

// beginPart begins the span of a unit, a run of it, a drainer, a hook or a reload.
func (l *life) beginPart(e fsm.Event, name string, parent *open) *open {
	attrs := []attribute.KeyValue{
		attrName.String(text.Clip(e.Name, maxText)),
		attrID.Int64(int64(e.ID)),
		attrParent.Int64(int64(e.Parent)),
	}
	if e.Attempt > 0 {
		attrs = append(attrs, attrAttempt.Int(e.Attempt))
	}
	s := l.begin(name, parent, e.At, attrs...)
	l.parts[run{e.ID, e.Attempt}] = s
	return s
}

// unit makes a span of a worker, and one of each run of a worker that runs its
// function again and again. The time in which the worker is pending does not
// count.
func (l *life) unit(e fsm.Event) {
	key := run{e.ID, e.Attempt}
	s := l.parts[key]
	status := worker.Status(e.To)
	if s == nil {
		if status != worker.StatusStarting && status != worker.StatusRunning {
			return
		}
		s = l.beginPart(e, "lifecycle.unit", nil)
	}
	s.last = e.To
	s.AddEvent(e.To, trace.WithTimestamp(e.At))
	if !status.Terminal() {
		return
	}
	var err error
	if status == worker.StatusFailed || status == worker.StatusKilled {
		if err = e.Cause; err == nil {
			err = errors.New(e.To)
		}
	}
	delete(l.parts, key)
	finish(&s, e.At, err)
}

// step makes a span of a drainer, a hook or a reload.
func (l *life) step(e fsm.Event, name string, parent *open) {
	s := l.parts[run{id: e.ID}]
	if s == nil {
		s = l.beginPart(e, name, parent)
	}
	s.last = e.To
	if e.To == string(lifecycle.ResultRunning) {
		return
	}
	var err error
	if e.To != string(lifecycle.ResultOK) {
		if err = e.Cause; err == nil {
			err = errors.New(e.To)
		}
		if e.Kind != lifecycle.KindReload {
			l.fail(err)
		}
	}
	delete(l.parts, run{id: e.ID})
	finish(&s, e.At, err)
}

// end ends all open spans, of the parts first and of the whole App last. r describes the
// App as it is now.
func (l *life) end(r lifecycle.Report) {
	if l.stop != nil {
		l.stop.SetAttributes(
			attrBudget.Float64(r.Budget.Seconds()),
			attrCut.Int(r.CutRequests),
			attrAbandoned.Int(abandoned(r)),
		)
	}
	now := time.Now()
	if now.Before(l.at) {
		now = l.at
	}
	for _, s := range l.parts {
		finish(&s, now, nil)
	}
	clear(l.parts)
	for _, s := range []**open{&l.start, &l.drain, &l.shutdown, &l.stop} {
		finish(s, now, nil)
	}
}
