package otel_test

import (
	"testing"

	"go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"

	_ "github.com/pleme-io/lifecycle-go/otel"
	carried "github.com/pleme-io/lifecycle-go/trace"
)

// TestTraceOfASpanIsCarried sends the trace of a span to another process, where the next span has
// it as its parent.
func TestTraceOfASpanIsCarried(t *testing.T) {
	provider := trace.NewTracerProvider()
	defer provider.Shutdown(t.Context())
	ctx, span := provider.Tracer("test").Start(t.Context(), "request")
	defer span.End()
	sent := carried.Of(ctx)
	if sent.ID() != span.SpanContext().TraceID().String() || sent.SpanID() != span.SpanContext().SpanID().String() {
		t.Fatalf("%v is sent for %v", sent, span.SpanContext())
	}
	there := carried.Parse(sent.Parent, "a=b").In(t.Context())
	if got := carried.Of(there); got.Parent != sent.Parent || got.State != "a=b" {
		t.Errorf("%v has arrived for %v", got, sent)
	}
	_, next := provider.Tracer("test").Start(there, "reaction")
	defer next.End()
	if got := oteltrace.SpanContextFromContext(there); !got.IsRemote() || !got.IsSampled() {
		t.Errorf("the parent is %+v", got)
	}
	if next.SpanContext().TraceID() != span.SpanContext().TraceID() || next.SpanContext().SpanID() == span.SpanContext().SpanID() {
		t.Errorf("the next span is of %v", next.SpanContext())
	}
}
