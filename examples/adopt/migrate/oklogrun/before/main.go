// Command before is a service on oklog/run: the program that docs/guides/migrating/oklog-run.md moves.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"syscall"
	"time"

	"github.com/oklog/run"
)

func main() {
	addr := flag.String("addr", ":8080", "serve HTTP on this address")
	flag.Parse()
	srv := &http.Server{Addr: *addr, ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(hello)}

	var g run.Group
	g.Add(run.SignalHandler(context.Background(), syscall.SIGINT, syscall.SIGTERM))
	g.Add(srv.ListenAndServe, func(error) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			log.Printf("shut down: %v", err)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	g.Add(func() error { return poll(ctx) }, func(error) { cancel() })
	if err := g.Run(); err != nil && !errors.Is(err, run.ErrSignal) {
		log.Fatal(err)
	}
}

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }

func poll(ctx context.Context) error { <-ctx.Done(); return nil }
