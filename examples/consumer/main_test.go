package main

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

// shop counts how often each order was shipped.
type shop struct {
	mu      sync.Mutex
	shipped map[string]int
	failed  map[string]bool
}

// ship fails the first time for each tenth order, as work does.
func (s *shop) ship(_ context.Context, order string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if order[len(order)-1] == '7' && !s.failed[order] {
		s.failed[order] = true
		return errors.New("the carrier is busy")
	}
	s.shipped[order]++
	return nil
}

func (s *shop) count() (orders, times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.shipped {
		times += n
	}
	return len(s.shipped), times
}

// Two processes share the queue. One is stopped under load: each order that it has
// accepted is shipped once, by one of the two.
func TestEachOrderIsShippedOnce(t *testing.T) {
	server := brokertest.Embedded(t, broker.Config{Listen: "127.0.0.1:0", Sync: broker.SyncInterval, Streams: []jetstream.StreamConfig{stream}})
	s := &shop{shipped: make(map[string]int), failed: make(map[string]bool)}
	start := func() *lifecycletest.App {
		b, err := broker.Connect(t.Context(), broker.Config{URL: server.ClientURL(), Logger: brokertest.Quiet()})
		if err != nil {
			t.Fatal(err)
		}
		app := lifecycletest.New(t, lifecycle.Config{DrainInterval: 2 * time.Second})
		register(app.App, b, "127.0.0.1:0", s.ship)
		app.Start()
		return app
	}
	leaves, stays := start(), start()
	load := leaves.Load("http", "POST /orders/{n}")
	leaves.Signal(syscall.SIGTERM)
	leaves.WantClean()
	leaves.WantOrder("app draining", "worker outbox Stopped", "hook nats running", "app stopped")
	load.WantNoneLost()

	sent, _ := load.Wait()
	brokertest.Await(t, "all orders are shipped", func() bool {
		orders, _ := s.count()
		return orders >= sent
	})
	stays.Signal(syscall.SIGTERM)
	stays.WantClean()
	if orders, times := s.count(); orders != sent || times != sent {
		t.Errorf("%d orders were accepted, and %d were shipped, %d times", sent, orders, times)
	}
}
