// Command before is an HTTP service with Postgres by pgx and NATS, with a main of the usual
// kind: signals, goroutines, Shutdown, and a line for each thing to close.
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
)

func main() {
	addr := flag.String("addr", ":8080", "serve HTTP on this address")
	health := flag.String("health", ":8081", "serve /healthz and /readyz on this address")
	flag.Parse()
	if err := run(*addr, *health); err != nil {
		slog.Error("the service ended", "error", err)
		os.Exit(1)
	}
}

func run(addr, health string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()
	queue, err := nats.Connect(os.Getenv("NATS_URL"), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	defer queue.Close()
	s := &service{db: db, queue: queue}

	var ready readiness
	planes := http.NewServeMux()
	planes.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	planes.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 900*time.Millisecond)
		defer cancel()
		if err := errors.Join(ready.err(), db.Ping(ctx), s.connected(ctx)); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	web := &http.Server{Addr: addr, Handler: s.routes(), ReadHeaderTimeout: 5 * time.Second}
	probes := &http.Server{Addr: health, Handler: planes, ReadHeaderTimeout: 5 * time.Second}

	failed := make(chan error, 3)
	for _, srv := range []*http.Server{web, probes} {
		go func() {
			if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		}()
	}
	var workers sync.WaitGroup
	consuming, cancel := context.WithCancel(context.Background())
	defer cancel()
	workers.Go(func() {
		if err := s.consume(consuming); err != nil {
			failed <- err
		}
	})

	var cause error
	select {
	case cause = <-failed:
	case <-ctx.Done():
		stop() // a second signal ends the process
	}
	ready.down()
	time.Sleep(5 * time.Second) // until the load balancers have noticed
	ctx, cancelStop := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancelStop()
	if err := web.Shutdown(ctx); err != nil {
		cause = errors.Join(cause, err)
	}
	cancel()
	done := make(chan struct{})
	go func() { workers.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		cause = errors.Join(cause, errors.New("the consumer did not end"))
	}
	if err := queue.FlushWithContext(ctx); err != nil {
		cause = errors.Join(cause, err)
	}
	return errors.Join(cause, probes.Shutdown(ctx))
}
