package presence

import (
	"context"
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/time/rate"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/worker"
)

// scale is a bucket that weighs what it gets.
type scale struct {
	jetstream.KeyValue
	bytes int
}

func (s *scale) Put(_ context.Context, _ string, entry []byte) (uint64, error) {
	s.bytes += len(entry)
	return 1, nil
}

// idle returns the announcer of a process that does nothing, with a bucket that weighs.
func idle(tb testing.TB) (*announcer, *scale) {
	tb.Helper()
	app, err := lifecycle.New(lifecycle.Config{Name: "idle", HealthAddr: lifecycle.HealthOff}, lifecycle.WithLogger(brokertest.Quiet()))
	if err != nil {
		tb.Fatal(err)
	}
	waits := func(ctx context.Context) error { <-ctx.Done(); return nil }
	app.Go("http", waits).Supervise("poller", waits, worker.DefaultBackoff())
	app.Probe("db", lifecycle.ProbeFunc(func(context.Context) error { return nil }))
	cfg, err := Config{ID: "1", Logger: brokertest.Quiet()}.withDefaults()
	if err != nil {
		tb.Fatal(err)
	}
	cfg.ID = "idle.1"
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		tb.Fatal(err)
	}
	kv := &scale{}
	return &announcer{
		app: app, cfg: cfg, host: "host", started: time.Now(), key: key, kv: kv,
		journal: newJournalWriter(nil, cfg, 10, rate.NewLimiter(0, 0)),
	}, kv
}

// The usage of a process takes little of its announcement.
func TestUsageTakesFewBytes(t *testing.T) {
	a, _ := idle(t)
	p := a.look()
	with, err := encode(p)
	if err != nil {
		t.Fatal(err)
	}
	p.Usage = Usage{}
	without, err := encode(p)
	if err != nil {
		t.Fatal(err)
	}
	if len(with)*100 > len(without)*110 {
		t.Errorf("an announcement has %d bytes, and %d without the usage", len(with), len(without))
	}
}

// BenchmarkIdle measures the announcements of an idle process for a minute: as they are, and
// without the usage. The cost of the network is not in it.
func BenchmarkIdle(b *testing.B) {
	for _, with := range []bool{false, true} {
		name := "without usage"
		if with {
			name = "with usage"
		}
		b.Run(name, func(b *testing.B) {
			a, kv := idle(b)
			b.ReportAllocs()
			for b.Loop() {
				a.meter.at = time.Time{} // a minute has passed
				for range 12 {
					if !with {
						a.meter = usageMeter{at: time.Now()}
					}
					if err := a.put(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(kv.bytes)/float64(b.N), "bytes/op")
		})
	}
}
