package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/js"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

const (
	parcelOf = "shop.parcels." // and the order's id: the parcels of one order keep their order
	labelled = "shop.labels"
)

var (
	parcels = jetstream.StreamConfig{Name: "PARCELS", Subjects: []string{parcelOf + "*"}, Retention: jetstream.WorkQueuePolicy}
	labels  = jetstream.StreamConfig{Name: "LABELS", Subjects: []string{labelled}, MaxAge: 7 * 24 * time.Hour}
)

//go:embed label.js
var labelJS []byte

// newHost adds a host of hosted workers, and deploys the one that labels parcels. All
// processes do: the first one creates it, and the others find that nothing differs.
func newHost(app *lifecycle.App, b *broker.Broker, cfg host.Config) (*host.Host, error) {
	var err error
	if cfg.Engines, err = engine.NewRegistry(js.New()); err != nil {
		return nil, err
	}
	h, err := host.New(b.JetStream(), cfg)
	if err != nil {
		return nil, err
	}
	deploy := func(ctx context.Context) error {
		_, err := h.Apply(ctx, host.Spec{
			ID:          "label",
			MIMEType:    "text/javascript",
			Topic:       parcelOf + "*",
			OutputTopic: labelled,
			Code:        labelJS,
			By:          "shop",
		})
		return err
	}
	app.Add(h).Probe("hosted", h).OnDrain("hosted", h).Supervise("deploy", deploy, lifecycle.DefaultBackoff())
	return h, nil
}

// shipping takes labels and says in the workflow that their orders are shipped.
type shipping struct {
	js     jetstream.JetStream
	orders workflow.Typed[*Order]
}

// run stops when the App drains, because the other processes take the next labels.
func (s *shipping) run(ctx context.Context) error {
	queue, err := s.js.CreateOrUpdateConsumer(ctx, labels.Name, jetstream.ConsumerConfig{Durable: "shipping", AckWait: 5 * time.Second})
	if err != nil {
		return err
	}
	for {
		select {
		case <-lifecycle.Draining(ctx):
			return nil
		default:
		}
		batch, err := queue.Fetch(10, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return err
		}
		for msg := range batch.Messages() {
			if err := s.ship(ctx, msg.Data()); err != nil {
				return err // the message comes again after AckWait
			}
			if err := msg.DoubleAck(ctx); err != nil {
				return err
			}
		}
		if err := batch.Error(); err != nil {
			return err
		}
	}
}

// ship may be called twice for a label. The table lets an order be shipped once.
func (s *shipping) ship(ctx context.Context, data []byte) error {
	var parcel struct{ Order, Label string }
	if err := json.Unmarshal(data, &parcel); err != nil {
		return fmt.Errorf("read a label: %w", err)
	}
	err := s.orders.TransitionWith(ctx, parcel.Order, "shipped", workflow.TransitionSourceComponent, parcel.Label, func(o *Order) error {
		o.Label = parcel.Label
		return nil
	})
	if errors.Is(err, workflow.ErrTerminalPhase) {
		return nil
	}
	return err
}
