package broker_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

// TestServerThatShutsJetStreamDown has the embedded server do what it does when a mirror
// meets a full disk: it goes on without JetStream, and no request gets an answer. The
// probe starts it again.
func TestServerThatShutsJetStreamDown(t *testing.T) {
	b := brokertest.Connect(t, broker.Config{
		StoreDir: filepath.Join(t.TempDir(), "nats"), Sync: broker.SyncInterval, ReconnectWait: 10 * time.Millisecond,
		Buckets: []jetstream.KeyValueConfig{{Bucket: "B", History: 5}},
	})
	ctx := testContext(t)
	kv, err := b.JetStream().KeyValue(ctx, "B")
	must(t, err)
	_, err = kv.PutString(ctx, "kept", "before")
	must(t, err)
	must(t, broker.ShutJetStreamDown(b))
	brokertest.Await(t, "the probe to bring JetStream back", func() bool {
		brief, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		return b.Check(brief) == nil
	})
	if e, err := kv.Get(ctx, "kept"); err != nil || string(e.Value()) != "before" {
		t.Errorf("what was acknowledged: %v, %v", e, err)
	}
}
