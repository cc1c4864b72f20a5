package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// TestStateOfAnotherStream checks that a host does not mistake a message for an
// earlier one with the same sequence. The test creates a worker again on another
// stream, and a stream again under its old name.
func TestStateOfAnotherStream(t *testing.T) {
	r := newRig(t)
	req := r.native("w", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		return text(string(m.Data)), s.Put(ctx, "last", m.Data)
	})
	stream := func(name, subject string) {
		t.Helper()
		r.eventually("the stream "+name, func() bool { // the server removes files of one before a moment later
			_, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}})
			return err == nil
		})
	}
	stream("ONE", "one")
	stream("TWO", "two")
	h := r.start("a")
	states, err := r.js.Stream(t.Context(), "HOST_STATE")
	must(t, err)
	handled := 0
	handle := func(topic, data string) {
		t.Helper()
		req.Topic = topic
		create(t, h, req)
		rec, err := h.Get(t.Context(), "w")
		must(t, err)
		r.publish(topic, data)
		handled++
		r.eventually(data+" is handled", func() bool { return len(r.outputs("out.w")) == handled })
		r.eventually("the state of "+data+" is written", func() bool {
			m, err := states.GetLastMsgForSubject(t.Context(), "$host.state.w-w.kv."+rec.UID+".last")
			return err == nil && string(m.Data) == data
		})
		must(t, h.Delete(t.Context(), "w"))
	}
	handle("one", "first")
	handle("two", "second")
	must(t, r.js.DeleteStream(t.Context(), "ONE"))
	stream("ONE", "one")
	handle("one", "third")
}

// interposed is a JetStream that does something else before a call.
type interposed struct {
	jetstream.JetStream
	beforeCreateConsumer func()
}

func (i *interposed) CreateConsumer(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if f := i.beforeCreateConsumer; f != nil {
		i.beforeCreateConsumer = nil
		f()
	}
	return i.JetStream.CreateConsumer(ctx, stream, cfg)
}

