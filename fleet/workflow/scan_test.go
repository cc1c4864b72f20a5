package workflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// probeHook, when set, is called for each decoding of a [Probe].
var probeHook atomic.Pointer[func()]

// Probe is a field whose decoding a test can hold.
type Probe string

func (p *Probe) UnmarshalJSON(data []byte) error {
	if hook := probeHook.Load(); hook != nil {
		(*hook)()
	}
	return json.Unmarshal(data, (*string)(p))
}

type Slow struct {
	ID    string `json:"id"    lifecycle:"id"`
	State string `json:"phase" lifecycle:"phase"`
	Probe Probe  `json:"probe"`
}

func (s *Slow) EntityID() string       { return s.ID }
func (s *Slow) Workflow() string       { return "slow" }
func (s *Slow) Phase() string          { return s.State }
func (s *Slow) IsTerminal() bool       { return false }
func (s *Slow) KVBucket() string       { return "MISSIONS" }
func (s *Slow) KVKey(id string) string { return "slow." + id }
func (s *Slow) ParentEntityID() string { return "" }

// slowRig is a Manager with n entities that a test can hold in decoding.
func slowRig(t *testing.T, n int) (*workflow.Manager, *broker.Broker) {
	t.Helper()
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	m := workflow.NewManager(b.JetStream(), brokertest.Quiet())
	t.Cleanup(func() { must(t, m.Close()) })
	must(t, m.Register("slow", func() workflow.Participant { return new(Slow) }, workflow.Transitions{"a": {"b"}, "b": {"a"}}))
	for i := range n {
		must(t, m.Create(testContext(t), &Slow{ID: fmt.Sprintf("s%03d", i), State: "a", Probe: "x"}))
	}
	must(t, m.Ready(testContext(t)))
	_, err := m.List(testContext(t), "slow", workflow.ListOptions{Fresh: true})
	must(t, err)
	return m, b
}

// TestScanHoldsUpNoWriter holds a List in the middle of its decoding and writes
// beside it.
func TestScanHoldsUpNoWriter(t *testing.T) {
	m, _ := slowRig(t, 3)
	held, release := make(chan struct{}, 1), make(chan struct{})
	hook := func() {
		select {
		case held <- struct{}{}:
			<-release
		default:
		}
	}
	probeHook.Store(&hook)
	listed := make(chan []workflow.Participant, 1)
	go func() {
		list, err := m.List(testContext(t), "slow", workflow.ListOptions{Match: map[string]any{"probe": Probe("x")}})
		if err != nil {
			t.Error(err)
		}
		listed <- list
	}()
	<-held
	held <- struct{}{} // hold no other decoding
	for _, to := range []string{"b", "a", "b"} {
		must(t, m.Transition(testContext(t), "slow", "s002", to, workflow.TransitionSourceRule, ""))
	}
	must(t, m.Create(testContext(t), &Slow{ID: "t", State: "a"}))
	if list, err := m.List(testContext(t), "slow", workflow.ListOptions{Phase: "b"}); err != nil || len(list) != 1 {
		t.Errorf("beside a List: %v, %v", list, err)
	}
	probeHook.Store(nil)
	close(release)
	if list := <-listed; len(list) != 3 {
		t.Errorf("listed %d, want 3", len(list))
	}
}

// TestScanEndsWithItsContext ends the context of a List after its first decoding.
func TestScanEndsWithItsContext(t *testing.T) {
	m, _ := slowRig(t, 300)
	ctx, cancel := context.WithCancel(testContext(t))
	var decoded atomic.Int32
	hook := func() {
		decoded.Add(1)
		cancel()
	}
	probeHook.Store(&hook)
	defer probeHook.Store(nil)
	if _, err := m.List(ctx, "slow", workflow.ListOptions{Match: map[string]any{"probe": Probe("none")}}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if n := decoded.Load(); n != 1 {
		t.Errorf("decoded %d records after the end of the context", n)
	}
}

// TestLongScansAreComplete lists more entities than one step visits, with pages and
// offsets.
func TestLongScansAreComplete(t *testing.T) {
	m, _ := slowRig(t, 300)
	all, err := m.List(testContext(t), "slow", workflow.ListOptions{Match: map[string]any{"probe": Probe("x")}})
	must(t, err)
	if len(all) != 300 || all[299].EntityID() != "s299" {
		t.Errorf("listed %d", len(all))
	}
	var ids []string
	for after := ""; ; {
		page, err := m.Query(testContext(t), "slow", workflow.ListOptions{Active: true, Limit: 128, After: after})
		must(t, err)
		for _, rec := range page.Records {
			ids = append(ids, rec.EntityID)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if len(ids) != 300 || ids[128] != "s128" {
		t.Errorf("pages have %d: %s", len(ids), strings.Join(ids, " "))
	}
	some, err := m.List(testContext(t), "slow", workflow.ListOptions{Offset: 150, Limit: 2})
	must(t, err)
	if len(some) != 2 || some[0].EntityID() != "s150" {
		t.Errorf("offset 150: %v", some)
	}
}
