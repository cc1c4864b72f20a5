// Package wasm is the engine for WebAssembly (wazero). It runs any language that
// compiles to a WASI command, in a sandbox and with exact limits.
//
// # The minimal contract
//
// A module is a WASI command (preview 1): it exports _start and its memory. The
// engine makes a new instance for each message, so only state carries values from
// one message to the next. A module that exports handle in place of _start keeps its
// instance: see below. The instance reads the message's data from standard
// input. The host publishes its standard output, unless that is empty, to the
// worker's output topic. Its exit status is the result:
//
//	0      handled
//	65     rejected: not tried again (EX_DATAERR of sysexits.h)
//	other  failed: tried again
//
// The end of standard error is the reason. All of standard error goes to the log.
// The environment has LIFECYCLE_WORKER, LIFECYCLE_MESSAGE_ID, LIFECYCLE_TOPIC,
// LIFECYCLE_ATTEMPT, LIFECYCLE_FENCE and the worker's variables. There are no files, no arguments and no
// network; clocks and random numbers are real.
//
// # The richer contract
//
// A module may import these functions from the module "lifecycle". Each
// pointer is followed by the length of its data in bytes. All parameters and results are
// i32:
//
//	header(name, name_len, buf, buf_len)       the length of the header's first value, or -1
//	state_get(key, key_len, buf, buf_len)      the length of the value, or -1 for none
//	state_put(key, key_len, value, value_len)  0
//	state_delete(key, key_len)                 0
//	publish(topic, topic_len, data, data_len, headers, headers_len)  0
//	fetch(method, method_len, url, url_len, headers, headers_len, body, body_len)  the status, or -1 when there is no response
//	fetch_body(buf, buf_len)                   the length of its body, or of the reason for -1
//	fetch_header(name, name_len, buf, buf_len) the length of the header's first value, or -1
//	timer_set(name, name_len, when, when_len, data, data_len)        0
//	timer_cancel(name, name_len)            0
//	timer_list(buf, buf_len)                the length of the list
//
// fetch sends an HTTP request that the worker's spec allows; fetch_body and fetch_header
// read its response.
//
// timer_set sets a timer for the message's key. when is text: milliseconds from now, such
// as 60000, or with @ before them milliseconds since 1970. timer_list fills buf with a
// line for each timer of the key: when it is due, in milliseconds since 1970, a space and
// its name. When a timer is due, the module gets a message with its data. The variables
// LIFECYCLE_TIMER and LIFECYCLE_TIMER_DUE, and the function header under ":timer" and
// ":timer-due", then have its name and when it was due. Other messages have none.
//
// The functions with a buf fill it up to buf_len. When the result is larger than
// buf_len, call again with a larger buf. headers are lines "Name: value". A call
// that fails, because of a pointer outside of memory, a bad key or a state that
// cannot be reached, ends the instance; the message has failed, with that reason.
// In Go, declare these functions with //go:wasmimport; see the package's tests.
//
// # An instance for many messages
//
// A module that exports a function handle without parameters, and its memory, is a WASI
// reactor. The engine makes one instance, calls _initialize if the module exports it, and
// then handle for each message. handle returns nothing or an i32, the exit status of the
// minimal contract. Memory, globals and tables last from one message to the next, but
// may be lost at any time. The engine drops an instance after a trap, an exit, and a
// message that broke a limit. The environment has the worker's variables; the function header has the
// message's fields under the names ":worker", ":id", ":topic", ":attempt", ":fence" and ":trace".
//
// Begin with [Engine.Load].
package wasm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	foreign "github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"
)

// MIMEType is the type of WebAssembly (WebAssembly Web API, section 8).
const MIMEType = "application/wasm"

// RejectStatus is the exit status with which a module makes the message a dead
// letter.
const RejectStatus = 65

const pageSize = 65536

// Engine runs WebAssembly. It keeps compiled modules, so that
// the same code loads quickly again.
type Engine struct {
	cache wazero.CompilationCache
}

// New returns the engine.
func New() *Engine { return &Engine{cache: wazero.NewCompilationCache()} }

