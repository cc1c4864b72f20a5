// Command before is a service on suture: the program that docs/guides/migrating/suture.md moves.
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

	"github.com/thejerf/suture/v4"
)

func main() {
	addr := flag.String("addr", ":8080", "serve HTTP on this address")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	root := suture.New("root", suture.Spec{Timeout: 10 * time.Second})
	root.Add(&server{srv: &http.Server{Addr: *addr, ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(hello)}})
	feeds := suture.New("feeds", suture.Spec{FailureBackoff: time.Second})
	for _, name := range []string{"prices", "rates"} {
		feeds.Add(&feed{name})
	}
	root.Add(feeds)
	if err := root.Serve(ctx); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }

type server struct{ srv *http.Server }

func (s *server) Serve(ctx context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- s.srv.ListenAndServe() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 8*time.Second)
	defer cancel()
	return s.srv.Shutdown(ctx)
}

type feed struct{ name string }

func (f *feed) Serve(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
