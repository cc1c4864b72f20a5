package trace_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestParse(t *testing.T) {
	for text, want := range map[string]bool{
		parent:                      true,
		parent + "-x":               false, // version 00 has no more parts
		"01" + parent[2:] + "-more": true,
		"01" + parent[2:] + "more":  false,
		"ff" + parent[2:]:           false,
		strings.ToUpper(parent):     false,
		"":                          false,
		"00-00000000000000000000000000000000-b7ad6b7169203331-01": false,
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01": false,
		"00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01": false,
		"01" + parent[2:] + "-" + strings.Repeat("x", 300):        false,
		"01" + parent[2:] + "-a\nb":                               false,
	} {
		if got := trace.Parse(text, ""); (got.Parent != "") != want {
			t.Errorf("Parse(%q) is %v", text, got)
		}
	}
	for state, want := range map[string]string{"a=b": "a=b", "a=\n": "", strings.Repeat("x", 513): ""} {
		if got := trace.Parse(parent, state).State; got != want {
			t.Errorf("the state %.10q is %q, want %q", state, got, want)
		}
	}
	c := trace.Parse(parent, "")
	if c.ID() != "0af7651916cd43dd8448eb211c80319c" || c.SpanID() != "b7ad6b7169203331" {
		t.Errorf("ids are %s and %s", c.ID(), c.SpanID())
	}
	if c := (trace.Context{Parent: "x"}); c.ID() != "" || c.SpanID() != "" || c.Attrs() != nil {
		t.Errorf("an invalid context has ids: %v", c.Attrs())
	}
}

func TestHeaders(t *testing.T) {
	h := map[string][]string{"Traceparent": {parent}, "TRACESTATE": {"a=b"}}
	c := trace.FromHeader(h)
	if c.Parent != parent || c.State != "a=b" {
		t.Errorf("%v", c)
	}
	to := map[string][]string{}
	c.Set(to)
	if trace.FromHeader(to) != c {
		t.Errorf("%v", to)
	}
	if c := trace.FromHeader(map[string][]string{"traceparent": {parent, parent}}); c.Parent != "" {
		t.Errorf("two parents: %v", c)
	}
	trace.Context{}.Set(to)
	if len(to) != 2 {
		t.Errorf("none has changed headers: %v", to)
	}
}

func TestLogLinesHaveTheTrace(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(trace.Handler(slog.NewTextHandler(&out, nil))).With("a", 1)
	ctx := trace.Parse(parent, "").In(t.Context())
	log.InfoContext(ctx, "one")
	log.WithGroup("g").InfoContext(t.Context(), "two")
	lines := strings.Split(out.String(), "\n")
	if !strings.HasSuffix(lines[0], "msg=one a=1 trace_id=0af7651916cd43dd8448eb211c80319c span_id=b7ad6b7169203331") {
		t.Error(lines[0])
	}
	if strings.Contains(lines[1], "trace_id") {
		t.Error(lines[1])
	}
	if trace.Of(context.Background()) != (trace.Context{}) || (trace.Context{}).In(ctx) != ctx {
		t.Error("none is not none")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(parent, "a=b")
	f.Fuzz(func(t *testing.T, parent, state string) {
		c := trace.Parse(parent, state)
		if c.Parent == "" && c.State != "" || c.Parent != "" && (c.Parent != parent || len(c.ID()) != 32 || len(c.SpanID()) != 16) {
			t.Errorf("%q", c)
		}
	})
}
