package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

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
