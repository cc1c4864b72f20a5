// Package dev runs the code of a hosted worker on this machine, as a host does and
// without a host, a NATS or an operator server.
//
// It uses the engines and package isolate. Begin with [Open] and [Runner.Handle];
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

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/js"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/python"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/wasm"
	"github.com/pleme-io/lifecycle-go/fleet/internal/effects"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Main makes this program able to run code in children. Call it first in main: in a
// child it runs code and never returns. Python is not here: its child is the system's python3.
func Main() { isolate.Main(starlark.New(), js.New(), wasm.New()) }

// Result is what a message causes. Of a message that failed it has no effects.
type Result = operatorv1.TestWorkerResponse

// Runner runs a worker's code. Its methods must not be called concurrently.
type Runner struct {
	spec     *operatorv1.WorkerSpec
	limits   engine.Limits
	program  engine.Program
	state    map[string][]byte
	now      time.Time                   // of the timers: it stands still, and then goes from one timer to the next
	timers   map[string]map[string]Timer // that are set, by key and name
	lines    []string
	messages int
}

// Open loads the code of a spec in a child process. The state is empty. env has the values of the
// variables and secrets that the spec names.
func Open(ctx context.Context, spec *operatorv1.WorkerSpec, env map[string]string) (*Runner, error) {
	engines := []engine.Engine{starlark.New(), js.New(), wasm.New()}
	if strings.Contains(spec.GetMimeType(), "python") {
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
	inner, err := registry.Lookup(spec.GetMimeType())
	if err != nil {
		return nil, err
	}
	mime, _, _ := strings.Cut(spec.GetMimeType(), ";")
	own := spec.GetLimits()
	r := &Runner{
		spec:   spec,
		state:  make(map[string][]byte),
		now:    time.Now(),
		timers: make(map[string]map[string]Timer),
		limits: engine.Limits{
			Time:    own.GetTime().AsDuration(),
			Load:    own.GetLoad().AsDuration(),
			Memory:  own.GetMemory(),
			Output:  own.GetOutput(),
			Outputs: int(own.GetOutputs()),
		},
	}
	children, err := isolate.New(isolate.Config{})
	if err != nil {
		return nil, err
	}
	r.program, err = children.Engine(strings.TrimSpace(mime), inner).Load(ctx, spec.GetCode().GetContent(), engine.Config{
		Worker: spec.GetId(),
		Limits: r.limits,
		Env:    env,
		Log:    func(line string) { r.lines = append(r.lines, line) },
	})
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", spec.GetId(), err)
	}
	return r, nil
}

// Close ends the child.
func (r *Runner) Close() error { return r.program.Close() }

// Handle handles a message. Its changes are there for the next one, unless it failed.
func (r *Runner) Handle(ctx context.Context, header map[string][]string, data []byte) *Result {
	key := r.spec.GetTopic()
	if values := header[r.keyHeader()]; len(values) > 0 && values[0] != "" {
		key = values[0]
	}
	return r.handle(ctx, &engine.Message{Header: header, Data: data}, key)
}

// keyHeader is the header with a message's key.
func (r *Runner) keyHeader() string { return cmp.Or(r.spec.GetKey(), "Lifecycle-Key") }

func (r *Runner) handle(ctx context.Context, m *engine.Message, key string) *Result {
	limits := r.limits.WithDefaults()
	ctx, cancel := context.WithTimeoutCause(ctx, limits.Time, limits.TimeLimit())
	defer cancel()
	r.messages++
	s := &state{Runner: r, key: key}
	s.Handle = effects.Handle{Source: s, MaxTimers: effects.MaxTimers}
	m.Worker, m.ID, m.Topic, m.Attempt = r.spec.GetId(), fmt.Sprint("dev:", r.messages), r.spec.GetTopic(), 1
	began := time.Now()
	outputs, err := r.program.Handle(ctx, m, s)
	result := &Result{Logs: r.lines, Duration: durationpb.New(time.Since(began).Round(time.Microsecond))}
	r.lines = nil
	if err != nil {
		var rejected *engine.RejectError
		result.Error, result.Rejected = err.Error(), errors.As(err, &rejected)
		return result
	}
	for _, o := range outputs {
		out := &operatorv1.TestWorkerResponse_Output{Topic: cmp.Or(o.Topic, r.spec.GetOutputTopic()), Data: o.Data}
		for _, name := range slices.Sorted(maps.Keys(o.Header)) {
			out.Headers = append(out.Headers, &operatorv1.Header{Name: name, Values: o.Header[name]})
		}
		result.Outputs = append(result.Outputs, out)
	}
	s.keep(result)
	return result
}

