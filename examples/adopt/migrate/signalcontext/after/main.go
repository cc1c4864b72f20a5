// Command after is the service of docs/guides/migrating/notify-context.md, moved to an App.
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
	app, err := lifecycle.New(lifecycle.Config{HealthAddr: *health, TerminationGrace: 30 * time.Second})
	if err != nil {
		return err
	}
	app.Serve("http", &http.Server{Addr: *addr, ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(hello)}).
		Go("poll", func(ctx context.Context) error { poll(ctx); return nil })
	return app.Run(context.Background())
}

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }

func poll(ctx context.Context) { <-ctx.Done() }
