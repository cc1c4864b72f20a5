// Command after is the service of docs/guides/migrating/fx.md, moved to an App.
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
	s := &store{greeting: "hello"}
	srv := &http.Server{Addr: *addr, ReadHeaderTimeout: 5 * time.Second, Handler: s}

	app, err := lifecycle.New(lifecycle.Config{HealthAddr: *health, TerminationGrace: 30 * time.Second})
	if err != nil {
		return err
	}
	app.Serve("http", srv).
		OnShutdown("store", s.close)
	return app.Run(context.Background())
}

type store struct{ greeting string }

func (s *store) ServeHTTP(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, s.greeting) }

func (s *store) close(context.Context) error { s.greeting = "closed"; return nil }