// state is the State of one message, with what is stored for it.
type state struct {
	effects.Handle
	*Runner
	key string
}

// Value returns the stored value of a key.
func (s *state) Value(_ context.Context, key string) ([]byte, bool, error) {
	v, ok := s.state[key]
	return v, ok, nil
}

// Timers returns the timers of the message's key.
func (s *state) Timers(context.Context) (ofKey map[string]engine.Timer, all int, err error) {
	ofKey = make(map[string]engine.Timer)
	for name, t := range s.timers[s.key] {
		ofKey[name] = engine.Timer{Name: name, At: t.Due}
	}
	for _, of := range s.timers {
		all += len(of)
	}
	return ofKey, all, nil
}

// Now returns the time of the timers.
func (s *state) Now(context.Context) time.Time { return s.now }

// Fetch refuses a request: a host sends it within what its configuration grants.
func (s *state) Fetch(context.Context, *engine.Request) (*engine.Response, error) {
	return nil, errors.New("fetch: workers dev sends no requests; workers test --http does")
}

// Timer is a timer that is set.
type Timer struct {
	Key, Name string
	Due       time.Time
	Data      []byte
}

// String names the timer for people.
func (t Timer) String() string {
	return fmt.Sprintf("timer %s of %s, due %s", t.Name, t.Key, t.Due.Format(time.RFC3339))
}

// Fire handles the timer that is due first, as a host does when its time has come. The
// clock of the timers then shows this time, and no time passes. A timer whose message fails is
// gone; a host would try it again. Fire returns a nil Result when no timer is set.
func (r *Runner) Fire(ctx context.Context) (Timer, *Result) {
	var first *Timer
	for _, of := range r.timers {
		for _, t := range of {
			if first == nil || cmp.Or(t.Due.Compare(first.Due), strings.Compare(t.Key, first.Key), strings.Compare(t.Name, first.Name)) < 0 {
				first = &t
			}
		}
	}
	if first == nil {
		return Timer{}, nil
	}
	t := *first
	delete(r.timers[t.Key], t.Name)
	if t.Due.After(r.now) {
		r.now = t.Due
	}
	header := map[string][]string{}
	if t.Key != r.spec.GetTopic() {
		header[r.keyHeader()] = []string{t.Key}
	}
	return t, r.handle(ctx, &engine.Message{Header: header, Data: t.Data, Timer: &engine.Fired{Name: t.Name, Due: t.Due}}, t.Key)
}

// keep carries out what a message did, and adds it to the result.
func (s *state) keep(result *Result) {
	for key, v := range s.Writes() {
		change := &operatorv1.TestWorkerResponse_Change{Key: key, Value: v, Deleted: v == nil}
		result.Changes = append(result.Changes, change)
		if delete(s.state, key); v != nil {
			s.state[key] = v
		}
	}
	if s.timers[s.key] == nil {
		s.timers[s.key] = make(map[string]Timer)
	}
	of := s.timers[s.key]
	for _, t := range s.TimerChanges() {
		change := &operatorv1.TestWorkerResponse_Timer{Name: t.Name, Data: t.Data, Cancelled: t.Cancelled}
		if delete(of, t.Name); !t.Cancelled {
			of[t.Name] = Timer{Key: s.key, Name: t.Name, Due: t.At, Data: t.Data}
			change.Due = timestamppb.New(t.At)
		}
		result.Timers = append(result.Timers, change)
	}
}
