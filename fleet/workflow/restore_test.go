package workflow_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// restore replaces what a site has stored with an older backup.
func restore(t testing.TB, site *brokertest.Site, backup string) {
	t.Helper()
	site.Stop()
	must(t, os.RemoveAll(site.Dir))
	must(t, os.CopyFS(site.Dir, os.DirFS(backup)))
	site.Start()
}

// TestBucketRestoredFromABackup gives a running Manager an older state of its
// bucket: the store directory as it was some writes ago.
func TestBucketRestoredFromABackup(t *testing.T) {
	site, backup := brokertest.NewSite(t), filepath.Join(t.TempDir(), "backup")
	ctx := testContext(t)
	r := rigOn(t, site.Connect(t, broker.Config{Buckets: buckets()}))
	r.create(t, "old", "planning")
	site.Stop()
	must(t, os.CopyFS(backup, os.DirFS(site.Dir)))
	site.Start()
	events, err := r.WatchEvents(ctx, survey)
	must(t, err)
	r.create(t, "new", "planning")
	r.move(t, "old", "flying")
	for told, synced := false, false; !told || !synced; {
		e := <-events
		told, synced = told || e.Revision == 3, synced || e.Kind == workflow.EventSynced
	}
	restore(t, site, backup)

	var kinds []string
	for e := range events {
		kinds = append(kinds, fmt.Sprintf("%s %d", e.Kind, e.Revision))
		if e.Kind == workflow.EventSynced {
			break
		}
	}
	if got := strings.Join(kinds, ", "); got != "gap 0, put 1, synced 0" {
		t.Errorf("the watcher was told: %s", got)
	}
	looks := make(map[string]int)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("read the view: %v", looks)
		}
	})
	brokertest.Await(t, "the view to know the restored state", func() bool {
		list, err := r.missions.List(ctx, workflow.ListOptions{Fresh: true})
		look := fmt.Sprint(err)
		for _, m := range list {
			look += " " + m.ID + " " + m.State
		}
		looks[look]++
		return err == nil && len(list) == 1 && list[0].ID == "old" && list[0].State == "planning"
	})
	must(t, r.missions.Transition(ctx, "old", "aborted", "operator", ""))
	list, err := r.missions.List(ctx, workflow.ListOptions{Phase: "aborted"})
	must(t, err)
	if len(list) != 1 {
		t.Error("its own write is not seen in the restored bucket")
	}
}

// TestBucketRestoredAndWrittenPastItsEnd restores a bucket while a Manager cannot
// see it. Then others write until it has more messages than before.
func TestBucketRestoredAndWrittenPastItsEnd(t *testing.T) {
	site, backup := brokertest.NewSite(t), filepath.Join(t.TempDir(), "backup")
	ctx := testContext(t)
	p := muffle(t, site.URL)
	r := rigOn(t, site.Connect(t, broker.Config{URL: p.url(), Buckets: buckets()}))
	r.create(t, "old", "planning")
	must(t, r.Ready(ctx))
	site.Stop()
	must(t, os.CopyFS(backup, os.DirFS(site.Dir)))
	site.Start()
	events, err := r.WatchEvents(ctx, survey)
	must(t, err)
	r.create(t, "lost", "planning")
	r.move(t, "old", "flying")
	for told, synced := false, false; !told || !synced; {
		e := <-events
		told, synced = told || e.Revision == 3, synced || e.Kind == workflow.EventSynced
	}
	p.close() // from here on the Manager reaches no server
	restore(t, site, backup)
	other := rigOn(t, site.Connect(t, broker.Config{}))
	for _, id := range []string{"a", "b", "c"} {
		other.create(t, id, "planning")
	}
	p.open(t)

	var kinds []string
	for e := range events {
		kinds = append(kinds, fmt.Sprintf("%s %s", e.Kind, e.Record.EntityID))
		if e.Kind == workflow.EventSynced {
			break
		}
	}
	if got := strings.Join(kinds, ", "); got != "gap , put old, put a, put b, put c, synced " {
		t.Errorf("the watcher was told: %s", got)
	}
	brokertest.Await(t, "the view to know the restored state", func() bool {
		list, err := r.missions.List(ctx, workflow.ListOptions{Fresh: true})
		return err == nil && len(list) == 4 && list[3].ID == "old" && list[3].State == "planning"
	})
}

// TestResumeBehindABusyEntity disconnects a watch, and fills the history of the entity
// that was written last: the message that the watch has seen last is gone. The bucket is
// still the same, so the watch goes on and sends nothing twice.
func TestResumeBehindABusyEntity(t *testing.T) {
	srv := brokertest.NewSite(t).Connect(t, broker.Config{Buckets: buckets()})
	p := muffle(t, srv.ClientURL())
	here := rigOn(t, srv)
	there := rigOn(t, brokertest.Connect(t, broker.Config{URL: p.url(), ReconnectWait: 20 * time.Millisecond}))
	ctx := testContext(t)
	events, err := there.WatchEvents(ctx, survey)
	must(t, err)
	here.create(t, "quiet", "planning")
	here.create(t, "busy", "planning")
	for seen, synced := 0, false; seen < 2 || !synced; {
		e := <-events
		synced = synced || e.Kind == workflow.EventSynced
		if e.Kind == workflow.EventPut {
			seen++
		}
	}
	p.close()
	const n = 100 // more than the history has
	for range n {
		must(t, here.missions.Update(ctx, "busy", func(m *Mission) error { m.Count++; return nil }))
	}
	p.open(t)
	for {
		e := <-events
		m, _ := e.Record.Participant.(*Mission)
		if e.Kind != workflow.EventPut || m == nil || m.ID != "busy" {
			t.Fatalf("the watch sent %+v", e)
		}
		if m.Count == n {
			break
		}
	}
	list, err := there.missions.List(ctx, workflow.ListOptions{Fresh: true})
	must(t, err)
	if len(list) != 2 || list[0].Count != n {
		t.Errorf("the view has %+v", list)
	}
}
