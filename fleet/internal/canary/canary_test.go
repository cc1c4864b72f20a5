package canary_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/internal/canary"
)

// TestChecksOfABucket counts what the checks store. Package broker tests them on a full disk.
func TestChecksOfABucket(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	js := brokertest.Embedded(t, broker.Config{Buckets: []jetstream.KeyValueConfig{{Bucket: "B"}}}).JetStream()
	stored := func() uint64 {
		t.Helper()
		s, err := js.Stream(ctx, "KV_B")
		must(t, err)
		return s.CachedInfo().State.LastSeq
	}
	must(t, canary.Failed(ctx, js, "B"))
	must(t, canary.Failed(ctx, js, "NONE"))
	if n := stored(); n != 0 {
		t.Errorf("Failed has stored %d messages", n)
	}
	must(t, canary.Check(ctx, js, "B"))
	must(t, canary.Check(ctx, js, "NONE"))
	must(t, canary.Failed(ctx, js, "B"))
	if n := stored(); n != 1 {
		t.Errorf("Check has stored %d messages, want a marker", n)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
