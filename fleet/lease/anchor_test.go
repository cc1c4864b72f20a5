package lease

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// slow is a bucket that answers writes late and notes when it was asked.
type slow struct {
	jetstream.KeyValue
	asked time.Time
}

func (s *slow) Get(context.Context, string) (jetstream.KeyValueEntry, error) {
	return nil, jetstream.ErrKeyNotFound
}

func (s *slow) Create(context.Context, string, []byte, ...jetstream.KVCreateOpt) (uint64, error) {
	s.asked = time.Now()
	for time.Since(s.asked) < time.Millisecond { // until the clock has moved
	}
	return 1, nil
}

func TestTrustCountsFromTheBeginningOfTheAttempt(t *testing.T) {
	kv := &slow{}
	l := &Lease{kv: kv, key: "k", ttl: time.Minute, nonce: "n"}
	granted, err := l.Acquire(t.Context())
	if err != nil || granted != time.Minute {
		t.Fatalf("granted %v, %v", granted, err)
	}
	if from := l.term.Load().until.Monotonic.Add(-l.ttl); from.After(kv.asked) {
		t.Errorf("the trust counts from %v after the write was sent", from.Sub(kv.asked))
	}
}
