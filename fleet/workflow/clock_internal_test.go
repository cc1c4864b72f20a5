package workflow

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

type order struct {
	ID    string `json:"id"    lifecycle:"id"`
	State string `json:"phase" lifecycle:"phase"`
}

func (o *order) EntityID() string       { return o.ID }
func (o *order) Workflow() string       { return "order" }
func (o *order) Phase() string          { return o.State }
func (o *order) IsTerminal() bool       { return o.State == "gone" }
func (o *order) KVBucket() string       { return "ORDERS" }
func (o *order) KVKey(id string) string { return id }
func (o *order) ParentEntityID() string { return "" }

// TestDeadlinesGoByTheServersClock runs them in processes whose clock is wrong by an
// hour.
func TestDeadlinesGoByTheServersClock(t *testing.T) {
	for name, skew := range map[string]time.Duration{"behind": -time.Hour, "ahead": time.Hour} {
		t.Run(name, func(t *testing.T) {
			b := brokertest.Server(t, broker.Config{Buckets: []jetstream.KeyValueConfig{Bucket("ORDERS")}})
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			m := NewManager(b.JetStream(), brokertest.Quiet())
			defer m.Close()
			m.clock.Local = func() time.Time { return time.Now().Round(0).Add(skew) }
			err := m.Register("order", func() Participant { return new(order) }, Transitions{"open": {"late", "gone"}, "late": {"gone"}, "gone": {}},
				WithDeadline("open", "late", 50*time.Millisecond), WithDeadline("late", "gone", 30*time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range []*order{{"soon", "open"}, {"later", "late"}} {
				if err := m.Create(ctx, o, SetTimer(Timer{Name: "t", After: 30 * time.Minute, Keep: true})); err != nil {
					t.Fatal(err)
				}
			}
			own, stop := context.WithCancel(ctx)
			ended := make(chan error, 1)
			go func() { ended <- m.Deadlines(own) }()
			brokertest.Await(t, "the first deadline", func() bool {
				p, err := m.Get(ctx, "order", "soon")
				return err == nil && p.Phase() == "late"
			})
			stop()
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			for _, id := range []string{"soon", "later"} {
				var rec Record
				_, err := m.Get(ctx, "order", id, RecordTo(&rec))
				if err != nil || rec.Phase != "late" || len(rec.Timers) != 1 || rec.Timers[0].Fired != 0 {
					t.Errorf("%+v, %v", rec, err)
				} else if in := time.Until(rec.Timers[0].At); in > 31*time.Minute || in < 28*time.Minute {
					t.Errorf("the timer of %s is due in %v", id, in)
				}
			}
		})
	}
}

func TestInstantsDoNotOverflow(t *testing.T) {
	for year, want := range map[int]int64{9999: math.MaxInt64, 2262: math.MaxInt64, 1: math.MinInt64, 1678: math.MinInt64} {
		if got := instant(time.Date(year, 6, 1, 0, 0, 0, 0, time.UTC)); got != want {
			t.Errorf("year %d is %d", year, got)
		}
	}
	now := time.Now()
	if instant(now) != now.UnixNano() || plus(now.UnixNano(), time.Hour) != now.Add(time.Hour).UnixNano() {
		t.Error("a time of today is not itself")
	}
	if plus(now.UnixNano(), math.MaxInt64) != math.MaxInt64 {
		t.Error("a deadline in 292 years is over already")
	}
}