// TestCreateUndoesItsOwn checks that a creation whose worker was deleted meanwhile
// does not remove a newer worker with the same id.
func TestCreateUndoesItsOwn(t *testing.T) {
	r := newRig(t)
	other := r.start("a")
	between := &interposed{JetStream: r.js}
	r.js = between
	h := r.host("b")
	req := host.Spec{ID: "w", MIMEType: "text/x-starlark", Topic: "work.w", OutputTopic: "out.w", Code: prefix("first ")}
	between.beforeCreateConsumer = func() {
		must(t, other.Delete(t.Context(), "w"))
		req.Code = prefix("second ")
		create(t, other, req)
	}
	if _, err := h.Create(t.Context(), req); !errors.Is(err, host.ErrNotFound) {
		t.Errorf("Create: %v", err)
	}
	rec, err := other.Get(t.Context(), "w")
	must(t, err)
	if rec.State != host.StateRunning {
		t.Errorf("the second life is %s", rec.State)
	}
	r.publish("work.w", "x")
	r.wantOutputs("out.w", "second x")
	must(t, other.Delete(t.Context(), "w"))
	if left := r.leftovers(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestCodeOfADeletedWorker checks that an update of a worker that is deleted meanwhile
// leaves no code behind.
func TestCodeOfADeletedWorker(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", Topic: "work.w", Code: prefix("")})
	between := &publishing{JetStream: r.js, before: func() { must(t, h.Delete(t.Context(), "w")) }}
	r.js = between
	if err := r.host("b").LoadCodeFromContent(t.Context(), "w", prefix("new")); !errors.Is(err, host.ErrNotFound) {
		t.Errorf("update: %v", err)
	}
	if left := r.leftovers(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestCodeForADeletedRecord is [TestCodeOfADeletedWorker] for a worker whose record is Deleted already and
// not removed yet.
func TestCodeForADeletedRecord(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", Topic: "work.w", Code: prefix("")})
	r.stop(h)
	records, err := r.js.KeyValue(t.Context(), "HOST_WORKERS")
	must(t, err)
	stored := func() []string {
		s, err := r.js.Stream(t.Context(), "HOST_CODE")
		must(t, err)
		info, err := s.Info(t.Context(), jetstream.WithSubjectFilter(">"))
		must(t, err)
		return slices.Collect(maps.Keys(info.State.Subjects))
	}
	r.js = &publishing{JetStream: r.js, before: func() {
		entry, err := records.Get(t.Context(), "w")
		must(t, err)
		was := string(entry.Value())
		deleted := strings.Replace(was, `"phase":"Running"`, `"phase":"Deleted"`, 1)
		if deleted == was {
			t.Fatalf("the record is %s", was)
		}
		_, err = records.PutString(t.Context(), "w", deleted)
		must(t, err)
	}}
	if err := r.host("b").LoadCodeFromContent(t.Context(), "w", prefix("new")); !errors.Is(err, workflow.ErrTerminalPhase) {
		t.Errorf("update: %v", err)
	}
	if left := stored(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// publishing does something before the first chunk of code is stored.
type publishing struct {
	jetstream.JetStream
	before func()
}

func (p *publishing) PublishMsg(ctx context.Context, m *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	if f := p.before; f != nil && strings.Contains(m.Subject, ".code.") {
		p.before = nil
		f()
	}
	return p.JetStream.PublishMsg(ctx, m, opts...)
}

// TestStopWhileStarting checks that Stop may be called while Start runs.
func TestStopWhileStarting(t *testing.T) {
	r := newRig(t)
	for i := range 50 {
		h := r.host(fmt.Sprint("h", i))
		var wg sync.WaitGroup
		wg.Go(func() { _ = h.Start(context.Background()) }) // an error when Stop came first
		wg.Go(func() { r.stop(h) })
		wg.Wait()
		r.stop(h)
	}
}

// TestRecoverAgain checks that Recover returns the errors of its own attempt and not
// earlier ones, and that it returns an error on a host that is not running.
func TestRecoverAgain(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	req := host.Spec{ID: "w", Topic: "work.w", Code: prefix("")}
	create(t, h, req)
	r.stop(h)
	code, err := r.js.Stream(t.Context(), "HOST_CODE")
	must(t, err)
	info, err := code.Info(t.Context(), jetstream.WithSubjectFilter(">"))
	must(t, err)
	var chunk *jetstream.RawStreamMsg
	for subject := range info.State.Subjects {
		chunk, err = code.GetLastMsgForSubject(t.Context(), subject)
		must(t, err)
	}
	must(t, code.Purge(t.Context()))
	again := r.host("b")
	if err := again.Recover(t.Context()); err == nil || !strings.Contains(err.Error(), "not running") {
		t.Errorf("Recover of a host that was not started: %v", err)
	}
	must(t, again.Start(context.Background()))
	if err := again.Recover(t.Context()); err == nil || !strings.Contains(err.Error(), "worker w: read code") {
		t.Errorf("Recover: %v", err)
	}
	_, err = r.js.PublishMsg(t.Context(), &nats.Msg{Subject: chunk.Subject, Header: chunk.Header, Data: chunk.Data})
	must(t, err)
	if err := again.Recover(t.Context()); err != nil {
		t.Errorf("Recover of what can be loaded again: %v", err)
	}
	r.stop(again)
	if err := again.Recover(t.Context()); err == nil || !strings.Contains(err.Error(), "not running") {
		t.Errorf("Recover of a host that was stopped: %v", err)
	}
}

// TestComesBackWhileItLeaves checks that a worker runs again when its host loses it
// and becomes its owner again before the slot has ended. This happens when a host
// misses its lease by a moment, or another host comes and goes.
func TestComesBackWhileItLeaves(t *testing.T) {
	r := newRig(t)
	entered, release := make(chan struct{}, 10), make(chan struct{})
	h := r.startWith(r.native("w", func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		entered <- struct{}{}
		<-release
		return text(string(m.Data)), nil
	}))
	r.publish("work.w", "a")
	<-entered
	other := "b"
	for host.Owner([]string{"a", other}, "w-w") == "a" {
		other += "b"
	}
	kv, err := r.js.KeyValue(t.Context(), "HOST_MEMBERS")
	must(t, err)
	_, err = kv.PutString(t.Context(), other, "")
	must(t, err)
	r.eventually("the host lets go", func() bool { return h.Leaving() == 1 })
	must(t, kv.Delete(t.Context(), other))
	r.eventually("the host has seen that the other one is gone", func() bool { return len(h.Members()) == 1 })
	close(release)
	r.publish("work.w", "b")
	r.wantOutputs("out.w", "a", "b")
}

// TestOtherConfig checks that a consumer follows the configuration of the host
// that uses it, and has as many replicas as its stream. Config.Replicas has no effect
// on it.
func TestOtherConfig(t *testing.T) {
	r := newRig(t)
	_, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ONE", Subjects: []string{"one.>"}, Retention: jetstream.WorkQueuePolicy})
	must(t, err)
	a := r.start("a")
	create(t, a, host.Spec{ID: "w", Topic: "one.w", OutputTopic: "out.w", Code: prefix("")})
	create(t, a, host.Spec{ID: "member", Group: "g", Topic: "one.g", OutputTopic: "out.g", Code: prefix("")})
	r.stop(a)
	r.tune = func(c *host.Config) { c.AckWait, c.Prefetch = 2*bound, 7 }
	r.start("b")
	for slot, pending := range map[string]int{"HOST_w-w": 14, "HOST_g-g": 1} {
		c, err := r.js.Consumer(t.Context(), "ONE", slot)
		must(t, err)
		if cfg := c.CachedInfo().Config; cfg.AckWait != 2*bound || cfg.MaxAckPending != pending {
			t.Errorf("%s: AckWait %v, MaxAckPending %d", slot, cfg.AckWait, cfg.MaxAckPending)
		}
	}
	r.publish("one.w", "x")
	r.wantOutputs("out.w", "x")
	r.publish("one.g", "x")
	r.wantOutputs("out.g", "x")
}

// TestUnreadableRecord checks that a record that cannot be read runs no worker, and
// does not take a host without workers out of rotation.
func TestUnreadableRecord(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", Topic: "work.w", Code: prefix("")})
	kv, err := r.js.KeyValue(t.Context(), "HOST_WORKERS")
	must(t, err)
	_, err = kv.PutString(t.Context(), "bad", "{")
	must(t, err)
	b := r.start("b") // one of the two has no worker
	for _, h := range []*host.Host{h, b} {
		if err := h.Recover(t.Context()); err == nil || !strings.Contains(err.Error(), "record bad, revision") {
			t.Errorf("Recover: %v", err)
		}
		if err := h.Check(t.Context()); err != nil {
			t.Errorf("Check: %v", err)
		}
	}
	if _, err := h.Create(t.Context(), host.Spec{ID: "bad", MIMEType: "text/x-starlark", Topic: "work.w", Code: prefix("")}); !errors.Is(err, host.ErrExists) {
		t.Errorf("Create over a record that cannot be read: %v", err)
	}
}

// TestCreationCutOff checks that the slot's host finishes a creation half a minute
// after the creating host has died, at each step, and also in a group that has its
// consumer already. The records in the test are older than half a minute, so it need
// not wait.
func TestCreationCutOff(t *testing.T) {
	r := newRig(t)
	h := r.host("a") // not started: it has only the verbs
	cut := make(map[string]time.Time)
	for _, id := range []string{"alone", "member"} {
		for phase, age := range map[string]time.Duration{"late": time.Minute, "young": -time.Hour} {
			req := host.Spec{ID: id + phase, Topic: "work." + id + phase, OutputTopic: "out." + id + phase, Code: prefix("")}
			slot := "HOST_w-" + req.ID
			if id == "member" {
				req.Group, slot = "g"+phase, "HOST_g-g"+phase
			}
			create(t, h, req)
			must(t, r.js.DeleteConsumer(t.Context(), "WORK", slot))
			r.eventually("the consumer is gone", func() bool {
				_, err := r.js.Consumer(t.Context(), "WORK", slot)
				return errors.Is(err, jetstream.ErrConsumerNotFound)
			})
			cut[req.ID] = time.Now().Add(-age)
			if id == "member" { // give the group another member, whose creation was complete
				req.ID, req.Topic, req.OutputTopic = "other"+phase, "work.other"+phase, "out.other"+phase
				create(t, h, req)
				c, err := r.js.Consumer(t.Context(), "WORK", slot)
				must(t, err)
				cfg := c.CachedInfo().Config
				cfg.FilterSubject, cfg.FilterSubjects = req.Topic, nil
				_, err = r.js.UpdateConsumer(t.Context(), "WORK", cfg)
				must(t, err)
			}
		}
	}
	kv, err := r.js.KeyValue(t.Context(), "HOST_WORKERS")
	must(t, err)
	for id, at := range cut {
		entry, err := kv.Get(t.Context(), id)
		must(t, err)
		var rec map[string]any
		must(t, json.Unmarshal(entry.Value(), &rec))
		rec["phase"], rec["changed"] = "Deploying", map[string]any{"at": at}
		data, err := json.Marshal(rec)
		must(t, err)
		_, err = kv.Put(t.Context(), id, data)
		must(t, err)
	}
	b := r.start("b")
	for _, id := range []string{"alonelate", "memberlate"} {
		r.eventually(id+" is finished", func() bool {
			rec, err := b.Get(t.Context(), id)
			return err == nil && rec.State == host.StateRunning
		})
	}
	must(t, b.Recover(t.Context()))
	for _, id := range []string{"alonelate", "memberlate", "otherlate"} {
		r.publish("work."+id, "x")
		r.wantOutputs("out."+id, "x")
	}
	for _, id := range []string{"aloneyoung", "memberyoung"} {
		if rec, err := b.Get(t.Context(), id); err != nil || rec.State != host.StateDeploying {
			t.Errorf("the host took over a creation that may still be in progress: %v, %v", rec, err)
		}
	}
}
