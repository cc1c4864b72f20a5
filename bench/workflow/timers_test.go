package workflow

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/bench/internal/cpu"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// pending is how many timers wait that are not due: TIMERS_PENDING, or a hundred
// thousand.
func pending(b *testing.B) int {
	n := 100_000
	if text := os.Getenv("TIMERS_PENDING"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	if testing.Short() {
		n = 1000
	}
	return n
}

// create makes entities with a timer each, from 64 goroutines.
func create(b testing.TB, m *workflow.Manager, prefix string, n int, timer workflow.Timer) {
	b.Helper()
	var creators sync.WaitGroup
	var next atomic.Int64
	for range 64 {
		creators.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				err := m.Create(context.Background(), &mission{ID: fmt.Sprint(prefix, i), State: "flying", Area: area}, workflow.SetTimer(timer))
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	creators.Wait()
}

// BenchmarkTimers fires b.N timers that are due at once, by a transition each, among
// many that are not due.
func BenchmarkTimers(b *testing.B) {
	ctx := context.Background()
	js, _ := serve(b, broker.SyncInterval)
	m := manager(b, js)
	waiting := pending(b)
	create(b, m, "later", waiting, workflow.Timer{Name: "later", After: 1000 * time.Hour, To: "done"})
	b.Run(fmt.Sprintf("pending=%d", waiting), func(b *testing.B) {
		before, err := m.Query(ctx, survey, workflow.ListOptions{Phase: "done", Limit: 1})
		if err != nil {
			b.Fatal(err)
		}
		create(b, m, fmt.Sprint("now", time.Now().UnixNano(), "-"), b.N, workflow.Timer{Name: "now", At: time.Unix(1, 0), To: "done"})
		if _, err := m.Query(ctx, survey, workflow.ListOptions{Limit: 1, Fresh: true}); err != nil {
			b.Fatal(err)
		}
		own, cancel := context.WithCancel(ctx)
		defer cancel()
		ended := make(chan error, 1)
		report := cpu.Measure(b)
		b.ResetTimer()
		go func() { ended <- m.Deadlines(own) }()
		for {
			now, err := m.Query(ctx, survey, workflow.ListOptions{Phase: "done", Limit: 1})
			if err != nil {
				b.Fatal(err)
			}
			if now.Total-before.Total >= b.N {
				break
			}
			time.Sleep(time.Millisecond)
		}
		b.StopTimer()
		report()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "fired/s")
		cancel()
		if err := <-ended; err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkJournal is what a journal costs a transition, and what a hook reacts to in a
// second.
func BenchmarkJournal(b *testing.B) {
	ctx := context.Background()
	for _, with := range []string{"none", "journal", "hook"} {
		b.Run("journal="+with, func(b *testing.B) {
			cfg := broker.Config{Sync: broker.SyncInterval, Listen: "127.0.0.1:0", Buckets: []jetstream.KeyValueConfig{workflow.Bucket("MISSIONS"), workflow.HookBucket("MISSIONS")}}
			var opts []workflow.RegisterOption
			if with != "none" {
				cfg.Streams = []jetstream.StreamConfig{workflow.Journal("MISSIONS")}
				opts = append(opts, workflow.WithJournal())
			}
			var reacted atomic.Int64
			if with == "hook" {
				opts = append(opts, workflow.WithHook(workflow.Hook{Name: "count", Replay: true, On: []string{"capturing", "done", "flying"}, Do: func(_ context.Context, r workflow.Reaction) error {
					if r.From != "" {
						reacted.Add(1)
					}
					return nil
				}}))
			}
			srv := brokertest.Embedded(b, cfg)
			js := brokertest.Connect(b, broker.Config{URL: srv.ClientURL()}).JetStream()
			m := managerOf(b, js, opts...)
			const writers = 64
			for w := range writers {
				if err := m.Create(ctx, &mission{ID: fmt.Sprint("m", w), State: "flying", Area: area}); err != nil {
					b.Fatal(err)
				}
			}
			own, cancel := context.WithCancel(ctx)
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- m.Hooks(own) }()
			turns := make([]int, writers)
			began := time.Now()
			spread(b, writers, func(w, _ int) error {
				turns[w]++
				return m.Transition(ctx, survey, fmt.Sprint("m", w), []string{"flying", "capturing"}[turns[w]%2], workflow.TransitionSourceRule, "")
			})
			if with == "hook" {
				for reacted.Load() < int64(b.N) {
					time.Sleep(time.Millisecond)
				}
				b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "reactions/s")
			}
			cancel()
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
		})
	}
}
