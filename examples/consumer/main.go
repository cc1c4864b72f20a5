// Command consumer has two consumers that stop in two ways. Orders come over HTTP into a
// queue in this process, the outbox, which publishes them to a queue outside, a stream
// of NATS JetStream. From there any process ships them.
//
//	go run ./examples/consumer
//	curl -X POST localhost:8080/orders/1
//
// It needs no setup: a NATS server runs inside the process. With -nats it uses yours, and
// then a second process (-addr :8090 -health :8091) takes over what the first one leaves.
package main

import (
	"context"
	"flag"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/worker"
)

// stream holds the orders until they are shipped. A message with the ID of one that came
// in the last two minutes is dropped, so an order may be published again.
var stream = jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}, Retention: jetstream.WorkQueuePolicy}

func main() { lifecycle.Main(run) }

func run() error {
	addr := flag.String("addr", ":8080", "serve HTTP on this address")
	health := flag.String("health", ":8081", "address of the health server")
	url := flag.String("nats", "", "the URL of a NATS server with JetStream; empty starts one inside this process")
	flag.Parse()
	cfg := broker.Config{URL: *url, Streams: []jetstream.StreamConfig{stream}}
	if *url == "" {
		dir, err := os.MkdirTemp("", "consumer-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		cfg.StoreDir = dir
	}
	b, err := broker.Connect(context.Background(), cfg)
	if err != nil {
		return err
	}
	app, err := lifecycle.New(lifecycle.Config{HealthAddr: *health, TerminationGrace: 30 * time.Second})
	if err != nil {
		return err
	}
	register(app, b, *addr, func(_ context.Context, order string) error {
		slog.Info("shipped", "order", order)
		return nil
	})
	return app.Run(context.Background())
}

// register adds the parts of the service to the App.
func register(app *lifecycle.App, b *broker.Broker, addr string, ship func(context.Context, string) error) {
	out := &outbox{js: b.JetStream()}
	in := &shipping{js: b.JetStream(), ship: ship}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		out.add(r.PathValue("id"))
		w.WriteHeader(http.StatusAccepted)
	})
	app.Serve("http", &http.Server{Addr: addr, Handler: mux, ReadHeaderTimeout: 5 * time.Second}).
		Go("outbox", out.run).
		Supervise("shipping", in.run, lifecycle.Backoff{Max: 5 * time.Second, MaxRestarts: worker.NoLimit}).
		Probe("nats", lifecycle.ProbeFunc(b.Check)).
		OnShutdown("nats", b.Close)
}
