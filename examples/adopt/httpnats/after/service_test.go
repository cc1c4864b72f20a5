package main

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The consumer is restarted three times while a thousand orders arrive: each is shipped once.
func TestConsumerSurvivesRestarts(t *testing.T) {
	const orders, lives = 1000, 4
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

	s := &service{queue: queue}
	shipped := make(map[string]int) // only the running consumer uses it
	ship := func(_ context.Context, order string) error { shipped[order]++; return nil }
	for life := range lives {
		sub, err := queue.QueueSubscribeSync("orders", "shipping")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.shipAll(ctx, sub, ship) }()
		for i := range orders / lives {
			if err := queue.Publish("orders", []byte(strconv.Itoa(life*orders/lives+i))); err != nil {
				t.Fatal(err)
			}
		}
		if err := queue.Flush(); err != nil {
			t.Fatal(err)
		}
		cancel() // most of the orders wait in the subscription
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	for order, times := range shipped {
		if times != 1 {
			t.Errorf("order %s was shipped %d times", order, times)
		}
	}
	if len(shipped) != orders {
		t.Errorf("%d of %d orders were shipped", len(shipped), orders)
	}
}
