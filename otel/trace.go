package otel

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/trace"

	carried "github.com/pleme-io/lifecycle-go/trace"
)

// In a program that imports this package, this project carries the traces of OpenTelemetry: see
// package lifecycle-go/trace.
func init() { carried.Use(traceOf, withTrace) }

// traceOf returns the trace of the span in a context.
func traceOf(ctx context.Context) carried.Context {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() {
		return carried.Context{}
	}
	parent := fmt.Sprintf("00-%s-%s-%s", sc.TraceID(), sc.SpanID(), sc.TraceFlags()&trace.FlagsSampled)
	return carried.Parse(parent, sc.TraceState().String())
}

// withTrace returns a context whose next span belongs to a trace of another process.
func withTrace(ctx context.Context, c carried.Context) context.Context {
	id, badID := trace.TraceIDFromHex(c.ID())
	span, badSpan := trace.SpanIDFromHex(c.SpanID())
	if badID != nil || badSpan != nil {
		return ctx
	}
	const flags = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0")
	sampled := trace.TraceFlags(0).WithSampled((c.Parent[flags]-'0')%2 == 1)
	state, err := trace.ParseTraceState(c.State)
	if err != nil {
		state = trace.TraceState{}
	}
	return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: id, SpanID: span, TraceFlags: sampled, TraceState: state, Remote: true,
	}))
}
