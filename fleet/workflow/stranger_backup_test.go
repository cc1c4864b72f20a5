package workflow_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// TestBackupThatWasEditedIsNotRestored edits the manifest.
func TestBackupThatWasEditedIsNotRestored(t *testing.T) {
	ctx := testContext(t)
	b := hookServer(t)
	r := hooked(t, b, workflow.Hook{Do: func(context.Context, workflow.Reaction) error { return nil }})
	r.create(t, "m1", "planning")
	r.copied(t)
	dir := filepath.Join(t.TempDir(), "backup")
	must(t, workflow.Backup(ctx, r.js, "MISSIONS", dir))
	path := filepath.Join(dir, "manifest.json")
	whole, err := os.ReadFile(path)
	must(t, err)
	other := brokertest.Server(t, broker.Config{}).JetStream()
	edited := map[string][]byte{"cut": whole[:len(whole)/2], "null": []byte("null"), "deep": bytes.Repeat([]byte("["), 20_000)}
	for name, edit := range map[string][2]string{
		"another number of messages": {`"messages": 1`, `"messages": 2`},
		"another history":            {`"max_msgs_per_subject": 64`, `"max_msgs_per_subject": 63`},
		"another name":               {`"name": "KV_MISSIONS"`, `"name": "KV_OTHERS"`},
		"no sum":                     {`"sum": "`, `"none": "`},
	} {
		edited[name] = bytes.Replace(whole, []byte(edit[0]), []byte(edit[1]), 1)
		if bytes.Equal(edited[name], whole) {
			t.Fatalf("%s: the manifest has no %s", name, edit[0])
		}
	}
	for name, manifest := range edited {
		must(t, os.WriteFile(path, manifest, 0o600))
		if _, err := workflow.VerifyBackup(dir); !errors.Is(err, workflow.ErrBackup) {
			t.Errorf("%s: verify: %v", name, err)
		}
		if err := workflow.RestoreBackup(ctx, other, dir); !errors.Is(err, workflow.ErrBackup) {
			t.Errorf("%s: restore: %v", name, err)
		}
		for stream := range other.ListStreams(ctx).Info() {
			t.Errorf("%s: it restored %s", name, stream.Config.Name)
			must(t, other.DeleteStream(ctx, stream.Config.Name))
		}
	}
}

// TestRestoreIsWholeOrNotAtAll: hooks of a bucket without its journal would miss what they
// had not seen.
func TestRestoreIsWholeOrNotAtAll(t *testing.T) {
	ctx := testContext(t)
	b := hookServer(t)
	r := hooked(t, b, workflow.Hook{Do: func(context.Context, workflow.Reaction) error { return nil }})
	r.create(t, "m1", "planning")
	r.copied(t)
	dir := filepath.Join(t.TempDir(), "backup")
	must(t, workflow.Backup(ctx, r.js, "MISSIONS", dir))
	other := brokertest.Server(t, broker.Config{}).JetStream()
	// A server that deletes its last stream removes the folder of streams after its answer,
	// also from under a stream that it makes meanwhile. So one stream stays.
	_, err := other.CreateStream(ctx, jetstream.StreamConfig{Name: "STAYS", Subjects: []string{"stays"}})
	must(t, err)
	nothing := func(when string, but string) {
		t.Helper()
		for stream := range other.ListStreams(ctx).Info() {
			if name := stream.Config.Name; name != but && name != "STAYS" {
				t.Errorf("%s: %s was restored", when, stream.Config.Name)
			}
		}
	}
	_, err = other.CreateStream(ctx, jetstream.StreamConfig{Name: "JOURNAL_MISSIONS", Subjects: []string{"x"}})
	must(t, err)
	if err := workflow.RestoreBackup(ctx, other, dir); !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		t.Errorf("restore beside a journal: %v", err)
	}
	nothing("beside a journal", "JOURNAL_MISSIONS")
	must(t, other.DeleteStream(ctx, "JOURNAL_MISSIONS"))
	// The bucket, which comes last, cannot be made: another stream has its subjects.
	_, err = other.CreateStream(ctx, jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"$KV.MISSIONS.>"}})
	must(t, err)
	if err := workflow.RestoreBackup(ctx, other, dir); err == nil {
		t.Error("two streams have the same subjects")
	}
	nothing("beside another's stream", "OTHER")
	must(t, other.DeleteStream(ctx, "OTHER"))
	must(t, workflow.RestoreBackup(ctx, other, dir))
}

// TestHooksOutliveTheirProgress deletes what a hook has stored while it is behind.
func TestHooksOutliveTheirProgress(t *testing.T) {
	ctx := testContext(t)
	b := hookServer(t)
	var done seen
	open := make(chan struct{})
	var waiting atomic.Bool
	r := hooked(t, b, workflow.Hook{Concurrency: 1, Do: func(ctx context.Context, re workflow.Reaction) error {
		waiting.Store(true)
		select {
		case <-open:
			done.note(re)
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}})
	r.hooks(t)
	kv, err := r.js.KeyValue(ctx, workflow.HookBucket("MISSIONS").Bucket)
	must(t, err)
	var state string
	brokertest.Await(t, "the hook to run", func() bool {
		keys, err := kv.Keys(ctx)
		if err == nil {
			state = keys[0]
		}
		return err == nil
	})
	for _, id := range []string{"m1", "m2", "m3"} {
		r.create(t, id, "planning")
	}
	r.copied(t)
	brokertest.Await(t, "the first call", waiting.Load)
	must(t, kv.Purge(ctx, state))
	r.create(t, "m4", "planning")
	brokertest.Await(t, "the hook to store its progress again", func() bool {
		_, err := kv.Get(ctx, state)
		return err == nil
	})
	close(open)
	for _, id := range []string{"m1", "m2", "m3", "m4"} {
		done.await(t, id, "[>planning]")
	}
}
