package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go"
)

// shipping is the consumer of a queue outside of this process.
type shipping struct {
	js   jetstream.JetStream
	ship func(context.Context, string) error
}

// run ships orders until the App drains. Then it takes no new ones, because other
// processes do, and finishes the orders that it has. It acknowledges an order after its work:
// one whose work fails or is cut comes again, here or in another process.
func (s *shipping) run(ctx context.Context) error {
	orders, err := s.js.CreateOrUpdateConsumer(ctx, stream.Name, jetstream.ConsumerConfig{Durable: "shipping", AckWait: 30 * time.Second})
	if err != nil {
		return err
	}
	for {
		lifecycle.Progress(ctx) // a round that never ends is seen
		select {
		case <-lifecycle.Draining(ctx):
			return nil
		default:
		}
		batch, err := orders.Fetch(10, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return err
		}
		for msg := range batch.Messages() {
			s.handle(ctx, msg)
		}
		if err := batch.Error(); err != nil {
			return err
		}
	}
}

func (s *shipping) handle(ctx context.Context, msg jetstream.Msg) {
	if err := s.ship(ctx, string(msg.Data())); err != nil {
		slog.Warn("an order comes again", "error", err)
		_ = msg.Nak() // without it, the order comes after AckWait
		return
	}
	if err := msg.DoubleAck(ctx); err != nil { // it returns when the server has the acknowledgement
		slog.Warn("an order that was shipped may come again", "error", err)
	}
}
