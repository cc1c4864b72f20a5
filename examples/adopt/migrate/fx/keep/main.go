// Command keep is the service of docs/guides/migrating/fx.md with fx as its container and an App as its life.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"go.uber.org/fx"
)

func main() { lifecycle.Main(run) }

func run() error {
	addr := flag.String("addr", ":8080", "serve HTTP on this address")
	health := flag.String("health", ":8081", "address of the health server")
	flag.Parse()
	var app *lifecycle.App
	container := fx.New(
		fx.Provide(
			func() *store { return &store{greeting: "hello"} },
			func(s *store) *http.Server {
				return &http.Server{Addr: *addr, ReadHeaderTimeout: 5 * time.Second, Handler: s}
			},
			func() (*lifecycle.App, error) {
				return lifecycle.New(lifecycle.Config{HealthAddr: *health, TerminationGrace: 30 * time.Second})
			},
		),
		fx.Invoke(func(app *lifecycle.App, srv *http.Server, s *store) {
			app.Serve("http", srv).OnShutdown("store", s.close)
		}),
		fx.Populate(&app),
	)
	if err := container.Err(); err != nil {
		return err
	}
	return app.Run(context.Background())
}

type store struct{ greeting string }

func (s *store) ServeHTTP(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, s.greeting) }

func (s *store) close(context.Context) error { s.greeting = "closed"; return nil }
