package workflow_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// TestBackupIsRestoredAsItWas restores a bucket, its journal and its hooks on another
// server, and goes on there.
func TestBackupIsRestoredAsItWas(t *testing.T) {
	ctx := testContext(t)
	b := hookServer(t)
	var before, after seen
	r := hooked(t, b, workflow.Hook{Replay: true, Do: func(_ context.Context, re workflow.Reaction) error { before.note(re); return nil }})
	stop := r.hooks(t)
	for i := range 200 {
		r.create(t, fmt.Sprint(i), "planning")
		r.move(t, fmt.Sprint(i), "flying")
	}
	before.await(t, "199", "[>planning planning>flying]")
	stop()
	r.copied(t)
	dir := filepath.Join(t.TempDir(), "backup")
	must(t, workflow.Backup(ctx, b.JetStream(), "MISSIONS", dir))
	_, err := workflow.VerifyBackup(dir)
	must(t, err)
	want, err := r.Trail(ctx, survey, "17")
	must(t, err)
	r.move(t, "17", "landing") // not in the backup

	// Over what exists nothing is restored.
	if err := workflow.RestoreBackup(ctx, b.JetStream(), dir); err == nil {
		t.Error("it was restored over the streams that exist")
	}
	other := brokertest.Server(t, broker.Config{})
	must(t, workflow.RestoreBackup(ctx, other.JetStream(), dir))
	restored := hooked(t, other, workflow.Hook{Replay: true, Do: func(_ context.Context, re workflow.Reaction) error { after.note(re); return nil }})
	got, err := restored.Trail(ctx, survey, "17")
	must(t, err)
	if got.Truncated || !slices.Equal(got.Events, want.Events) {
		t.Errorf("the history is %+v, want %+v", got, want)
	}
	restored.hooks(t)
	restored.move(t, "3", "landing")
	after.await(t, "3", "[flying>landing]") // what the hook did before is done
	restored.copied(t)
	if trail, err := restored.Trail(ctx, survey, "3"); err != nil || trail.Truncated || len(trail.Events) != 3 {
		t.Errorf("%+v, %v", trail, err)
	}
}

func TestBackupThatIsDamagedIsNotRestored(t *testing.T) {
	ctx := testContext(t)
	r := newRig(t)
	r.create(t, "m1", "planning")
	dir := filepath.Join(t.TempDir(), "backup")
	must(t, workflow.Backup(ctx, r.js, "MISSIONS", dir))
	if err := workflow.Backup(ctx, r.js, "MISSIONS", dir); err == nil {
		t.Error("a backup was written over another")
	}
	file := filepath.Join(dir, "KV_MISSIONS.snapshot")
	data, err := os.ReadFile(file)
	must(t, err)
	for name, bad := range map[string][]byte{"changed": append(slices.Clone(data[:len(data)-1]), data[len(data)-1]^1), "cut": data[:len(data)/2], "empty": nil} {
		must(t, os.WriteFile(file, bad, 0o600))
		if err := workflow.RestoreBackup(ctx, r.js, dir); !errors.Is(err, workflow.ErrBackup) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, os.Remove(filepath.Join(dir, "manifest.json")))
	if _, err := workflow.VerifyBackup(dir); !errors.Is(err, workflow.ErrBackup) {
		t.Errorf("without a manifest: %v", err)
	}
	if err := workflow.Backup(ctx, r.js, "NOTHING", dir+"2"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("no such bucket: %v", err)
	}
}

// The server gives up a restore that stands still for five seconds, as on a machine that has no time
// for it. It is begun again, and what the server had stored of it is no foreign stream.
func TestRestoreThatStandsStillIsBegunAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for longer than the server does")
	}
	ctx := testContext(t)
	b := hookServer(t)
	r := rigOn(t, b, workflow.WithJournal())
	for i := range 200 { // more than one chunk, because random text cannot be compressed
		var text strings.Builder
		for range 100 {
			text.WriteString(rand.Text())
		}
		must(t, r.missions.Create(ctx, &Mission{ID: fmt.Sprint(i), State: "planning", Owner: text.String()}))
	}
	r.copied(t)
	dir := filepath.Join(t.TempDir(), "backup")
	must(t, workflow.Backup(ctx, b.JetStream(), "MISSIONS", dir))
	other := brokertest.Server(t, broker.Config{})
	var still sync.Once
	must(t, workflow.RestoreBackup(ctx, other.JetStream(), dir, workflow.TellProgress(func(string, int64) {
		still.Do(func() { time.Sleep(7 * time.Second) })
	})))
	restored := rigOn(t, other, workflow.WithJournal())
	rec, err := restored.record(ctx, "199")
	must(t, err)
	if want, err := r.record(ctx, "199"); err != nil || rec.Revision != want.Revision {
		t.Errorf("the restored record is %+v, want %+v, %v", rec, want, err)
	}
}
