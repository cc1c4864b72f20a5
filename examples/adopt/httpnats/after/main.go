// Command after is the HTTP service with Postgres by pgx and NATS as units, probes and hooks
// of an App.
package main

import (
	"context"
	"flag"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/pleme-io/lifecycle-go"
)

func main() {
	addr := flag.String("addr", ":8080", "serve HTTP on this address")
	health := flag.String("health", ":8081", "address of the health server")
	flag.Parse()
	lifecycle.Main(func() error { return run(*addr, *health) })
}

func run(addr, health string) error {
	app, err := lifecycle.New(lifecycle.Config{HealthAddr: health, TerminationGrace: 30 * time.Second})
	if err != nil {
		return err
	}
	db, err := pgxpool.New(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	app.OnShutdown("db", func(context.Context) error { db.Close(); return nil })
	queue, err := nats.Connect(os.Getenv("NATS_URL"), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1))
	if err != nil {
		app.Stop(err)
		return app.Run(context.Background()) // it starts nothing and closes the pool
	}
	s := &service{db: db, queue: queue}
	s.ship = s.shipped
	app.Serve("http", &http.Server{Addr: addr, Handler: s.routes(), ReadHeaderTimeout: 5 * time.Second}).
		Supervise("consumer", s.consume, lifecycle.DefaultBackoff()).
		Probe("db", lifecycle.ProbeFunc(db.Ping), lifecycle.WithCache(time.Second)).
		Probe("nats", lifecycle.ProbeFunc(s.connected)).
		OnShutdown("nats", func(ctx context.Context) error { defer queue.Close(); return queue.FlushWithContext(ctx) })
	return app.Run(context.Background())
}
