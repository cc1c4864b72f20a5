package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/js"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
)

func engines() (*engine.Registry, error) { return engine.NewRegistry(languages()...) }

func languages() []engine.Engine { return []engine.Engine{starlark.New(), js.New()} }

// programs are the initial workers.
var programs = []host.Spec{
	{ID: "count-orders", MIMEType: "text/x-starlark", Topic: "orders.created", Code: []byte(`
def handle(message):
    n = int(state.get("orders") or "0") + 1
    state.put("orders", str(n))
`)},
	{ID: "check-orders", MIMEType: "text/x-starlark", Topic: "orders.created", Code: []byte(`
def handle(message):
    order = json.decode(message.text)
    if order["total"] > 95:
        reject("order %d is too large: %d" % (order["id"], order["total"]))
`)},
}

// hostWorkers runs hosted workers, and publishes orders for them.
func hostWorkers(app *lifecycle.App, b *broker.Broker, log *slog.Logger) error {
	engines, err := engines()
	if err != nil {
		return err
	}
	h, err := host.New(b.JetStream(), host.Config{Engines: engines, Logger: log})
	if err != nil {
		return err
	}
	app.Add(h).Probe("hosted", lifecycle.ProbeFunc(h.Check), lifecycle.WithPeriodic(probeEvery)).OnDrain("hosted", h).
		Go("programs", func(ctx context.Context) error {
			for _, p := range programs {
				p.By = "example"
				if _, err := h.Create(ctx, p); err != nil && !errors.Is(err, host.ErrExists) {
					return err
				}
			}
			return nil
		}).
		Go("orders", func(ctx context.Context) error {
			id := 0
			return lifecycle.RunLoop(ctx, 500*time.Millisecond, func(ctx context.Context) error {
				id++
				total := rand.IntN(95)
				if id%20 == 0 {
					total = 96 // too large: makes a dead letter
				}
				_, err := b.JetStream().Publish(ctx, "orders.created", fmt.Appendf(nil, `{"id":%d,"total":%d}`, id, total))
				return err
			})
		})
	return nil
}
