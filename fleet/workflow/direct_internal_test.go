package workflow

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

// TestGetIsDirectOnlyWhereItCannotBeStale reads each write of another process at once:
// with one replica by direct gets, and beside a journal, which may answer those in the
// bucket's place and lag, never with an old answer.
func TestGetIsDirectOnlyWhereItCannotBeStale(t *testing.T) {
	for name, streams := range map[string][]jetstream.StreamConfig{"alone": nil, "beside a journal": {Journal("NOTES")}} {
		t.Run(name, func(t *testing.T) {
			b := brokertest.NewSite(t).Connect(t, broker.Config{Buckets: []jetstream.KeyValueConfig{Bucket("NOTES")}, Streams: streams})
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			t.Cleanup(cancel)
			open := func(opts ...RegisterOption) (*Manager, *traits) {
				m := NewManager(b.JetStream(), brokertest.Quiet())
				t.Cleanup(func() { _ = m.Close() })
				check(t, m.Register("notes", func() Participant { return new(hot) }, Transitions{"a": {"b"}, "b": {"a"}}, opts...))
				check(t, m.Ready(ctx))
				r, _ := m.registration("notes")
				return m, &r.bucket.traits
			}
			writer, _ := open()
			viewing, direct := open()
			viewless, viewlessly := open(WithoutView())
			check(t, writer.Create(ctx, &hot{ID: "x", State: "a"}))
			_, err := viewless.Get(ctx, "notes", "x") // it looks at the bucket
			check(t, err)
			if r1 := direct.single.Load(); r1 != direct.direct() || r1 != viewlessly.single.Load() {
				t.Fatalf("with one replica: %v: direct gets: %v and %v", r1, direct.direct(), viewlessly.direct())
			}
			slow := false // then a direct get may have ended without an answer
			for n := range 200 {
				to := []string{"b", "a"}[n%2]
				check(t, writer.Transition(ctx, "notes", "x", to, TransitionSourceRule, ""))
				for _, m := range []*Manager{viewing, viewless} {
					began := time.Now()
					p, err := m.Get(ctx, "notes", "x")
					slow = slow || time.Since(began) > directTime/2
					if err != nil || p.Phase() != to {
						t.Fatalf("after write %d Get returned %+v, want the phase %q: %v", n, p, to, err)
					}
				}
			}
			if streams == nil && !slow && direct.indirect.Load() {
				t.Error("a direct get was answered by another stream, and there is none")
			}
			if streams != nil && direct.single.Load() {
				brokertest.Await(t, "the journal to answer, and no more direct gets", func() bool {
					check(t, writer.Update(ctx, "notes", "x", func(Participant) error { return nil })) // a mirror looks at itself when it gets something
					_, err := viewing.Get(ctx, "notes", "x")
					return err == nil && !direct.direct()
				})
			}
		})
	}
}
