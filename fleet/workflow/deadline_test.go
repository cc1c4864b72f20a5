package workflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// stubborn is a mission that cannot be stored again.
type stubborn struct{ Mission }

func (s *stubborn) KVBucket() string { return "MISSIONS" }

func (s *stubborn) MarshalJSON() ([]byte, error) {
	if s.Secret != "" {
		return nil, errors.New("it has a secret")
	}
	return json.Marshal(s.Mission)
}

// TestDeadlinesThatCannotBeWrittenDelayNoOther has more of them than Deadlines takes at
// once, all due before the others.
func TestDeadlinesThatCannotBeWrittenDelayNoOther(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	ctx := testContext(t)
	kv, err := b.JetStream().KeyValue(ctx, "MISSIONS")
	must(t, err)
	put := func(id, secret string) {
		data, err := json.Marshal(Mission{ID: id, State: "flying", Secret: secret})
		must(t, err)
		_, err = kv.Put(ctx, "mission."+id, data)
		must(t, err)
	}
	for i := range 1500 {
		put(fmt.Sprintf("s%d", i), "yes")
	}
	put("good", "")
	m := workflow.NewManager(b.JetStream(), brokertest.Quiet())
	defer m.Close()
	must(t, m.Register(survey, func() workflow.Participant { return new(stubborn) }, table,
		workflow.WithDeadline("flying", "aborted", time.Millisecond)))
	must(t, m.Ready(ctx))
	own, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- m.Deadlines(own) }()
	defer func() {
		cancel()
		must(t, <-done)
	}()
	for {
		p, err := m.Get(ctx, survey, "good")
		must(t, err)
		if p.Phase() == "aborted" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
