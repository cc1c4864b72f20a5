// Command after is the service of docs/guides/migrating/suture.md, moved to an App.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/worker"
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
	register(app, *addr)
	return app.Run(context.Background())
}

func register(app *lifecycle.App, addr string) {
	var feeds []worker.Spec
	for _, name := range []string{"prices", "rates"} {
		feeds = append(feeds, worker.FuncSpec(name, (&feed{name}).Serve))
	}
	app.Serve("http", &http.Server{Addr: addr, ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(hello)}).
		Add(worker.NewSupervisor("feeds", worker.SupervisorConfig{
			Children: feeds,
			Backoff:  worker.Backoff{Min: time.Second},
		}))
}

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }

type feed struct{ name string }

func (f *feed) Serve(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
