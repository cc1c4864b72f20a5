package call_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// broken panics in one of its methods.
type broken struct {
	slog.Handler
	in string
}

func (b broken) step(name string) {
	if b.in == name {
		panic(name)
	}
}

func (b broken) Enabled(ctx context.Context, level slog.Level) bool {
	b.step("Enabled")
	return b.Handler.Enabled(ctx, level)
}

func (b broken) Handle(ctx context.Context, r slog.Record) error {
	b.step("Handle")
	return b.Handler.Handle(ctx, r)
}

func (b broken) WithAttrs(attrs []slog.Attr) slog.Handler {
	b.step("WithAttrs")
	return broken{b.Handler.WithAttrs(attrs), b.in}
}

func (b broken) WithGroup(name string) slog.Handler {
	b.step("WithGroup")
	return broken{b.Handler.WithGroup(name), b.in}
}

func TestLogger(t *testing.T) {
	for in, want := range map[string]string{
		"":          `msg=word g.a=1 g.b=2`,
		"Enabled":   "",
		"Handle":    "",
		"WithAttrs": `msg=word g.b=2`,
		"WithGroup": `msg=word a=1 b=2`,
	} {
		var out bytes.Buffer
		log := call.Logger(slog.New(broken{slog.NewTextHandler(&out, nil), in}))
		log.WithGroup("g").With("a", 1).Info("word", "b", 2)
		if got := out.String(); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%q panics: %q, want %q", in, got, want)
		}
		if call.Logger(log) != log {
			t.Error("a guarded logger is guarded again")
		}
	}
}
