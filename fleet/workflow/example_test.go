package workflow_test

import (
	"context"
	"fmt"
	"os"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// A mission is planned, flown and brought home. Every step is stored before the
// call returns.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "missions")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	b, err := broker.Connect(ctx, broker.Config{
		StoreDir: dir, Logger: brokertest.Quiet(),
		Buckets: []jetstream.KeyValueConfig{workflow.Bucket("MISSIONS")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close(ctx)
	mgr := workflow.NewManager(b.JetStream(), brokertest.Quiet())
	defer mgr.Close()
	err = mgr.Register("drone-survey", func() workflow.Participant { return new(Mission) }, workflow.Transitions{
		"planning":  {"flying", "aborted"},
		"flying":    {"landing", "aborted"},
		"landing":   {"completed", "failed"},
		"completed": {}, "failed": {}, "aborted": {},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	missions := workflow.For[*Mission](mgr, "drone-survey")
	fmt.Println(missions.Create(ctx, &Mission{ID: "m-17", State: "planning"}))
	fmt.Println(missions.Transition(ctx, "m-17", "flying", workflow.TransitionSourceOperator, "wind is fine"))
	fmt.Println(missions.Transition(ctx, "m-17", "completed", workflow.TransitionSourceRule, ""))
	fmt.Println(missions.Transition(ctx, "m-17", "landing", workflow.TransitionSourceRule, "battery at 20 %"))
	fmt.Println(missions.Complete(ctx, "m-17"))

	events, err := missions.History(ctx, "m-17")
	for _, e := range events {
		fmt.Printf("%q -> %q by %s: %q\n", e.From, e.To, e.Triggered, e.Note)
	}
	fmt.Println(err)
	// Output:
	// <nil>
	// <nil>
	// drone-survey "m-17": fsm: invalid transition: "flying" -> "completed" (allowed are "aborted", "landing")
	// <nil>
	// <nil>
	// "" -> "planning" by framework: ""
	// "planning" -> "flying" by operator: "wind is fine"
	// "flying" -> "landing" by rule: "battery at 20 %"
	// "landing" -> "completed" by framework: ""
	// <nil>
}

// Many missions take off. One of them may not, and that does not concern the others.
func ExampleManager_TransitionMany() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "missions")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	b, err := broker.Connect(ctx, broker.Config{
		StoreDir: dir, Logger: brokertest.Quiet(),
		Buckets: []jetstream.KeyValueConfig{workflow.Bucket("MISSIONS")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close(ctx)
	mgr := workflow.NewManager(b.JetStream(), brokertest.Quiet())
	defer mgr.Close()
	err = mgr.Register("drone-survey", func() workflow.Participant { return new(Mission) }, table)
	if err != nil {
		fmt.Println(err)
		return
	}
	missions := workflow.For[*Mission](mgr, "drone-survey")
	var moves []workflow.Move
	for i, phase := range []string{"planning", "planning", "landing"} {
		id := fmt.Sprint("m-", i)
		if err := missions.Create(ctx, &Mission{ID: id, State: phase}); err != nil {
			fmt.Println(err)
		}
		moves = append(moves, workflow.Move{EntityID: id, To: "flying", Source: workflow.TransitionSourceRule, Note: "wind is fine"})
	}
	for i, moved := range missions.TransitionMany(ctx, moves) {
		fmt.Println(moves[i].EntityID, moved.Err)
	}
	// Output:
	// m-0 <nil>
	// m-1 <nil>
	// m-2 drone-survey "m-2": fsm: invalid transition: "landing" -> "flying" (allowed are "completed", "failed")
}
