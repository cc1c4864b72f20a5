// Package native is the engine for handlers that are compiled into the process.
// The "code" of a worker is the name of a function. Use it where an interpreter
// is too slow, and in tests.
//
// Go has no way to end a function or to bound its memory. The host abandons a function that
// ignores its context. A panic in a goroutine that a function starts ends the process.
//
// Begin with [New]. It uses internal/call, which catches a function's panics.
package native

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// MIMEType is the MIME type of code that is a function's name.
const MIMEType = "application/x-go-func"

// Func handles one message, like the Handle of an [engine.Program].
type Func func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error)

// Engine runs functions of this process.
type Engine struct {
	funcs map[string]Func
}

// New returns an engine with these functions, by name. It copies the map.
func New(funcs map[string]Func) *Engine {
	return &Engine{funcs: maps.Clone(funcs)}
}

// MIMETypes returns [MIMEType].
func (*Engine) MIMETypes() []string { return []string{MIMEType} }

// RunsInProcess says that the functions are the host's own: no host runs them in
// another process. See [engine.IsTrusted].
func (*Engine) RunsInProcess() {}

// Load returns the function that code names. It ignores spaces around the name.
func (e *Engine) Load(_ context.Context, code []byte, cfg engine.Config) (engine.Program, error) {
	name := strings.TrimSpace(string(code))
	fn := e.funcs[name]
	if fn == nil {
		names := slices.Sorted(maps.Keys(e.funcs))
		return nil, engine.BadCode(fmt.Errorf("no function %.100q: the engine has %s", name, strings.Join(names, ", ")))
	}
	return &program{name: name, fn: fn, limits: cfg.Limits.WithDefaults()}, nil
}

type program struct {
	name   string
	fn     Func
	limits engine.Limits
}

// Handle calls the function in the caller's goroutine.
func (p *program) Handle(ctx context.Context, m *engine.Message, s engine.State) (outputs []engine.Output, err error) {
	err = call.Do(p.name, func() (err error) {
		outputs, err = p.fn(ctx, m, s)
		return err
	})
	if ctx.Err() != nil && err != nil {
		err = fmt.Errorf("%w: %w", p.limits.TimeLimit(), err)
	}
	if err != nil {
		return nil, err
	}
	if len(outputs) == 0 {
		return nil, nil
	}
	return outputs, p.limits.Check(outputs)
}

func (p *program) Close() error { return nil }
