package workflow_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// TestAKeyBesideThePrefixHidesNoLoss: for each entity that a limited view loses without a
// message, another program's key appears that the view does not have.
func TestAKeyBesideThePrefixHidesNoLoss(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	all, some := rigOn(t, b), rigOn(t, b, workflow.WithViewPrefix("mission.eu."))
	ctx := testContext(t)
	stream, err := b.JetStream().Stream(ctx, "KV_MISSIONS")
	must(t, err)
	for i := range 4 {
		all.create(t, fmt.Sprint("eu.", i), "planning")
		all.create(t, fmt.Sprint("us.", i), "planning")
	}
	for i := range 4 {
		list, err := some.missions.List(ctx, workflow.ListOptions{Fresh: true})
		must(t, err)
		if len(list) != 4-i {
			t.Fatalf("%d entities, want %d", len(list), 4-i)
		}
		must(t, stream.Purge(ctx, jetstream.WithPurgeSubject(fmt.Sprint("$KV.MISSIONS.mission.eu.", i))))
		all.create(t, fmt.Sprint("us.more", i), "planning")
	}
}
