package main

import (
	"context"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The consumer is restarted three times while a thousand orders arrive, and then the service
// drains: each order is shipped once.
func TestConsumerSurvivesRestartsAndADrain(t *testing.T) {
	const orders, restarts = 1000, 3
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	defer srv.WaitForShutdown()
	defer srv.Shutdown()
	if !srv.ReadyForConnections(time.Minute) {
		t.Fatal("the server did not start")
	}
	queue, err := nats.Connect(srv.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer queue.Close()

	var mu sync.Mutex
	shipped := make(map[string]int)
	s := &service{queue: queue, ship: func(_ context.Context, order string) error {
		mu.Lock()
		defer mu.Unlock()
		shipped[order]++
		return nil
	}}
	app := lifecycletest.New(t, lifecycle.Config{})
	app.Supervise("consumer", s.consume, lifecycle.DefaultBackoff())
	app.Start()
	subscribed := func() {
		for deadline := time.Now().Add(time.Minute); queue.NumSubscriptions() == 0; {
			if time.Now().After(deadline) {
				t.Fatal("the consumer did not subscribe")
			}
			time.Sleep(time.Millisecond)
		}
	}
	for life := range restarts + 1 {
		subscribed() // without JetStream NATS drops an order to which no client has subscribed
		const each = orders / (restarts + 1)
		for i := range each {
			if err := queue.Publish("orders", []byte(strconv.Itoa(life*each+i))); err != nil {
				t.Fatal(err)
			}
		}
		if err := queue.Flush(); err != nil {
			t.Fatal(err)
		}
		if life < restarts { // most of the orders wait in the subscription
			if err := app.RestartUnit(t.Context(), "consumer"); err != nil {
				t.Fatal(err)
			}
		}
	}
	app.Signal(syscall.SIGTERM)
	app.WantClean()
	for order, times := range shipped {
		if times != 1 {
			t.Errorf("order %s was shipped %d times", order, times)
		}
	}
	if len(shipped) != orders {
		t.Errorf("%d of %d orders were shipped", len(shipped), orders)
	}
}
