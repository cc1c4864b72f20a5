// Command before is a service on fx: the program that docs/guides/migrating/fx.md moves.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.uber.org/fx"
)

func main() {
	addr := flag.String("addr", ":8080", "serve HTTP on this address")
	flag.Parse()
	fx.New(
		fx.Provide(
			func() *store { return &store{greeting: "hello"} },
			func(s *store) *http.Server {
				return &http.Server{Addr: *addr, ReadHeaderTimeout: 5 * time.Second, Handler: s}
			},
		),
		fx.Invoke(serve),
	).Run()
}

func serve(lc fx.Lifecycle, stop fx.Shutdowner, srv *http.Server, s *store) {
	lc.Append(fx.Hook{OnStop: s.close})
	lc.Append(fx.Hook{
		OnStart: func(context.Context) error {
			ln, err := net.Listen("tcp", srv.Addr)
			if err != nil {
				return err
			}
			go func() {
				if err := srv.Serve(ln); err != http.ErrServerClosed {
					_ = stop.Shutdown(fx.ExitCode(1))
				}
			}()
			return nil
		},
		OnStop: srv.Shutdown,
	})
}

type store struct{ greeting string }

func (s *store) ServeHTTP(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, s.greeting) }

func (s *store) close(context.Context) error { s.greeting = "closed"; return nil }
