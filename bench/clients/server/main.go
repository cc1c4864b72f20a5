// Command server is the server that clients meet in package clients, in two kinds:
// "ours" is an App with the default Config, "sleep" is the same handler on net/http (or
// grpc-go), which on SIGTERM sleeps 5 s and then calls Shutdown with 20 s. Both have a
// health port whose /readyz answers 503 from SIGTERM on. It prints one line of JSON with
// its addresses when it serves.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	lifecycle "github.com/pleme-io/lifecycle-go"
)

// What most programs without a library for it do: docs of Kubernetes and of clouds
// advise a sleep in the stop, and net/http has Shutdown.
const (
	sleepBeforeShutdown = 5 * time.Second
	shutdownTimeout     = 20 * time.Second
)

func main() {
	kind := flag.String("kind", "ours", "ours or sleep")
	cert := flag.String("cert", "", "file of a certificate and its key: serve TLS")
	rpc := flag.Bool("grpc", false, "serve gRPC")
	flag.Parse()
	err := run(*kind, *cert, *rpc)
	if err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
	}
	os.Exit(lifecycle.ExitCode(err))
}

func run(kind, cert string, rpc bool) error {
	var config *tls.Config
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, cert)
		if err != nil {
			return err
		}
		config = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
		if keys := os.Getenv("SSLKEYLOGFILE"); keys != "" { // for tshark
			if config.KeyLogWriter, err = os.OpenFile(keys, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
				return err
			}
		}
	}
	switch {
	case kind == "ours" && rpc:
		return oursGRPC(config)
	case kind == "ours":
		return ours(config)
	case kind == "sleep" && rpc:
		return sleepGRPC(config)
	case kind == "sleep":
		return sleep(config)
	}
	return fmt.Errorf("unknown kind %q", kind)
}

func newServer(config *tls.Config, ready http.Handler) *http.Server {
	srv := &http.Server{
		Addr:              "127.0.0.1:0",
		Handler:           routes(ready),
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig:         config,
		Protocols:         new(http.Protocols),
	}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetHTTP2(config != nil)
	srv.Protocols.SetUnencryptedHTTP2(config == nil) // for proxies that speak HTTP/2 to the server
	return srv
}

func newApp() (*lifecycle.App, error) {
	return lifecycle.New(lifecycle.Config{HealthAddr: "127.0.0.1:0", TerminationLog: "off"},
		lifecycle.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))))
}

func ours(config *tls.Config) error {
	app, err := newApp()
	if err != nil {
		return err
	}
	srv := newServer(config, app.Handler())
	app.Serve("main", srv)
	return runApp(app, func() net.Addr { return app.Addr("main") })
}

func oursGRPC(config *tls.Config) error {
	app, err := newApp()
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	app.GRPC("main", newGRPC(config), ln, nil)
	return runApp(app, ln.Addr)
}

func runApp(app *lifecycle.App, addr func() net.Addr) error {
	go func() {
		<-app.Reached(lifecycle.PhaseRunning)
		announce(addr(), app.HealthAddr())
	}()
	return app.Run(context.Background())
}

func sleep(config *tls.Config) error {
	var stopping atomic.Bool
	srv := newServer(config, readiness(&stopping))
	ln, err := net.Listen("tcp", srv.Addr)
	if err != nil {
		return err
	}
	go func() {
		serve := srv.Serve
		if config != nil {
			serve = func(ln net.Listener) error { return srv.ServeTLS(ln, "", "") }
		}
		if err := serve(ln); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintln(os.Stderr, "server:", err)
			os.Exit(1)
		}
	}()
	return sleepThen(ln.Addr(), &stopping, srv.Shutdown)
}

func sleepGRPC(config *tls.Config) error {
	srv := newGRPC(config)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() {
		if err := srv.Serve(ln); err != nil {
			fmt.Fprintln(os.Stderr, "server:", err)
			os.Exit(1)
		}
	}()
	return sleepThen(ln.Addr(), new(atomic.Bool), func(ctx context.Context) error {
		stopped := context.AfterFunc(ctx, srv.Stop)
		srv.GracefulStop()
		if !stopped() {
			return ctx.Err()
		}
		return nil
	})
}

// sleepThen waits for SIGTERM, sleeps, and calls shutdown.
func sleepThen(addr net.Addr, stopping *atomic.Bool, shutdown func(context.Context) error) error {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	health := &http.Server{ReadHeaderTimeout: time.Second, Handler: readiness(stopping)}
	go func() { _ = health.Serve(ln) }()
	announce(addr, ln.Addr())

	<-terminated
	stopping.Store(true)
	time.Sleep(sleepBeforeShutdown)
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	return shutdown(ctx)
}

// readiness answers 503 when the process is stopping.
func readiness(stopping *atomic.Bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if stopping.Load() {
			http.Error(w, "stopping", http.StatusServiceUnavailable)
		}
	})
}

// announce tells the harness where the server listens.
func announce(addr, health net.Addr) {
	_ = json.NewEncoder(os.Stdout).Encode(map[string]string{"addr": addr.String(), "health": health.String()})
}
