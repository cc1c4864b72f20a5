package call

import (
	"context"
	"log/slog"
)

// Logger returns log with a guard around its handler: a handler that panics loses its
// record and ends nothing. Call it once for a logger of a user.
func Logger(log *slog.Logger) *slog.Logger {
	if _, guarded := log.Handler().(*guard); guarded {
		return log
	}
	return slog.New(&guard{log.Handler()})
}

// guard is a slog.Handler around a user's handler.
type guard struct{ slog.Handler }

func (g *guard) Enabled(ctx context.Context, level slog.Level) (enabled bool) {
	_ = Do("log handler", func() error { enabled = g.Handler.Enabled(ctx, level); return nil })
	return enabled
}

func (g *guard) Handle(ctx context.Context, r slog.Record) error {
	return Do("log handler", func() error { return g.Handler.Handle(ctx, r) })
}

func (g *guard) WithAttrs(attrs []slog.Attr) slog.Handler {
	return g.with(func() slog.Handler { return g.Handler.WithAttrs(attrs) })
}

func (g *guard) WithGroup(name string) slog.Handler {
	return g.with(func() slog.Handler { return g.Handler.WithGroup(name) })
}

// with returns the handler that fn makes, and the one without it when fn panics.
func (g *guard) with(fn func() slog.Handler) slog.Handler {
	out := g.Handler
	_ = Do("log handler", func() error { out = fn(); return nil })
	return &guard{out}
}
