package host_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
)

// kills is code that ends its child for a message that begins with "bad".
var kills = []byte(`
def handle(message):
    if message.text.startswith("bad"):
        return str(len([0] * (1 << 29)))
    return message.text
`)

// A message that ends the process of the code is tried as often as any other that
// fails, and becomes a dead letter. The host, and the messages after it, go on.
func TestAMessageThatKillsIsADeadLetter(t *testing.T) {
	r := newRig(t)
	r.tune = func(c *host.Config) { c.MaxRetries = 1 }
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", Topic: "work.w", OutputTopic: "out.w", Code: kills})
	create(t, h, host.Spec{ID: "v", Topic: "work.v", OutputTopic: "out.v", Code: prefix("")})
	r.publish("work.w", "one", "bad", "two")
	r.publish("work.v", "neighbour")
	r.wantOutputs("out.w", "one", "two")
	r.wantOutputs("out.v", "neighbour")
	r.eventually("the message is a dead letter", func() bool {
		letters, err := h.DeadLetters(t.Context(), "w", 0, 10)
		return err == nil && len(letters) == 1 && letters[0].Attempts == 2 && strings.Contains(letters[0].Reason, "memory limit")
	})
	if n := h.Isolation().Killed; n != 2 {
		t.Errorf("%d children were killed, want one for each attempt", n)
	}
}

// Messages that end the process of the code put its version into quarantine once there
// are several of them. The next messages wait until an operator starts the worker.
func TestMessagesThatKillPutTheCodeIntoQuarantine(t *testing.T) {
	r := newRig(t)
	r.tune = func(c *host.Config) { c.MaxRetries, c.MaxKills = host.NoRetry, 2 }
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", Topic: "work.w", OutputTopic: "out.w", Code: kills})
	r.publish("work.w", "one", "bad 1", "two", "bad 2")
	r.eventually("the worker is in quarantine", func() bool {
		rec, err := h.Get(t.Context(), "w")
		return err == nil && rec.State == host.StateFailed && strings.Contains(rec.Reason, "2 messages ended the process of the code")
	})
	r.wantOutputs("out.w", "one", "two")
	r.eventually("the messages are dead letters", func() bool {
		letters, err := h.DeadLetters(t.Context(), "w", 0, 10)
		return err == nil && len(letters) == 2
	})
	r.publish("work.w", "three")
	must(t, h.StartWorker(t.Context(), "w"))
	r.wantOutputs("out.w", "one", "two", "three")
}

// Code that loads when it is created, and ends its process when it is loaded later,
// fails its worker. No message is lost to it, and the host counts the loads.
func TestALoadThatKillsFailsTheWorker(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	var due time.Time
	for patience := 2 * time.Second; ; patience *= 2 { // on a busy machine, the first load may be late
		due = time.Now().Add(patience)
		code := fmt.Sprintf("if (Date.now() > %d) 'x'.repeat(2**34); function handle(m) { return m.text }", due.UnixMilli())
		_, err := h.Create(t.Context(), host.Spec{ID: "w", MIMEType: "text/javascript", Topic: "work.w", OutputTopic: "out.w", Code: []byte(code)})
		if err == nil {
			break
		}
		if !errors.Is(err, engine.ErrBadCode) || patience > bound {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Until(due))
	r.publish("work.w", "one")
	r.eventually("the worker has failed", func() bool {
		rec, err := h.Get(t.Context(), "w")
		return err == nil && rec.State == host.StateFailed && strings.Contains(rec.Reason, "the process of the code ended during the load")
	})
	if n := h.Tallies()[0].LoadsFailed; n < 1 {
		t.Errorf("%d loads failed, want some", n)
	}
	must(t, h.LoadCodeFromContent(t.Context(), "w", []byte("function handle(m) { return m.text }")))
	r.wantOutputs("out.w", "one")
	if letters, err := h.DeadLetters(t.Context(), "w", 0, 10); err != nil || len(letters) != 0 {
		t.Errorf("dead letters: %v, %v", letters, err)
	}
}

// Recovery starts no process. The first message does, and the process ends when it has
// been idle.
func TestRecoveryLoadsNothing(t *testing.T) {
	r := newRig(t)
	r.tune = func(c *host.Config) { c.Isolation.Idle = 50 * time.Millisecond }
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", Topic: "work.w", OutputTopic: "out.w", Code: prefix("1")})
	r.stop(h)
	h = r.start("a")
	if s := h.Isolation().Stats; s.Started != 0 || len(h.Local()) != 1 {
		t.Errorf("%+v after recovery of %v, want no child", s, h.Local())
	}
	for i := range 2 {
		r.publish("work.w", fmt.Sprint(i))
		r.eventually("there is an output", func() bool { return len(r.outputs("out.w")) == i+1 })
		r.eventually("the child has ended", func() bool { s := h.Isolation().Stats; return s.Running == 0 && s.Started > uint64(i) })
	}
	r.wantOutputs("out.w", "10", "11")
}

// A host whose children cannot start says so at New. A host that has started knows what
// their containment lacks.
func TestNoProgramForChildren(t *testing.T) {
	r := newRig(t)
	h := r.host("a")
	if missing := h.Isolation().Missing; missing != nil {
		t.Errorf("before the start: %q is missing", missing)
	}
	must(t, h.Start(context.Background()))
	r.eventually("the floor is known", func() bool { return h.Isolation().Missing != nil })
	engines, err := engine.NewRegistry(engine.Trusted(fakeEngine{}))
	must(t, err)
	if _, err := host.New(r.js, host.Config{Engines: engines, Isolation: isolate.Config{Program: "/nowhere"}}); err != nil {
		t.Errorf("a host that trusts its engines needs no program: %v", err)
	}
	engines, err = engine.NewRegistry(fakeEngine{})
	must(t, err)
	if _, err := host.New(r.js, host.Config{Engines: engines, Isolation: isolate.Config{Program: "/nowhere"}}); !errors.Is(err, isolate.ErrNoProgram) {
		t.Errorf("New: %v", err)
	}
}

type fakeEngine struct{}

func (fakeEngine) MIMETypes() []string { return []string{"text/x-fake"} }
func (fakeEngine) Load(context.Context, []byte, engine.Config) (engine.Program, error) {
	return nil, errors.New("not here")
}