// MIMETypes returns [MIMEType].
func (*Engine) MIMETypes() []string { return []string{MIMEType} }

// Load compiles code and runs none of it.
func (e *Engine) Load(ctx context.Context, code []byte, cfg engine.Config) (engine.Program, error) {
	cfg.Limits = cfg.Limits.WithDefaults()
	pages := uint32(min(max(cfg.Limits.Memory/pageSize, 1), 65536))
	config := wazero.NewRuntimeConfig().WithCompilationCache(e.cache).
		WithMemoryLimitPages(pages).WithCloseOnContextDone(!cfg.Disposable)
	p := &program{cfg: cfg, pages: pages, runtime: wazero.NewRuntimeWithConfig(ctx, config)}
	err := foreign.Do(cfg.Worker, func() error { return p.load(ctx, code) })
	if err != nil {
		_ = p.Close()
		return nil, engine.BadCode(err)
	}
	return p, nil
}

type program struct {
	cfg     engine.Config
	pages   uint32
	runtime wazero.Runtime
	module  wazero.CompiledModule
	close   sync.Once

	keeps    bool       // the instance
	instance api.Module // kept; nil before the first message and after a failure
	handle   api.Function
	current  streams // of the message in progress
}

func (p *program) load(ctx context.Context, code []byte) error {
	if _, err := wasi_snapshot_preview1.Instantiate(ctx, p.runtime); err != nil {
		return fmt.Errorf("instantiate WASI: %w", err)
	}
	if err := p.exportHost(ctx); err != nil {
		return fmt.Errorf("instantiate lifecycle: %w", err)
	}
	var err error
	if p.module, err = p.runtime.CompileModule(ctx, code); err != nil {
		return fmt.Errorf("compile: %w", err)
	}
	if handle := p.module.ExportedFunctions()["handle"]; handle != nil {
		p.keeps = true
		results := handle.ResultTypes()
		isStatus := len(results) == 1 && results[0] == api.ValueTypeI32
		if len(handle.ParamTypes()) > 0 || len(results) > 0 && !isStatus {
			return errors.New("its function handle has parameters or results: want no parameters, and no result or an i32")
		}
	} else {
		start := p.module.ExportedFunctions()["_start"]
		if start == nil || len(start.ParamTypes())+len(start.ResultTypes()) > 0 {
			return errors.New("it exports no _start without parameters: build it as a WASI command")
		}
	}
	if p.module.ExportedMemories()["memory"] == nil {
		return errors.New(`it exports no memory with the name "memory"`)
	}
	for _, f := range p.module.ImportedFunctions() {
		from, name, _ := f.Import()
		if m := p.runtime.Module(from); m == nil || m.ExportedFunctionDefinitions()[name] == nil {
			return fmt.Errorf("it imports %s.%s, which does not exist: want imports of WASI preview 1 and lifecycle", from, name)
		}
	}
	return nil
}

// Close frees the memory of the compiled code.
func (p *program) Close() (err error) {
	p.close.Do(func() { err = p.runtime.Close(context.Background()) })
	return err
}

// call is the handling of one message. The functions that a module imports find
// it in their context.
type call struct {
	message  *engine.Message
	state    engine.State
	outputs  []engine.Output
	size     int64
	limits   engine.Limits
	response *engine.Response // to the last request
	end      context.CancelCauseFunc
	why      error // with which an imported function ended the call
}

type callKey struct{}

// stop ends the instance, with err as the reason.
func (c *call) stop(err error) {
	if c.why == nil {
		c.why = err
	}
	c.end(err)
}

// errStopped is the panic that unwinds the guest's frames when a host function
// has ended the call.
var errStopped = errors.New("stopped by the host")

// add counts n bytes of output against the limit.
func (c *call) add(n int) error {
	c.size += int64(n)
	if c.size > c.limits.Output {
		return c.limits.OutputLimit()
	}
	return nil
}

