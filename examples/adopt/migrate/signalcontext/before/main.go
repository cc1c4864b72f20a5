// Command before is a service on signal.NotifyContext: the program that docs/guides/migrating/notify-context.md moves.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	addr := flag.String("addr", ":8080", "serve HTTP on this address")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	srv := &http.Server{Addr: *addr, ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(hello)}
	failed := make(chan error, 1)
	go func() { failed <- srv.ListenAndServe() }()
	go poll(ctx)

	select {
	case err := <-failed:
		log.Fatal(err)
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }

func poll(ctx context.Context) { <-ctx.Done() }
