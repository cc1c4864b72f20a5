// Package dev runs the code of a hosted worker on this machine, as a host does and
// without a host, a NATS or an operator server.
//
// It stands on the engines and on package isolate. Begin with [Open] and [Runner.Handle];
// package workers has the command.
package dev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/js"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/python"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/wasm"
	"github.com/pleme-io/lifecycle-go/fleet/host/outbound"
)

// Main makes this program able to run code in children. Call it first in main: in a
// child it runs code and never returns.
func Main() { isolate.Main(starlark.New(), js.New(), wasm.New()) }

// Worker is what runs.
type Worker struct {
	ID, MIMEType, Topic, OutputTopic string
	Key                              string // the header with a message's key
	Limits                           engine.Limits
	Env                              map[string]string // variables and secrets
	HTTP                             *HTTP             // nil for no requests
	Code                             []byte
}

// HTTP says which requests the code may send.
type HTTP struct {
	Allow    []string          // patterns of URLs
	Secrets  map[string]string // for headers
	Networks []string          // that requests may reach although they are not public
}

// Result is what a message causes.
type Result struct {
	Outputs []engine.Output // an output without a topic would be discarded
	Changes []Change        // of the state, sorted by key
	Timers  []Timer         // that were set or cancelled, sorted by name
	Lines   []string        // that the code printed
	Took    time.Duration
	Err     error // why the message failed; its outputs and changes then have no effect
}

// Change is a key that is written or deleted.
type Change struct {
	Key     string
	Data    []byte
	Deleted bool
}

// Runner runs a worker's code. Its methods must not be called concurrently.
type Runner struct {
	worker   Worker
	program  engine.Program
	state    map[string][]byte
	timers   timers
	lines    []string
	messages int
	client   *outbound.Client
	scope    outbound.Scope
}

// Open loads the code of a worker in a child process. The state is empty.
func Open(ctx context.Context, w Worker) (*Runner, error) {
	engines := []engine.Engine{starlark.New(), js.New(), wasm.New()}
	if strings.Contains(w.MIMEType, "python") {
		py, err := python.New()
		if err != nil {
			return nil, err
		}
		engines = append(engines, py)
	}
	registry, err := engine.NewRegistry(engines...)
	if err != nil {
		return nil, err
	}
	inner, err := registry.Lookup(w.MIMEType)
	if err != nil {
		return nil, err
	}
	mime, _, _ := strings.Cut(w.MIMEType, ";")
	r := &Runner{worker: w, state: make(map[string][]byte), timers: timers{time.Now(), make(map[string]map[string]Timer)}}
	if err := r.allow(w.HTTP); err != nil {
		return nil, err
	}
	children, err := isolate.New(isolate.Config{})
	if err != nil {
		return nil, err
	}
	r.program, err = children.Engine(strings.TrimSpace(mime), inner).Load(ctx, w.Code, engine.Config{
		Worker: w.ID, Limits: w.Limits, Env: w.Env, Log: func(line string) { r.lines = append(r.lines, line) },
	})
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", w.ID, err)
	}
	return r, nil
}

// Handle handles a message. Its changes are there for the next one, unless it failed.
func (r *Runner) Handle(ctx context.Context, header map[string][]string, data []byte) Result {
	key := r.worker.Topic
	if values := header[r.keyHeader()]; len(values) > 0 && values[0] != "" {
		key = values[0]
	}
	return r.handle(ctx, &engine.Message{Header: header, Data: data}, key)
}

func (r *Runner) handle(ctx context.Context, m *engine.Message, key string) Result {
	limits := r.worker.Limits.WithDefaults()
	ctx, cancel := context.WithTimeoutCause(ctx, limits.Time, limits.TimeLimit())
	defer cancel()
	r.messages++
	s := &state{runner: r, stored: r.state, staged: make(map[string]*Change), timers: &r.timers, key: key, edits: make(map[string]Timer)}
	m.Worker, m.ID, m.Topic, m.Attempt = r.worker.ID, fmt.Sprint("dev:", r.messages), r.worker.Topic, 1
	began := time.Now()
	outputs, err := r.program.Handle(ctx, m, s)
	result := Result{Lines: r.lines, Took: time.Since(began), Err: err}
	r.lines = nil
	if err != nil {
		return result
	}
	for _, o := range outputs {
		o.Topic = cmp.Or(o.Topic, r.worker.OutputTopic)
		result.Outputs = append(result.Outputs, o)
	}
	for _, key := range slices.Sorted(maps.Keys(s.staged)) {
		c := s.staged[key]
		result.Changes = append(result.Changes, *c)
		if delete(r.state, key); !c.Deleted {
			r.state[key] = c.Data
		}
	}
	result.Timers = s.keep()
	return result
}

func (r *Runner) allow(h *HTTP) (err error) {
	if h == nil {
		return nil
	}
	for _, text := range h.Allow {
		p, err := outbound.Parse(text)
		if err != nil {
			return fmt.Errorf("http.allow: %w", err)
		}
		r.scope.Allow = append(r.scope.Allow, p)
	}
	r.scope.Secrets = h.Secrets
	r.client, err = outbound.New(outbound.Policy{}, h.Networks)
	return err
}

// Close ends the child.
func (r *Runner) Close() error {
	if r.client != nil {
		r.client.Close()
	}
	return r.program.Close()
}

// state is the State of one message.
type state struct {
	runner *Runner
	stored map[string][]byte
	staged map[string]*Change
	timers *timers
	key    string
	edits  map[string]Timer // by name
}

func (s *state) Get(_ context.Context, key string) ([]byte, bool, error) {
	if c := s.staged[key]; c != nil {
		return slices.Clone(c.Data), !c.Deleted, nil
	}
	v, ok := s.stored[key]
	return slices.Clone(v), ok, engine.CheckKey(key)
}

func (s *state) Put(_ context.Context, key string, v []byte) error {
	return s.set(&Change{Key: key, Data: slices.Clone(v)})
}

func (s *state) Delete(_ context.Context, key string) error {
	return s.set(&Change{Key: key, Deleted: true})
}

func (s *state) set(c *Change) error {
	if err := engine.CheckKey(c.Key); err != nil {
		return err
	}
	s.staged[c.Key] = c
	return nil
}

func (s *state) Fetch(ctx context.Context, r *engine.Request) (*engine.Response, error) {
	if s.runner.client == nil {
		return nil, errors.New("fetch: workers dev sends requests only with --http")
	}
	return s.runner.client.Do(ctx, &s.runner.scope, r)
}
