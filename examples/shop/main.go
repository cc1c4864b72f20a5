// Command shop shows how the parts belong together: orders come over HTTP, a pool of
// Python processes prices them, a workflow keeps each order and its deadline, a hosted
// JavaScript worker labels the parcels, and any number of processes share the work over
// one NATS. README.md says how to run three of them.
//
//	POST /orders, Idempotency-Key: 77 ── pool: price.py ──▶ workflow: placed
//	POST /orders/77/pay ───────────────────────────────────▶ paid, or cancelled by the deadline
//	hook of the leader ── stream PARCELS ── hosted label.js ── stream LABELS ──▶ shipped
package main

import (
	"context"
	"net/http"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/js"
	"github.com/pleme-io/lifecycle-go/fleet/lease"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Config has a section for each part: one file, one Load.
type Config struct {
	Addr      string        `usage:"serve HTTP on this address"`
	PayWithin time.Duration `usage:"an order that is not paid within this time is cancelled"`
	Lifecycle lifecycle.Config
	Broker    broker.Config
	Presence  presence.Config
	Pool      procpool.Config
	Host      host.Config
	Operator  operator.Config
}

// WithDefaults returns what holds without a file: NATS runs inside the process.
func (Config) WithDefaults() Config {
	return Config{
		Addr:      "127.0.0.1:8080",
		PayWithin: 15 * time.Minute,
		Broker:    broker.Config{StoreDir: "shop-data", Listen: "127.0.0.1:4222"},
		Pool:      procpool.Config{MaxWorkers: 2, MaxQueue: 100},
	}
}

func main() {
	host.EngineMain(js.New()) // the code of hosted workers runs in children of this program
	lifecycle.Main(run)
}

func run() error {
	cfg, err := config.Load[Config]("shop.yaml", config.WithOptionalFile())
	if err != nil {
		return err
	}
	cfg.Broker.Buckets = []jetstream.KeyValueConfig{
		workflow.Bucket(bucket), workflow.HookBucket(bucket), lease.Bucket("LEASES", 15*time.Second),
	}
	cfg.Broker.Streams = []jetstream.StreamConfig{workflow.Journal(bucket), parcels, labels}

	ctx := context.Background()
	b, err := broker.Connect(ctx, cfg.Broker)
	if err != nil {
		return err
	}
	app, err := lifecycle.New(cfg.Lifecycle)
	if err != nil {
		return err
	}
	// Hooks run last in, first out: NATS closes last, and the fleet hears of the stop until then.
	app.Probe("nats", b).OnShutdown("nats", b.Close)
	presence.Announce(app, b.JetStream(), cfg.Presence)
	if err := build(ctx, app, b, cfg); err != nil {
		app.Stop(err) // Run starts nothing, closes what is open, and returns the error
	}
	return app.Run(ctx)
}

// build adds the parts of the shop to the App.
func build(ctx context.Context, app *lifecycle.App, b *broker.Broker, cfg Config) error {
	prices, err := newPrices(app, cfg.Pool)
	if err != nil {
		return err
	}
	hosted, err := newHost(app, b, cfg.Host)
	if err != nil {
		return err
	}
	mgr, err := newManager(ctx, app, b, cfg.PayWithin)
	if err != nil {
		return err
	}
	orders := workflow.For[*Order](mgr, orderWorkflow)
	shipping := &shipping{js: b.JetStream(), orders: orders}
	app.Supervise("shipping", shipping.run, lifecycle.Backoff{Max: 5 * time.Second, MaxRestarts: worker.NoLimit})

	front := &front{orders: orders, prices: prices}
	app.Serve("http", &http.Server{Addr: cfg.Addr, Handler: front.routes(), ReadHeaderTimeout: 5 * time.Second})
	return operate(ctx, app, b, cfg, mgr, hosted)
}

// operate serves the dashboard and the operators' API.
func operate(ctx context.Context, app *lifecycle.App, b *broker.Broker, cfg Config, mgr *workflow.Manager, hosted *host.Host) error {
	fleet, err := presence.Open(ctx, b.JetStream(), cfg.Presence)
	if err != nil {
		return err
	}
	audit, err := operator.OpenAuditLog(ctx, b.JetStream(), operator.AuditLogConfig{})
	if err != nil {
		return err
	}
	cfg.Operator.Workflows = operator.FromManager(mgr)
	cfg.Operator.Workers = operator.FromHost(hosted)
	cfg.Operator.Processes = operator.FromPresence(fleet)
	cfg.Operator.Dependencies = []operator.Dependency{{Name: "NATS", Check: b.Check}}
	cfg.Operator.AuditLog = audit
	server, err := operator.New(cfg.Operator)
	if err != nil {
		return err
	}
	app.Serve("dashboard", server.HTTPServer()).OnShutdown("dashboard", server.Close)
	return nil
}
