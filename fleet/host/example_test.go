package host_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
)

// A counter counts each message once, however often the message is delivered. The
// handler's writes to its state take effect when the message succeeds, and not at all
// when it fails. Here every first attempt fails after it has counted.
func Example_exactlyOnce() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	quiet := slog.New(slog.DiscardHandler)
	b, err := broker.Connect(ctx, broker.Config{StoreDir: dir, Sync: broker.SyncInterval, Logger: quiet,
		Streams: []jetstream.StreamConfig{{Name: "SHOP", Subjects: []string{"orders", "totals"}}}})
	if err != nil {
		panic(err)
	}
	defer b.Close(ctx)
	engines, err := engine.NewRegistry(starlark.New())
	if err != nil {
		panic(err)
	}
	h, err := host.New(b.JetStream(), host.Config{Engines: engines, RetryBase: time.Millisecond, Logger: quiet})
	if err != nil {
		panic(err)
	}
	if err := h.Start(ctx); err != nil {
		panic(err)
	}
	defer h.Stop(ctx)

	_, err = h.Create(ctx, host.Spec{
		ID: "sum", MIMEType: "text/x-starlark", Topic: "orders", OutputTopic: "totals",
		Code: []byte(`
def handle(message):
    total = int(state.get("total") or "0") + int(message.text)
    state.put("total", str(total))
    if message.attempt == 1:
        fail("after the count")
    return str(total)
`)})
	if err != nil {
		panic(err)
	}
	for _, order := range []string{"5", "7", "30"} {
		if _, err := b.JetStream().Publish(ctx, "orders", []byte(order)); err != nil {
			panic(err)
		}
	}
	totals, err := b.JetStream().OrderedConsumer(ctx, "SHOP", jetstream.OrderedConsumerConfig{FilterSubjects: []string{"totals"}})
	if err != nil {
		panic(err)
	}
	var last string
	for range 3 {
		m, err := totals.Next(jetstream.FetchMaxWait(2 * time.Minute))
		if err != nil {
			panic(err)
		}
		last = string(m.Data())
	}
	fmt.Println("total:", last)
	// Output: total: 42
}
