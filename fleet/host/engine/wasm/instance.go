package wasm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strconv"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/sys"
)

// streams belong to the message in progress.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// config returns the configuration of an instance. Its streams are always the ones of the
// message in progress.
func (p *program) config() wazero.ModuleConfig {
	config := wazero.NewModuleConfig().WithName("").WithStartFunctions().
		WithStdin(readFunc(func(b []byte) (int, error) { return p.current.in.Read(b) })).
		WithStdout(writeFunc(func(b []byte) (int, error) { return p.current.out.Write(b) })).
		WithStderr(writeFunc(func(b []byte) (int, error) { return p.current.err.Write(b) })).
		WithSysNanotime().WithSysWalltime().WithRandSource(rand.Reader).
		WithOsyield(runtime.Gosched)
	for _, name := range slices.Sorted(maps.Keys(p.cfg.Env)) {
		config = config.WithEnv(name, p.cfg.Env[name])
	}
	return config
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(b []byte) (int, error) { return f(b) }

// run runs the module with a message, and reports whether its memory is full then.
func (p *program) run(ctx context.Context, m *engine.Message) (full bool, err error) {
	if p.keeps {
		return p.runKept(ctx)
	}
	config := p.config().
		WithEnv("LIFECYCLE_WORKER", m.Worker).
		WithEnv("LIFECYCLE_MESSAGE_ID", m.ID).
		WithEnv("LIFECYCLE_TOPIC", m.Topic).
		WithEnv("LIFECYCLE_ATTEMPT", strconv.Itoa(m.Attempt)).
		WithEnv("LIFECYCLE_FENCE", strconv.FormatUint(m.Fence, 10))
	if parent := m.Trace().Parent; parent != "" {
		config = config.WithEnv("TRACEPARENT", parent)
	}
	if t := m.Timer; t != nil {
		config = config.
			WithEnv("LIFECYCLE_TIMER", t.Name).
			WithEnv("LIFECYCLE_TIMER_DUE", strconv.FormatInt(t.Due.UnixMilli(), 10))
	}
	mod, err := p.runtime.InstantiateModule(ctx, p.module, config)
	if err != nil {
		return false, fmt.Errorf("instantiate: %w", err)
	}
	defer mod.Close(context.WithoutCancel(ctx))
	_, err = mod.ExportedFunction("_start").Call(ctx)
	return p.full(mod), err
}

// runKept calls the function handle of the kept instance. It drops the instance when
// the call does not return, or ends with a status.
func (p *program) runKept(ctx context.Context) (full bool, err error) {
	if p.instance == nil {
		config := p.config().WithStartFunctions("_initialize")
		if p.instance, err = p.runtime.InstantiateModule(ctx, p.module, config); err != nil {
			p.instance = nil
			return false, fmt.Errorf("instantiate: %w", err)
		}
		p.handle = p.instance.ExportedFunction("handle")
	}
	results, err := p.handle.Call(ctx)
	full = p.full(p.instance)
	if err != nil || ctx.Err() != nil {
		return full, errors.Join(err, p.drop(ctx))
	}
	if len(results) == 1 {
		if status := api.DecodeU32(results[0]); status != 0 {
			return full, sys.NewExitError(status)
		}
	}
	return full, nil
}

func (p *program) drop(ctx context.Context) error {
	mod := p.instance
	p.instance, p.handle = nil, nil
	return mod.Close(context.WithoutCancel(ctx))
}

// full reports whether memory is full: when it grows in small steps and a step is
// refused, less than an eighth of the limit is free.
func (p *program) full(mod api.Module) bool {
	memory := mod.Memory()
	return memory != nil && uint64(memory.Size()) >= uint64(p.pages)*pageSize/8*7
}

// field returns a field of the message by its name in the function header.
func field(m *engine.Message, name string) (string, bool) {
	switch name {
	case ":worker":
		return m.Worker, true
	case ":id":
		return m.ID, true
	case ":topic":
		return m.Topic, true
	case ":attempt":
		return strconv.Itoa(m.Attempt), true
	case ":trace":
		parent := m.Trace().Parent
		return parent, parent != ""
	case ":fence":
		return strconv.FormatUint(m.Fence, 10), true
	case ":timer", ":timer-due":
		if m.Timer == nil {
			return "", false
		}
		if name == ":timer" {
			return m.Timer.Name, true
		}
		return strconv.FormatInt(m.Timer.Due.UnixMilli(), 10), true
	}
	if values := m.Header[name]; len(values) > 0 {
		return values[0], true
	}
	return "", false
}
