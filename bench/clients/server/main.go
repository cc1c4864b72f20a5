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
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/wrapperspb"

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

// work is what each request takes.
const work = 5 * time.Millisecond

var answer = strings.Repeat("ok ", 66) + "ok" // 200 bytes

// routes is the handler of both kinds of server. ready answers /readyz, for proxies that
// can only ask the port that they send requests to.
func routes(ready http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/readyz", ready)
	mux.HandleFunc("/socket", socket)
	mux.HandleFunc("/events", events)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(work)
		_, _ = io.WriteString(w, answer)
	})
	return mux
}

// socket echoes messages. When the process is stopping it closes the websocket with 1001,
// as soon as no message is in progress. Draining never closes without an App.
func socket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // the page has another origin
	if err != nil {
		return
	}
	defer func() { _ = c.CloseNow() }()
	messages := make(chan []byte)
	go func() {
		defer close(messages)
		for {
			_, text, err := c.Read(context.Background())
			if err != nil {
				return
			}
			messages <- text
		}
	}()
	for {
		select {
		case text, ok := <-messages:
			if !ok {
				return
			}
			time.Sleep(work)
			if err := c.Write(r.Context(), websocket.MessageText, text); err != nil {
				return
			}
		case <-lifecycle.Draining(r.Context()):
			go func() {
				for range messages { // until Read has returned
				}
			}()
			_ = c.Close(websocket.StatusGoingAway, "stopping") // the client may be gone
			return
		}
	}
}

// events sends an event for each tick, a tenth of a second, from the one behind
// Last-Event-ID on. When the process is stopping it returns, and the browser comes back.
func events(w http.ResponseWriter, r *http.Request) {
	const tick = 100 // milliseconds
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Content-Type", "text/event-stream")
	next := time.Now().UnixMilli() / tick
	if last, err := strconv.ParseInt(r.Header.Get("Last-Event-ID"), 10, 64); err == nil {
		next = last + 1
	}
	_, _ = io.WriteString(w, "retry: 200\n\n")
	for ; ; next++ {
		select {
		case <-time.After(time.Until(time.UnixMilli(next * tick))):
		case <-lifecycle.Draining(r.Context()):
			return
		case <-r.Context().Done():
			return
		}
		if _, err := fmt.Fprintf(w, "id: %d\ndata: %d\n\n", next, next); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush() // the next write fails too
	}
}

// newGRPC returns a server with the method /bench.Echo/Call, which takes and returns a
// BytesValue: a client without generated code sends an empty message.
func newGRPC(config *tls.Config) *grpc.Server {
	var opts []grpc.ServerOption
	if config != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(config)))
	}
	srv := grpc.NewServer(opts...)
	srv.RegisterService(&grpc.ServiceDesc{
		ServiceName: "bench.Echo",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Call",
			Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				if err := decode(new(wrapperspb.BytesValue)); err != nil {
					return nil, err
				}
				time.Sleep(work)
				return wrapperspb.Bytes([]byte(answer)), nil
			},
		}},
	}, nil)
	return srv
}
