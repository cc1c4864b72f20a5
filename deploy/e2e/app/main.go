// Command app is what examples/service cannot be: a server without the library,
// an app that starts slowly or never, streams that ignore the drain, memory that
// runs out. It is for the tests in the folder above.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/grpcdrain"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func main() { lifecycle.Main(run) }

func run() error {
	var (
		server   = flag.String("server", "lifecycle", "lifecycle, or plain: an http.Server that calls Shutdown at SIGTERM")
		starting = flag.Duration("start-after", 0, "not ready for this long")
		never    = flag.String("never", "", "start: a unit never starts; return: nor does it return when its context ends")
		calls    = flag.String("grpc", "", "serve gRPC's health service and a chat on this address too")
		secure   = flag.String("tls", "", "serve the same by TLS on this address too")
		cfg      lifecycle.Config
	)
	flag.DurationVar(&cfg.DrainInterval, "drain-interval", 0, "see lifecycle.Config")
	flag.DurationVar(&cfg.AcceptQuiet, "accept-quiet", 0, "see lifecycle.Config")
	flag.StringVar((*string)(&cfg.DrainReadiness), "drain-readiness", "", "see lifecycle.Config")
	flag.Parse()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if *server == "plain" {
		return plain(*secure, *calls)
	}
	app, err := lifecycle.New(cfg, lifecycle.WithLogger(log))
	if err != nil {
		return err
	}
	app.Serve("http", newServer(":8080", routes())).
		OnResize("sizes", func(_ context.Context, r lifecycle.Resources) error {
			log.Info("resized", "memory", r.Memory, "cpus", r.CPUs)
			return nil
		}).
		OnShutdown("last", func(context.Context) error { return nil })
	if *secure != "" {
		srv, err := newTLSServer(*secure)
		if err != nil {
			return err
		}
		app.Serve("https", srv)
	}
	if *calls != "" {
		if err := serveGRPC(app, *calls); err != nil {
			return err
		}
	}
	if *starting > 0 || *never != "" {
		app.Go("slow", slowly(*starting, *never), lifecycle.WithStartCondition())
	}
	return app.Run(context.Background())
}

// serveGRPC adds a gRPC server with the health service and the chat.
func serveGRPC(app *lifecycle.App, addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	srv, planes := newGRPC(grpcdrain.Options(app, "grpc")...)
	app.GRPC("grpc", srv, ln, planes)
	return nil
}

func newGRPC(opts ...grpc.ServerOption) (*grpc.Server, *health.Server) {
	srv, planes := grpc.NewServer(opts...), health.NewServer()
	healthpb.RegisterHealthServer(srv, planes)
	srv.RegisterService(&chatService, nil)
	return srv, planes
}

// slowly returns a unit that starts slowly, or never.
func slowly(after time.Duration, never string) func(context.Context) error {
	return func(ctx context.Context) error {
		if never == "return" {
			select {}
		}
		if never == "" {
			timer := time.NewTimer(after)
			defer timer.Stop()
			select {
			case <-timer.C:
				lifecycle.MarkStarted(ctx)
			case <-ctx.Done():
			}
		}
		<-ctx.Done()
		return nil
	}
}

// plain runs a server as most services do: a goroutine waits for the signal and calls
// Shutdown.
func plain(secure, calls string) error {
	health := http.NewServeMux()
	health.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	probes := newServer(":8081", health)
	go func() { _ = probes.ListenAndServe() }() // ends with the process

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	srv := newServer(":8080", routes())
	stopOthers, err := plainProtocols(secure, calls)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		var others sync.WaitGroup
		others.Go(func() { stopOthers(grace) })
		err := srv.Shutdown(grace)
		others.Wait()
		ended <- err
	}()
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-ended
}

func newServer(addr string, handler http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{Addr: addr, Handler: handler, Protocols: protocols, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
}

func routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	mux.HandleFunc("POST /work", work)
	mux.HandleFunc("GET /events", events)
	mux.HandleFunc("GET /chat", chat)
	mux.HandleFunc("GET /endless", endless)
	mux.HandleFunc("GET /hijacked", hijacked)
	mux.HandleFunc("POST /oom", func(http.ResponseWriter, *http.Request) { eat() })
	return mux
}

func work(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.WriteHeader(http.StatusCreated)
}

// endless is a stream that ends only with its context.
func endless(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		fmt.Fprint(w, "event: tick\ndata: .\n\n")
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}

// hijacked takes the connection over and reads from it for ever, like a websocket
// handler that never ends.
func hijacked(w http.ResponseWriter, _ *http.Request) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: e2e\r\n\r\n")
	_ = rw.Flush()
	_, _ = io.Copy(io.Discard, rw)
}

// eat allocates memory until there is none.
func eat() {
	var all [][]byte
	for {
		page := make([]byte, 1<<20)
		for i := range page {
			page[i] = 1
		}
		all = append(all, page)
		time.Sleep(time.Millisecond)
		_ = all
	}
}