// Handle runs the module with one message.
func (p *program) Handle(parent context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
	ctx, end := context.WithCancelCause(parent)
	defer end(nil)
	c := &call{message: m, state: s, limits: p.cfg.Limits, end: end}
	ctx = context.WithValue(ctx, callKey{}, c)
	var stdout bytes.Buffer
	printer := engine.NewPrinter(p.cfg)
	defer printer.Close()
	var tail tail
	p.current = streams{bytes.NewReader(m.Data), writer(func(b []byte) error {
		stdout.Write(b)
		return c.add(len(b))
	}, c), writer(func(b []byte) error {
		_, _ = tail.Write(b) // it never fails
		_, err := printer.Write(b)
		return err
	}, c)}
	var full bool // the memory is full
	err := foreign.Do(p.cfg.Worker, func() (err error) {
		full, err = p.run(ctx, m)
		return err
	})
	var exit *sys.ExitError
	status := -1
	if errors.As(err, &exit) {
		status = int(exit.ExitCode())
	}
	switch {
	case c.why != nil:
		return nil, c.why
	case parent.Err() != nil:
		return nil, fmt.Errorf("%w: %w", p.cfg.Limits.TimeLimit(), context.Cause(parent))
	case err == nil || status == 0:
	case status == RejectStatus:
		return nil, engine.Reject(tail.reason("exit status 65"))
	case full || strings.Contains(tail.String(), "out of memory"):
		return nil, fmt.Errorf("%w: %w", p.cfg.Limits.MemoryLimit(), err)
	case status > 0:
		return nil, fmt.Errorf("exit status %d: %s", status, tail.reason("nothing on standard error"))
	default:
		return nil, err
	}
	if stdout.Len() > 0 {
		c.outputs = append(c.outputs, engine.Output{Data: stdout.Bytes()})
	}
	return c.outputs, p.cfg.Limits.Check(c.outputs)
}

// writer turns the function into an io.Writer. An error ends the call, also in a
// process that is disposable, where the end of a context does not.
func writer(write func([]byte) error, c *call) io.Writer {
	return writeFunc(func(b []byte) (int, error) {
		if err := write(b); err != nil {
			c.stop(err)
			panic(errStopped)
		}
		return len(b), nil
	})
}

type writeFunc func([]byte) (int, error)

func (f writeFunc) Write(b []byte) (int, error) { return f(b) }

// tail keeps the last bytes of standard error.
type tail struct{ bytes.Buffer }

const maxTail = 2048

func (t *tail) Write(b []byte) (int, error) {
	t.Buffer.Write(b)
	if over := t.Len() - maxTail; over > 0 {
		t.Next(over)
	}
	return len(b), nil
}

// reason returns the end of standard error as one line, or a text that says that
// it is empty.
func (t *tail) reason(empty string) string {
	text := strings.TrimSpace(strings.ToValidUTF8(t.String(), "\uFFFD"))
	if text == "" {
		return empty
	}
	return text
}

// hostFunction is a function that a module may import. Each text has the data of a pointer
// and a length. It returns the result, or writes it with out.
type hostFunction func(ctx context.Context, c *call, texts [][]byte, out buffer) (int32, error)

// hostFunctions are the functions of the module "lifecycle", with how many texts they take,
// and whether a buffer for their result follows.
var hostFunctions = []struct {
	name  string
	texts int
	fills bool
	call  hostFunction
}{
	{"header", 1, true, header},
	{"state_get", 1, true, stateGet},
	{"state_put", 2, false, statePut},
	{"state_delete", 1, false, stateDelete},
	{"publish", 3, false, publish},
	{"fetch", 4, false, fetch},
	{"fetch_body", 0, true, fetchBody},
	{"fetch_header", 1, true, fetchHeader},
	{"timer_set", 3, false, timerSet},
	{"timer_cancel", 1, false, timerCancel},
	{"timer_list", 0, true, timerList},
}

