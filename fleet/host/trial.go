package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/fetch"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// TestRequest is a message to try a worker's code with.
type TestRequest struct {
	// Topic is the message's subject. Defaults to the worker's topic, which then must
	// have no wildcards.
	Topic  string
	Header map[string][]string
	Data   []byte
	// Digest selects a version of the worker's code, as for [Host.Rollback]. Defaults
	// to the current one.
	Digest string
	// Code, or what URL serves, is other code in place of the worker's own.
	Code []byte
	URL  string
	// Signature is the signature of the other code.
	Signature []byte
	// HTTP lets the code send the requests that the worker may send. They take effect.
	HTTP bool
}

// Trial is what a message would cause.
type Trial struct {
	Digest  string          // of the code that ran
	Outputs []engine.Output // with their topics; an empty one means that the output has none
	Changes []StateChange   // in the order in which the keys were first written
	Timers  []TimerChange   // in the order in which they were first set or cancelled
	Lines   []string        // what the code printed, also while it was loaded
	Took    time.Duration   // of the handler
	Err     error           // why the message failed; nil when it was handled
}

// StateChange is a key that a handler writes or deletes.
type StateChange struct {
	Key     string
	Data    []byte
	Deleted bool
}

// Test runs a worker's code with one message, on this host, in a child process that
// ends then. Code of [engine.Trusted] engines and functions run in this process. The
// handler reads the worker's state. Nothing is published and nothing is stored, and the
// worker goes on meanwhile. The message has the attempt 1 and the fencing token 0. The
// error says why the code could not be run; an error of the handler is in the Trial.
func (h *Host) Test(ctx context.Context, id string, req TestRequest) (*Trial, error) {
	rec, code, err := h.trialCode(ctx, id, req)
	if err != nil {
		return nil, fmt.Errorf("test: %w", err)
	}
	m := &engine.Message{
		Worker:  id,
		ID:      "test:" + uid(),
		Topic:   cmp.Or(req.Topic, rec.Topic),
		Attempt: 1,
		Header:  req.Header,
		Data:    req.Data,
	}
	if !engine.ValidTopic(m.Topic) {
		return nil, fmt.Errorf("test: topic %.200q: %w: want the subject of a message", m.Topic, ErrInvalid)
	}
	leave, err := h.budget.tenant(rec.Tenant, h.bounds(rec.Tenant)).enter(ctx, true)
	if err != nil {
		return nil, fmt.Errorf("test worker %s: too many handlers run: %w", id, err)
	}
	defer leave()
	var printed trialLines
	p, err := h.loadCode(ctx, rec, code, false, printed.add)
	if err != nil {
		return nil, fmt.Errorf("test worker %s: %w", id, err)
	}
	t, abandoned := h.tryOut(ctx, rec, p, m, req.HTTP)
	if abandoned == nil {
		h.closeProgram(id, p)
	} else {
		call.Go("test", func() error { <-abandoned.Done(); return nil }, func(error) { h.closeProgram(id, p) })
	}
	t.Lines = printed.all()
	return t, nil
}

// trialCode returns the code to test, and a record that has its digest.
func (h *Host) trialCode(ctx context.Context, id string, req TestRequest) (*Record, []byte, error) {
	rec, err := h.Get(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	if len(req.Code) > 0 || req.URL != "" {
		code, _, err := h.source(ctx, req.Code, req.URL, "")
		rec.Digest, rec.Signature = fetch.Digest(code), req.Signature
		return rec, code, err
	}
	if req.Digest != "" {
		i, err := rec.version(req.Digest)
		if err != nil {
			return nil, nil, err
		}
		rec.Digest, rec.Signature = rec.History[i].Digest, rec.History[i].Signature
	}
	code, err := h.readCode(ctx, rec, rec.Digest)
	return rec, code, err
}

// tryOut calls the handler. It returns the call when the handler does not return.
func (h *Host) tryOut(
	ctx context.Context, rec *Record, p engine.Program, m *engine.Message, web bool,
) (*Trial, *call.Call) {
	t := &Trial{Digest: rec.Digest}
	limits := h.limits(rec)
	ctx, cancel := context.WithTimeoutCause(ctx, limits.Time, limits.TimeLimit())
	defer cancel()
	means, _ := h.granted(rec) // the load has looked
	timers := handleTimers{source: storedTimers{h.states}, clock: h.states.now, key: rec.keyOfMessage(m)}
	state := newHandle(newStateCache(h.states, rec.slot(), 0), rec, means.web, timers, h.maxTimers(rec), "")
	if !web && means.web != nil && means.web.refused == nil {
		state.web = &withoutHTTP
	}
	var outputs []engine.Output // not to be read before the call has ended
	began := time.Now()
	handling := call.Start("handler", func() (err error) {
		outputs, err = p.Handle(ctx, m, state)
		return err
	})
	err := handling.Wait(ctx.Done(), unresponsive)
	t.Took = time.Since(began)
	if t.Err = means.redactor.err(err); hasType[*call.AbandonedError](err) {
		return t, handling
	}
	if err != nil {
		return t, nil
	}
	for _, o := range outputs {
		o.Topic = cmp.Or(o.Topic, rec.OutputTopic)
		t.Outputs = append(t.Outputs, o)
	}
	for _, w := range state.changes() {
		t.Changes = append(t.Changes, StateChange{w.Key, w.Data, w.Deleted})
	}
	t.Timers = state.trialTimers()
	return t, nil
}

// trialLines collects lines. A call that was abandoned may still print.
type trialLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *trialLines) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) < MaxLines {
		l.lines = append(l.lines, strings.Clone(line))
	}
}

func (l *trialLines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines
}

// Rejected reports whether the code rejected the message, which would become a dead
// letter at once.
func (t *Trial) Rejected() bool {
	_, is := errors.AsType[*engine.RejectError](t.Err)
	return is
}
