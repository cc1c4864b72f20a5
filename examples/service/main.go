// Command service is a small HTTP service that uses lifecycle: a database,
// a readiness probe on it, a supervised poller, long-lived streams that learn
// when to end, and hooks that close resources. Start it, open a stream,
// press Ctrl-C and read the log:
//
//	go run ./examples/service
//	curl -N localhost:8080/events
//	curl -X POST 'localhost:8080/work?note=hello'
//	curl localhost:8081/readyz
//
// At a terminal there is no load balancer to wait for, so Ctrl-C skips the drain
// window. With -lifecycle.drain-wait=always it takes its five seconds, as in a
// cluster. -h lists the configuration, by flags, in the environment and in a
// file service.yaml. The service takes over changes of that file while it runs.
package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/kube"
	"github.com/pleme-io/lifecycle-go/metrics"
)

func main() { lifecycle.Main(run) }

func run() error {
	live, err := config.Open[Config]("service.yaml", config.WithOptionalFile()) // defaults < file < environment < flags
	if err != nil {
		return err
	}
	cfg := live.Get()
	log := newLogger(cfg.Log, os.Stderr)
	slog.SetDefault(log)
	db, err := openStore(cfg.DB)
	if err != nil {
		return err
	}
	svc := newService(log, db)

	opts, err := options(cfg, svc.hub)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	app, err := lifecycle.New(cfg.Lifecycle, append(opts, metrics.With(svc.metrics))...)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	live.Attach(app).
		Serve("http", newServer(cfg.Addr, svc.routes(cfg.AllowFaults))).
		Supervise("poller", svc.poll(cfg.Poll), lifecycle.DefaultBackoff()).
		Probe("db", lifecycle.ProbeFunc(db.Ping), lifecycle.WithCache(time.Second)).
		OnDrain("streams", svc.hub).
		OnShutdown("db", func(context.Context) error { return db.Close() })
	if cfg.AllowFaults {
		svc.faults.register(app)
	}
	return app.Run(context.Background())
}

// options returns the options of the App that ask Kubernetes, or none.
func options(cfg Config, streams *hub) ([]lifecycle.Option, error) {
	if !cfg.Kube {
		return nil, nil
	}
	cluster, err := kube.New(kube.Config{})
	if err != nil {
		return nil, err
	}
	opts := []lifecycle.Option{cluster.Window(kube.WindowConfig{}), cluster.Self(kube.SelfConfig{})}
	if cfg.KubeEvictions {
		opts = append(opts, cluster.Evictions(kube.EvictionConfig{Wait: streams.Wait}))
	}
	return opts, nil
}

// newServer speaks HTTP/1.1 and, without TLS too, HTTP/2.
func newServer(addr string, routes http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Addr:              addr,
		Handler:           routes,
		Protocols:         protocols,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
	}
}
