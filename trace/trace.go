// Package trace carries a W3C trace context from one part of a fleet to the next: from a request
// to the writes of a workflow, from there to its hooks, to the queries of a pool and to messages
// and hosted code. It makes no spans. It uses the standard library only.
//
// A context.Context carries the trace. What this project sends under a context has its trace, and
// what it calls because of that gets a context with the trace:
//
//	ctx = trace.FromHeader(req.Header).In(ctx)
//	err := orders.Transition(ctx, "77", "paid", …) // stores the trace with the write
//
//	Do: func(ctx context.Context, r workflow.Reaction) error {
//		log.InfoContext(ctx, "invoice") // with trace.Handler: trace_id=… span_id=…
//		return pool.Do(ctx, …)          // the worker gets the trace
//	}
//
// Programs with OpenTelemetry need no call of In: they import the module lifecycle-go/otel, which
// connects [Of] and [Context.In] with the span of a context.
package trace

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
)

// The names of the headers of W3C Trace Context.
const (
	HeaderParent = "traceparent"
	HeaderState  = "tracestate"
)

// MaxState is the longest state in bytes. A longer one is left out, as W3C Trace Context allows.
const MaxState = 512

// maxParent is the longest parent in bytes: a version to come may have more parts.
const maxParent = 256

// Context is a W3C trace context. The zero value is none. Get one from [Parse], [FromHeader] or
// [Of]: those return no invalid one.
type Context struct {
	// Parent is the traceparent: a version, the id of the trace, the id of the span, and flags.
	Parent string `json:"traceparent,omitempty"`
	// State is the tracestate, "" for none.
	State string `json:"tracestate,omitempty"`
}

// Parse returns the trace context of two headers, none when the parent is not valid. A state
// that is too long or not one line of text is left out.
func Parse(parent, state string) Context {
	if !valid(parent) {
		return Context{}
	}
	if len(state) > MaxState || strings.ContainsFunc(state, func(c rune) bool { return c < ' ' || c > '~' }) {
		state = ""
	}
	return Context{Parent: parent, State: state}
}

// valid reports whether a traceparent is valid.
func valid(parent string) bool {
	const ids = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if len(parent) < ids || len(parent) > maxParent {
		return false
	}
	version, trace, span, flags := parent[:2], parent[3:35], parent[36:52], parent[53:55]
	dashes := parent[2] == '-' && parent[35] == '-' && parent[52] == '-'
	longer := len(parent) > ids
	if longer && (version == "00" || parent[ids] != '-') {
		return false
	}
	return dashes && isHex(version) && version != "ff" && isHex(flags) &&
		isHex(trace) && strings.Trim(trace, "0") != "" && isHex(span) && strings.Trim(span, "0") != "" &&
		!strings.ContainsFunc(parent[ids:], func(c rune) bool { return c <= ' ' || c > '~' })
}

func isHex(text string) bool { return strings.Trim(text, "0123456789abcdef") == "" }

// FromHeader returns the trace context of the headers of a request or a message, none when they
// have no valid one. The names may have any case.
func FromHeader(header map[string][]string) Context {
	parent := value(header, HeaderParent)
	if parent == "" {
		return Context{}
	}
	return Parse(parent, value(header, HeaderState))
}

// value returns the only value of a header, "" when it has none or several.
func value(header map[string][]string, name string) (found string) {
	if values, ok := header[name]; ok && len(values) == 1 {
		return values[0]
	}
	for key, values := range header {
		if len(values) == 1 && strings.EqualFold(key, name) {
			return values[0]
		}
	}
	return ""
}

// Set puts the context into headers, under the lower-case names. None changes nothing.
func (c Context) Set(header map[string][]string) {
	if c.Parent != "" {
		header[HeaderParent] = []string{c.Parent}
	}
	if c.State != "" {
		header[HeaderState] = []string{c.State}
	}
}

// ID returns the id of the trace, 32 hexadecimal digits, and "" for none.
func (c Context) ID() string {
	if !valid(c.Parent) {
		return ""
	}
	return c.Parent[3:35]
}

// SpanID returns the id of the span, 16 hexadecimal digits, and "" for none.
func (c Context) SpanID() string {
	if !valid(c.Parent) {
		return ""
	}
	return c.Parent[36:52]
}

// Attrs returns the attributes of a log line: trace_id and span_id, none without a trace.
func (c Context) Attrs() []slog.Attr {
	id := c.ID()
	if id == "" {
		return nil
	}
	return []slog.Attr{slog.String("trace_id", id), slog.String("span_id", c.SpanID())}
}

// key is the key of a Context in a context.Context.
type key struct{}

// bridge connects this package with a tracing library.
type bridge struct {
	of func(context.Context) Context
	in func(context.Context, Context) context.Context
}

var bridged atomic.Pointer[bridge]

// Use connects a tracing library, for the whole process: of returns the trace of the library's
// span in a context, and in makes a context in which the library finds a trace. The module
// lifecycle-go/otel calls it when it is imported.
func Use(of func(context.Context) Context, in func(context.Context, Context) context.Context) {
	bridged.Store(&bridge{of, in})
}

// Of returns the trace of a context: the library's of [Use], or else the one of [Context.In].
func Of(ctx context.Context) Context {
	if b := bridged.Load(); b != nil {
		if c := b.of(ctx); c.Parent != "" {
			return c
		}
	}
	c, _ := ctx.Value(key{}).(Context)
	return c
}

// In returns a context that carries the trace. None changes nothing.
func (c Context) In(ctx context.Context) context.Context {
	if c.Parent == "" {
		return ctx
	}
	if b := bridged.Load(); b != nil {
		ctx = b.in(ctx, c)
	}
	return context.WithValue(ctx, key{}, c)
}

// Handler adds the attributes of [Context.Attrs] to each record whose context has a trace, as
// slog.InfoContext passes it, and gives it to next.
func Handler(next slog.Handler) slog.Handler { return handler{next} }

type handler struct{ slog.Handler }

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if attrs := Of(ctx).Attrs(); attrs != nil {
		r = r.Clone()
		r.AddAttrs(attrs...)
	}
	return h.Handler.Handle(ctx, r)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs)}
}

func (h handler) WithGroup(name string) slog.Handler { return handler{h.Handler.WithGroup(name)} }