// exportHost instantiates the module "lifecycle".
func (p *program) exportHost(ctx context.Context) error {
	b := p.runtime.NewHostModuleBuilder("lifecycle")
	for _, f := range hostFunctions {
		params := 2 * f.texts
		if f.fills {
			params += 2
		}
		types := slices.Repeat([]api.ValueType{api.ValueTypeI32}, params)
		called := api.GoModuleFunc(func(ctx context.Context, mod api.Module, stack []uint64) {
			c, ok := ctx.Value(callKey{}).(*call)
			if !ok {
				panic(errStopped)
			}
			texts := make([][]byte, f.texts)
			out := buffer{memory: mod.Memory()}
			var err error
			for i := range texts {
				if err == nil {
					texts[i], err = out.read(stack[2*i], stack[2*i+1])
				}
			}
			if f.fills {
				out.at, out.size = uint32(stack[params-2]), uint32(stack[params-1])
			}
			var result int32
			if err == nil {
				result, err = f.call(ctx, c, texts, out)
			}
			if err != nil {
				c.stop(fmt.Errorf("lifecycle.%s: %w", f.name, err))
				panic(errStopped)
			}
			stack[0] = api.EncodeI32(result)
		})
		b.NewFunctionBuilder().WithGoModuleFunction(called, types, []api.ValueType{api.ValueTypeI32}).Export(f.name)
	}
	_, err := b.Instantiate(ctx)
	return err
}

// buffer is a part of a module's memory.
type buffer struct {
	memory   api.Memory
	at, size uint32
}

// read returns the memory at a pointer. It is a view of the guest's memory, not a copy.
func (b buffer) read(at, size uint64) ([]byte, error) {
	text, ok := b.memory.Read(uint32(at), uint32(size))
	if !ok {
		return nil, fmt.Errorf("%d bytes at %d are not in the module's memory", uint32(size), uint32(at))
	}
	return text, nil
}

// fill writes as much of v as fits, and returns the length of v.
func (b buffer) fill(v []byte) (int32, error) {
	part := v[:min(int64(len(v)), int64(b.size))]
	if !b.memory.Write(b.at, part) {
		return 0, fmt.Errorf("%d bytes at %d are not in the module's memory", len(part), b.at)
	}
	return int32(len(v)), nil
}

func header(_ context.Context, c *call, texts [][]byte, out buffer) (int32, error) {
	value, ok := field(c.message, string(texts[0]))
	if !ok {
		return -1, nil
	}
	return out.fill([]byte(value))
}

func stateGet(ctx context.Context, c *call, texts [][]byte, out buffer) (int32, error) {
	v, ok, err := c.state.Get(ctx, string(texts[0]))
	if err != nil || !ok {
		return -1, err
	}
	return out.fill(v)
}

func statePut(ctx context.Context, c *call, texts [][]byte, _ buffer) (int32, error) {
	return 0, c.state.Put(ctx, string(texts[0]), bytes.Clone(texts[1]))
}

func stateDelete(ctx context.Context, c *call, texts [][]byte, _ buffer) (int32, error) {
	return 0, c.state.Delete(ctx, string(texts[0]))
}

func publish(_ context.Context, c *call, texts [][]byte, _ buffer) (int32, error) {
	topic, data, lines := texts[0], texts[1], texts[2]
	if err := c.add(len(topic) + len(data) + len(lines)); err != nil {
		return 0, err
	}
	if len(c.outputs) >= c.limits.Outputs {
		return 0, &engine.LimitError{What: "outputs", Limit: fmt.Sprintf("%d messages", c.limits.Outputs)}
	}
	header, err := parseHeaders(string(lines))
	c.outputs = append(c.outputs, engine.Output{Topic: string(topic), Data: bytes.Clone(data), Header: header})
	return 0, err
}

// parseHeaders reads lines "Name: value". It skips empty lines.
func parseHeaders(lines string) (map[string][]string, error) {
	var h map[string][]string
	for line := range strings.SplitSeq(lines, "\n") {
		line = strings.TrimSuffix(line, "\r")
		if line == "" {
			continue
		}
		name, v, ok := strings.Cut(line, ":")
		if !ok {
			return nil, fmt.Errorf("header line %.100q has no colon: write \"Name: value\"", line)
		}
		if h == nil {
			h = make(map[string][]string)
		}
		h[name] = append(h[name], strings.TrimSpace(v))
	}
	return h, nil
}
