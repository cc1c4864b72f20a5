package workflow_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/internal/canary"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// TestReadySaysThatADiskIsFull fills the disk of an external server. Ready of a process
// that writes fails with the reason; that of a process that only reads does not.
func TestReadySaysThatADiskIsFull(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Skip("needs a disk of its own, and root to mount it: ", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	srv := brokertest.Connect(t, broker.Config{StoreDir: filepath.Join(dir, "nats"), Listen: "127.0.0.1:0", Buckets: buckets()})
	b := brokertest.Connect(t, broker.Config{URL: srv.ClientURL()})
	writer, reader := rigOn(t, b), rigOn(t, b)
	ctx := testContext(t)
	writer.create(t, "m", "flying")
	must(t, writer.Ready(ctx))
	f, err := os.Create(filepath.Join(dir, "full"))
	must(t, err)
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	must(t, f.Close())
	for n, late := 0, 0; late < 3; n++ {
		brief, cancel := context.WithTimeout(ctx, time.Second)
		err := writer.missions.Update(brief, "m", func(m *Mission) error { m.Secret = strings.Repeat("x", 100<<10+n); return nil })
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			late++ // a full disk, or a busy machine
		} else if err != nil {
			break
		}
	}
	brokertest.Await(t, "Ready to say that the bucket takes no writes", func() bool {
		err := writer.Ready(ctx)
		return err != nil && strings.Contains(err.Error(), "takes no writes") && strings.Contains(err.Error(), "MISSIONS")
	})
	if err := reader.Ready(ctx); err != nil {
		t.Errorf("of a process that only reads: %v", err)
	}
	if got := listIDs(t, reader, workflow.ListOptions{}); got != "m" {
		t.Errorf("listed %q", got)
	}
}

// TestCanariesAreHidden stores the marker of a probe. No query and no watch shows it.
func TestCanariesAreHidden(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	events, err := r.WatchEvents(ctx, survey)
	must(t, err)
	for range 3 {
		must(t, canary.Check(ctx, r.js, "MISSIONS"))
	}
	must(t, canary.Check(ctx, r.js, "NONE"))
	must(t, canary.Failed(ctx, r.js, "MISSIONS"))
	must(t, canary.Failed(ctx, r.js, "NONE"))
	r.create(t, "m", "flying")
	await(t, events, func(e workflow.Event) bool {
		if e.Kind == workflow.EventDeleted {
			t.Errorf("the watch sends %+v", e)
		}
		return e.Record.EntityID == "m"
	})
	s, err := r.js.Stream(ctx, "KV_MISSIONS")
	must(t, err)
	if state := s.CachedInfo().State; state.Msgs != 2 || state.LastSeq != 4 {
		t.Errorf("%d messages up to %d, want one marker of three and the record", state.Msgs, state.LastSeq)
	}
	kv, err := r.js.KeyValue(ctx, "MISSIONS")
	must(t, err)
	keys, err := kv.Keys(ctx, jetstream.IgnoreDeletes())
	must(t, err)
	if strings.Join(keys, " ") != "mission.m" {
		t.Errorf("keys: %v", keys)
	}
}

// TestIdleBucketStaysAsItIs probes a bucket whose last write was 11 s ago. Neither the broker
// nor the Manager stores anything, so the journal and its hooks have nothing to read.
func TestIdleBucketStaysAsItIs(t *testing.T) {
	t.Parallel()
	b := brokertest.Embedded(t, broker.Config{Buckets: buckets(), Streams: []jetstream.StreamConfig{workflow.Journal("MISSIONS")}})
	r := rigOn(t, b, workflow.WithJournal())
	ctx := testContext(t)
	r.create(t, "m", "flying")
	time.Sleep(11 * time.Second) // by the server's clock, which no test can set
	must(t, b.Check(ctx))
	must(t, r.Ready(ctx))
	for _, name := range []string{"KV_MISSIONS", "JOURNAL_MISSIONS"} {
		s, err := r.js.Stream(ctx, name)
		must(t, err)
		if last := s.CachedInfo().State.LastSeq; last != 1 {
			t.Errorf("%s goes up to revision %d, want the record alone", name, last)
		}
	}
}
