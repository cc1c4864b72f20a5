// Command podinfo is podinfo (github.com/stefanprodan/podinfo), an HTTP service with Redis, as
// units of an App. It has the settings of the project's own main, which is cmd/podinfo, but
// for its stress test.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/spf13/viper"
	calls "github.com/stefanprodan/podinfo/pkg/api/grpc"
	web "github.com/stefanprodan/podinfo/pkg/api/http"
	"go.uber.org/zap"
)

func main() { lifecycle.Main(run) }

func run() error {
	defer func() { _ = zap.L().Sync() }()
	var cfg web.Config
	if err := settings(&cfg); err != nil {
		return err
	}
	log, err := logger(viper.GetString("level"))
	if err != nil {
		return err
	}
	app, err := lifecycle.New(lifecycle.Config{HealthAddr: viper.GetString("health-addr"), TerminationGrace: 30 * time.Second})
	if err != nil {
		return err
	}
	srv, err := web.NewServer(&cfg, log)
	if err != nil {
		return err
	}
	// podinfo gives its handler only with a server that listens: that one ends at once.
	host, port, secure := cfg.Host, cfg.Port, cfg.SecurePort
	cfg.Host, cfg.Port, cfg.SecurePort = "127.0.0.1", "", "0"
	inner, _, healthy, ready := srv.ListenAndServe()
	if err := inner.Close(); err != nil {
		return err
	}
	serve := func(name, port string, with *tls.Config) {
		app.Serve(name, &http.Server{Addr: net.JoinHostPort(host, port), Handler: inner.Handler, TLSConfig: with,
			ReadTimeout: cfg.HttpServerTimeout, WriteTimeout: cfg.HttpServerTimeout, IdleTimeout: 2 * cfg.HttpServerTimeout})
	}
	if port != "0" {
		serve("http", port, nil)
	}
	if secure != "0" {
		cert, err := tls.LoadX509KeyPair(filepath.Join(cfg.CertPath, "tls.crt"), filepath.Join(cfg.CertPath, "tls.key"))
		if err != nil {
			return err
		}
		serve("https", secure, &tls.Config{Certificates: []tls.Certificate{cert}})
	}
	var callsCfg calls.Config
	if err := viper.Unmarshal(&callsCfg); err != nil {
		return err
	}
	if callsCfg.Port > 0 {
		srv, err := calls.NewServer(&callsCfg, log)
		if err != nil {
			return err
		}
		app.Go("grpc", serveCalls(srv))
	}
	app.Probe("podinfo", lifecycle.ProbeFunc(func(context.Context) error {
		if atomic.LoadInt32(healthy) == 0 || atomic.LoadInt32(ready) == 0 {
			return errors.New("switched off at /readyz/disable")
		}
		return nil
	}))
	return app.Run(context.Background())
}

// serveCalls runs podinfo's gRPC server, which binds its own port, until the window is over.
func serveCalls(srv *calls.Server) func(context.Context) error {
	return func(ctx context.Context) error {
		running := srv.ListenAndServe()
		<-ctx.Done()
		running.GracefulStop()
		return nil
	}
}
