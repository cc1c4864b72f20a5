package lease_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/lease"
)

// TestBucketThatGivesARevisionTwice takes the bucket away from a holder. In its successor
// another process has the lease with the same revision, as in a bucket that was restored
// from a backup. The first holder neither renews nor releases the lease of the other.
func TestBucketThatGivesARevisionTwice(t *testing.T) {
	for name, do := range map[string]func(*testing.T, *lease.Lease){
		"renew": func(t *testing.T, a *lease.Lease) {
			if got := acquire(t, a); got != 0 {
				t.Errorf("a was granted %v beside b", got)
			}
		},
		"release": func(t *testing.T, a *lease.Lease) {
			if err := a.Release(t.Context()); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bucket := lease.Bucket("LEASES", time.Minute)
			js := brokertest.Server(t, broker.Config{Buckets: []jetstream.KeyValueConfig{bucket}}).JetStream()
			open := func(holder string) *lease.Lease {
				l, err := lease.New(t.Context(), js, lease.Config{Bucket: "LEASES", Key: "work", Holder: holder})
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			a, b := open("a"), open("b")
			acquire(t, a)
			if err := js.DeleteKeyValue(t.Context(), "LEASES"); err != nil {
				t.Fatal(err)
			}
			brokertest.Await(t, "the bucket's successor", func() bool { // the server removes files a moment later
				_, err := js.CreateKeyValue(t.Context(), bucket)
				return err == nil
			})
			if got := acquire(t, b); got != time.Minute {
				t.Fatalf("b was granted %v", got)
			}
			do(t, a)
			if _, valid := a.Token(); valid {
				t.Error("a trusts a lease that b has")
			}
			if holder, err := b.Holder(t.Context()); holder != "b" || err != nil {
				t.Errorf("held by %q, %v", holder, err)
			}
		})
	}
}
