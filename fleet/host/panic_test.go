package host_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	lifecycle "github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// rogue is an engine whose methods panic on request.
type rogue struct {
	inLoad, inHandle, inClose atomic.Bool
	loads, handled, closed    atomic.Int64
	hang                      chan struct{} // if not nil, Load waits for it
}

func (*rogue) MIMETypes() []string { return []string{"text/x-rogue"} }

func (e *rogue) Load(context.Context, []byte, engine.Config) (engine.Program, error) {
	e.loads.Add(1)
	if e.hang != nil {
		<-e.hang
	}
	if e.inLoad.Load() {
		panic("rogue in Load")
	}
	return rogueProgram{e}, nil
}

type rogueProgram struct{ *rogue }

func (p rogueProgram) Handle(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
	p.handled.Add(1)
	if p.inHandle.Load() {
		panic("rogue in Handle")
	}
	return []engine.Output{{Data: m.Data}}, nil
}

func (p rogueProgram) Close() error {
	p.closed.Add(1)
	if p.inClose.Load() {
		panic("rogue in Close")
	}
	return nil
}

func rogueRig(t *testing.T) (*rig, *rogue) {
	t.Helper()
	r, e := newRig(t), new(rogue)
	r.tune = func(c *host.Config) {
		engines, err := engine.NewRegistry(engine.Trusted(e))
		must(t, err)
		c.Engines = engines
	}
	return r, e
}

// An engine that panics while it loads code fails that worker with the panic's
// text. The host goes on, and does not load the same code again at once.
func TestAPanicInLoadFailsTheWorker(t *testing.T) {
	r, e := rogueRig(t)
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", MIMEType: "text/x-rogue", Topic: "work.w", OutputTopic: "out.w", Code: []byte("x")})
	r.publish("work.w", "one")
	r.wantOutputs("out.w", "one")

	r.stop(h)
	e.inLoad.Store(true)
	e.loads.Store(0)
	h = r.host("a")
	must(t, h.Start(context.Background()))
	r.eventually("the worker has failed", func() bool {
		rec, err := h.Get(t.Context(), "w")
		return err == nil && rec.State == host.StateFailed && strings.Contains(rec.Reason, "panic: rogue in Load")
	})
	r.eventually("the host's check says so", func() bool {
		err := h.Check(t.Context())
		return err != nil && strings.Contains(err.Error(), "rogue in Load")
	})
	// The change of the record wakes the slot again, and the slot must not load the
	// code because of it.
	r.eventually("the slot has acted on it", func() bool { return h.Applied("w", host.StateFailed) })
	if n := h.Tallies()[0].LoadsFailed; n != 1 || e.loads.Load() != 1 {
		t.Errorf("%d of %d loads failed, want 1 of 1", n, e.loads.Load())
	}

	e.inLoad.Store(false)
	must(t, h.StartWorker(t.Context(), "w"))
	r.publish("work.w", "two")
	r.wantOutputs("out.w", "one", "two")

	e.inLoad.Store(true)
	if err := h.LoadCodeFromContent(t.Context(), "w", []byte("y")); err == nil || !strings.Contains(err.Error(), "rogue in Load") {
		t.Errorf("other code: %v", err)
	}
	r.publish("work.w", "three")
	r.wantOutputs("out.w", "one", "two", "three")
}

// A panic of a program while it handles a message is one failed attempt. A program that
// panics in Close counts as closed.
func TestAPanicInAProgramFailsTheMessage(t *testing.T) {
	r, e := rogueRig(t)
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", MIMEType: "text/x-rogue", Topic: "work.w", OutputTopic: "out.w", Code: []byte("x")})
	e.inHandle.Store(true)
	e.inClose.Store(true)
	r.publish("work.w", "bad")
	r.eventually("the message is a dead letter", func() bool {
		letters, err := h.DeadLetters(t.Context(), "w", 0, 10)
		return err == nil && len(letters) == 1 && strings.Contains(letters[0].Reason, "panic: rogue in Handle")
	})
	if n := h.Tallies()[0].Failed; n != uint64(e.handled.Load()) || n < 2 {
		t.Errorf("%d attempts failed, %d were made", n, e.handled.Load())
	}
	e.inHandle.Store(false)
	r.publish("work.w", "good")
	r.wantOutputs("out.w", "good")
	must(t, h.StopWorker(t.Context(), "w"))
	must(t, h.StartWorker(t.Context(), "w"))
	r.publish("work.w", "better")
	r.wantOutputs("out.w", "good", "better")
}

// The host abandons an engine that does not return in time, and names it in the error.
// It closes a program that the engine returns later.
func TestALoadThatDoesNotReturnIsAbandoned(t *testing.T) {
	r, e := rogueRig(t)
	h := r.start("a")
	e.hang = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // once the engine loads
		for e.loads.Load() == 0 && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	_, err := h.Create(ctx, host.Spec{ID: "w", MIMEType: "text/x-rogue", Topic: "work.w", OutputTopic: "out.w", Code: []byte("x")})
	if left := new(lifecycle.AbandonedError); !errors.As(err, &left) || left.Name != "engine" || !strings.Contains(left.Stack, "rogue).Load") {
		t.Errorf("Create: %v", err)
	}
	close(e.hang)
	r.eventually("the late program is closed", func() bool { return e.closed.Load() == 1 })
}
