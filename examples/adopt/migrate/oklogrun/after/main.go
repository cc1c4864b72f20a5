// Command after is the service of docs/guides/migrating/oklog-run.md, moved to an App.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

func main() { lifecycle.Main(run) }

func run() error {
	addr := flag.String("addr", ":8080", "serve HTTP on this address")
	health := flag.String("health", ":8081", "address of the health server")
	flag.Parse()
	srv := &http.Server{Addr: *addr, ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(hello)}

	app, err := lifecycle.New(lifecycle.Config{HealthAddr: *health, TerminationGrace: 30 * time.Second})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	app.Serve("http", srv).
		Actor("poll", func() error { return poll(ctx) }, func(error) { cancel() }) // as it was
	return app.Run(context.Background())
}

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }

func poll(ctx context.Context) error { <-ctx.Done(); return nil }
