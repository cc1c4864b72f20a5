package workflow_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// counted is the outcome of one update that adds one: what it found, or that
// its outcome is unknown.
type counted struct {
	found   int
	unknown bool
}

// counter is an entity whose updates each find one more than the last one left.
// One of unknown outcome may have been carried out or not.
var counter = porcupine.NondeterministicModel{
	Init: func() []any { return []any{0} },
	Step: func(state, _, output any) []any {
		n, _ := state.(int)
		switch out, _ := output.(counted); {
		case out.unknown:
			return []any{n, n + 1}
		case out.found == n:
			return []any{n + 1}
		}
		return nil
	},
	Equal: func(a, b any) bool { return a == b },
}

// TestOneEntityIsLinearizable lets writers of four Managers update one entity
// on three replicas while the server that leads it is stopped and started again,
// and holds what each of them has seen against one order.
func TestOneEntityIsLinearizable(t *testing.T) {
	restarts := 2
	if n, err := strconv.Atoi(os.Getenv("CHAOS_RESTARTS")); err == nil {
		restarts = n
	}
	c := brokertest.StartCluster(t, 3)
	replicated := missionsBucket
	replicated.Replicas = 3
	rigs := make([]*rig, 4)
	for i := range rigs {
		rigs[i] = rigOn(t, brokertest.Connect(t, broker.Config{URL: c.URL(), ReconnectWait: 20 * time.Millisecond, Buckets: []jetstream.KeyValueConfig{replicated}}))
	}
	rigs[0].create(t, "hot", "planning")
	began := time.Now()
	stop := make(chan struct{})
	var mu sync.Mutex
	var history []porcupine.Operation
	var wg sync.WaitGroup
	for i := range 2 * len(rigs) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				call, found := time.Since(began), 0
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
				err := rigs[i%len(rigs)].missions.Update(ctx, "hot", func(m *Mission) error {
					found = m.Count
					m.Count++
					return nil
				})
				cancel()
				op := porcupine.Operation{ClientId: i, Call: call.Nanoseconds(), Output: counted{found: found}, Return: time.Since(began).Nanoseconds()}
				switch {
				case errors.Is(err, workflow.ErrOutcomeUnknown):
					// It may still be carried out, at any time from now on.
					op.Output, op.Return = counted{unknown: true}, time.Hour.Nanoseconds()
				case err != nil:
					continue // not written, says the contract, and so the history has to hold without it
				}
				mu.Lock()
				history = append(history, op)
				mu.Unlock()
			}
		})
	}
	landed := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(history)
	}
	more := func(n int) {
		at := landed()
		brokertest.Await(t, "writes to go on", func() bool { return landed() >= at+n })
	}
	for range restarts {
		more(20)
		leader := -1
		brokertest.Await(t, "a leader of the bucket", func() bool { leader = c.Leader("KV_MISSIONS"); return leader >= 0 })
		c.Stop(leader)
		more(20)
		c.Start(leader)
	}
	more(20)
	close(stop)
	wg.Wait()
	for i := range history { // a client has one operation at a time: those that never return are clients of their own
		if out, ok := history[i].Output.(counted); ok && out.unknown {
			history[i].ClientId = 1000 + i
		}
	}
	if result := porcupine.CheckOperationsTimeout(counter.ToModel(), history, 30*time.Second); result != porcupine.Ok {
		t.Errorf("the history of %d updates is %s", len(history), result)
	}
	t.Logf("%d updates", len(history))
}
