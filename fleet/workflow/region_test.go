package workflow_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// TestRegionReadsTheMirror has a process in a second cluster, with a mirror of the bucket
// there. It lists and watches from the mirror, with the bucket's revisions, also while
// the first cluster is away, and goes on when that is back.
func TestRegionReadsTheMirror(t *testing.T) {
	if testing.Short() {
		t.Skip("long: two clusters, one of which is killed")
	}
	if brokertest.KindOfRun(t) != brokertest.InProcess {
		return
	}
	hub, region := brokertest.StartRegions(t, 3, 2)
	replicated := missionsBucket
	replicated.Replicas = 3
	r := rigOn(t, brokertest.Connect(t, broker.Config{URL: hub.URL(), ReconnectWait: 20 * time.Millisecond, Buckets: []jetstream.KeyValueConfig{replicated}}))
	there := brokertest.Connect(t, broker.Config{URL: region.URL(), ReconnectWait: 20 * time.Millisecond})
	ctx := testContext(t)
	_, err := there.JetStream().CreateStream(ctx, jetstream.StreamConfig{
		Name: "KV_MISSIONS", Storage: jetstream.FileStorage, MaxMsgsPerSubject: 64, AllowDirect: true,
		Mirror: &jetstream.StreamSource{Name: "KV_MISSIONS", Domain: "hub"},
	})
	must(t, err)
	reader := rigOn(t, there)
	events, err := reader.WatchEvents(ctx, survey)
	must(t, err)
	var revision uint64
	write := func(id string) {
		t.Helper()
		r.create(t, id, "planning")
		must(t, r.missions.Transition(testContext(t), id, "flying", workflow.TransitionSourceRule, "", workflow.RevisionTo(&revision)))
	}
	seen := func(id string) {
		t.Helper()
		await(t, events, func(e workflow.Event) bool {
			if e.Kind == workflow.EventGap {
				t.Error("the watch has a gap")
			}
			return e.Kind == workflow.EventPut && e.Record.EntityID == id && e.Record.Phase == "flying" && e.Revision == revision
		})
		brokertest.Await(t, "the list to have "+id, func() bool {
			page, err := reader.Query(testContext(t), survey, workflow.ListOptions{Phase: "flying"})
			must(t, err)
			return len(page.Records) > 0 && page.Records[len(page.Records)-1].EntityID == id && page.Records[len(page.Records)-1].Revision == revision
		})
	}
	for i := range 20 {
		write(fmt.Sprintf("a%02d", i))
	}
	seen("a19")
	for i := range 3 {
		hub.Kill(i)
	}
	if got := listIDs(t, reader, workflow.ListOptions{Phase: "flying", Limit: 2}); got != "a00 a01" {
		t.Errorf("without the first cluster it lists %q", got)
	}
	hub.StartAll()
	write("b")
	seen("b")
	region.Kill(0)
	write("c")
	region.StartAll()
	seen("c")
}
