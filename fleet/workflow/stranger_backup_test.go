package workflow_test

import (
	"bytes"
	"context"
	"encoding/json"
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

// TestBackupOfAStrangerIsNotRestored edits the manifest, with and without a new sum.
func TestBackupOfAStrangerIsNotRestored(t *testing.T) {
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
	refused := func(name string, manifest []byte) {
		t.Helper()
		must(t, os.WriteFile(path, manifest, 0o600))
		if err := workflow.VerifyBackup(dir); !errors.Is(err, workflow.ErrBackup) {
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
	for name, edit := range map[string][2]string{
		"another number of messages": {`"messages": 1`, `"messages": 2`},
		"another history":            {`"max_msgs_per_subject": 64`, `"max_msgs_per_subject": 63`},
		"another name":               {`"name": "KV_MISSIONS"`, `"name": "KV_OTHERS"`},
	} {
		edited := bytes.Replace(whole, []byte(edit[0]), []byte(edit[1]), 1)
		if bytes.Equal(edited, whole) {
			t.Fatalf("%s: the manifest has no %s", name, edit[0])
		}
		refused(name, edited)
	}
	refused("cut", whole[:len(whole)/2])
	refused("null", []byte("null"))
	refused("deep", bytes.Repeat([]byte("["), 20_000))
	for name, change := range map[string]func(s map[string]any){
		"a stream that is no bucket": func(s map[string]any) { s["name"] = "ORDERS"; s["config"].(map[string]any)["name"] = "ORDERS" },
		"a name of two lines": func(s map[string]any) {
			s["name"] = "KV_X\r\nPUB x 0\r\n"
			s["config"].(map[string]any)["name"] = s["name"]
		},
		"the name of another config": func(s map[string]any) { s["config"].(map[string]any)["name"] = "KV_OTHERS" },
		"subjects of others":         func(s map[string]any) { s["config"].(map[string]any)["subjects"] = []string{"_INBOX.>"} },
		"a file elsewhere":           func(s map[string]any) { s["file"] = "../backup/KV_MISSIONS.snapshot" },
		"the folder above":           func(s map[string]any) { s["file"] = ".." },
		"no config":                  func(s map[string]any) { s["config"] = nil },
	} {
		var m map[string]any
		must(t, json.Unmarshal(whole, &m))
		change(m["streams"].([]any)[0].(map[string]any))
		delete(m, "sum")
		forged, err := json.Marshal(m)
		must(t, err)
		refused(name, forged)
	}
	// One without a sum is of an earlier release.
	var m map[string]any
	must(t, json.Unmarshal(whole, &m))
	delete(m, "sum")
	old, err := json.Marshal(m)
	must(t, err)
	must(t, os.WriteFile(path, old, 0o600))
	must(t, workflow.VerifyBackup(dir))
	must(t, workflow.RestoreBackup(ctx, other, dir))
}

// TestRestoreIsWholeOrNotAtAll: a bucket without its journal would begin to live.
func TestRestoreIsWholeOrNotAtAll(t *testing.T) {
	ctx := testContext(t)
	b := hookServer(t)
	r := hooked(t, b, workflow.Hook{Do: func(context.Context, workflow.Reaction) error { return nil }})
	r.create(t, "m1", "planning")
	r.copied(t)
	dir := filepath.Join(t.TempDir(), "backup")
	must(t, workflow.Backup(ctx, r.js, "MISSIONS", dir))
	other := brokertest.Server(t, broker.Config{}).JetStream()
	_, err := other.CreateStream(ctx, jetstream.StreamConfig{Name: "JOURNAL_MISSIONS", Subjects: []string{"x"}})
	must(t, err)
	if err := workflow.RestoreBackup(ctx, other, dir); !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		t.Errorf("restore beside a journal: %v", err)
	}
	if _, err := other.Stream(ctx, "KV_MISSIONS"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("the bucket was restored without its journal: %v", err)
	}
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
