package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/worker"
)

// quiet returns the Config of the examples: no health server and no drain window.
func quiet() (lifecycle.Config, lifecycle.Option) {
	return lifecycle.Config{HealthAddr: lifecycle.HealthOff, DrainWait: lifecycle.WaitNever},
		lifecycle.WithLogger(slog.New(slog.DiscardHandler))
}

func Example() {
	app, err := lifecycle.New(quiet())
	if err != nil {
		fmt.Println(err)
		return
	}
	app.Go("work", func(ctx context.Context) error {
		<-app.Reached(lifecycle.PhaseRunning)
		fmt.Println("working")
		app.Stop(nil) // in real life a signal does this
		<-ctx.Done()
		fmt.Println("work ends")
		return ctx.Err()
	}).
		OnDrain("sessions", lifecycle.DrainFunc(func(context.Context) error { fmt.Println("sessions released"); return nil })).
		OnShutdown("db", func(context.Context) error { fmt.Println("database closed"); return nil })
	fmt.Println("exit", lifecycle.ExitCode(app.Run(context.Background())))
	// Output:
	// working
	// sessions released
	// work ends
	// database closed
	// exit 0
}

func ExampleApp_Go() {
	app, _ := lifecycle.New(quiet())
	app.Go("reconcile", func(ctx context.Context) error {
		return lifecycle.RunLoop(ctx, time.Minute, func(context.Context) error {
			return errors.New("the API server is gone")
		}, lifecycle.WithImmediateTick(), lifecycle.WithStopOnError())
	})
	fmt.Println(app.Run(context.Background()))
	// Output: unit reconcile: the API server is gone
}

func ExampleApp_Job() {
	app, _ := lifecycle.New(quiet())
	app.Job("migrate", func(ctx context.Context) error {
		fmt.Println("42 rows migrated")
		return nil // a signal would have cancelled ctx, and the exit status would be 143
	}).
		OnShutdown("db", func(context.Context) error { fmt.Println("database closed"); return nil })
	fmt.Println("exit", lifecycle.ExitCode(app.Run(context.Background())))
	// Output:
	// 42 rows migrated
	// database closed
	// exit 0
}

func ExampleApp_Actor() {
	app, _ := lifecycle.New(quiet())
	ln, _ := net.Listen("tcp", "127.0.0.1:0")
	app.Actor("echo", func() error {
		for { // blocks, and cannot watch a context
			conn, err := ln.Accept()
			if err != nil {
				return err
			}
			go io.Copy(conn, conn)
		}
	}, func(error) { ln.Close() })
	app.Go("stop", func(context.Context) error { app.Stop(nil); return nil })
	fmt.Println(app.Run(context.Background()))
	// Output: <nil>
}

func ExampleApp_Supervise() {
	app, _ := lifecycle.New(quiet())
	run := 0
	app.Supervise("poller", func(context.Context) error {
		run++
		fmt.Println("run", run)
		if run < 3 {
			return errors.New("connection refused") // run again
		}
		return fmt.Errorf("licence expired: %w", lifecycle.ErrTerminate) // running it again cannot help
	}, lifecycle.Backoff{Min: time.Millisecond})
	fmt.Println(app.Run(context.Background()))
	// Output:
	// run 1
	// run 2
	// run 3
	// unit poller: licence expired: terminate
}

func ExampleApp_Serve() {
	app, _ := lifecycle.New(quiet())
	mux := http.NewServeMux()
	mux.HandleFunc("/hello", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	app.Serve("http", &http.Server{Addr: "127.0.0.1:0", Handler: mux}).
		Go("client", func(context.Context) error {
			<-app.Reached(lifecycle.PhaseRunning)
			resp, err := http.Get("http://" + app.Addr("http").String() + "/hello")
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			io.Copy(os.Stdout, resp.Body)
			app.Stop(nil)
			return nil
		})
	fmt.Println(app.Run(context.Background()))
	// Output:
	// hello
	// <nil>
}

func ExampleStream() {
	cfg, log := quiet()
	cfg.DrainWait, cfg.DrainInterval, cfg.GoAwayAfter, cfg.Linger = lifecycle.WaitAlways, 2*time.Second, 50*time.Millisecond, 200*time.Millisecond
	app, _ := lifecycle.New(cfg, log)
	// A handler whose answer has no end says goodbye before it is cut.
	events := func(w http.ResponseWriter, r *http.Request) {
		draining := lifecycle.Stream(r.Context())
		fmt.Fprint(w, "data: hello\n\n")
		_ = http.NewResponseController(w).Flush()
		app.Stop(nil)
		select {
		case <-draining:
			fmt.Fprint(w, "event: goodbye\ndata:\n\n")
		case <-r.Context().Done():
		}
	}
	app.Serve("http", &http.Server{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(events)}).
		Go("client", func(context.Context) error {
			<-app.Reached(lifecycle.PhaseRunning)
			resp, err := http.Get("http://" + app.Addr("http").String())
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			_, err = io.Copy(os.Stdout, resp.Body)
			return err
		})
	fmt.Println(app.Run(context.Background()))
	// Output:
	// data: hello
	//
	// event: goodbye
	// data:
	//
	// <nil>
}

func ExampleApp_Add() {
	app, _ := lifecycle.New(quiet())
	app.Add(worker.NewFunc("job", func(context.Context) error {
		fmt.Println("any worker will do")
		app.Stop(nil)
		return nil
	}))
	fmt.Println(app.Run(context.Background()))
	// Output:
	// any worker will do
	// <nil>
}

func ExampleApp_Probe() {
	app, _ := lifecycle.New(quiet())
	db := lifecycle.ProbeFunc(func(context.Context) error { return nil }) // db.PingContext
	app.Probe("db", db, lifecycle.WithCache(time.Second)).
		Go("show", func(context.Context) error {
			<-app.Reached(lifecycle.PhaseRunning)
			w := httptest.NewRecorder()
			app.Registry().Handler().ServeHTTP(w, httptest.NewRequest("GET", "/readyz/db", nil))
			fmt.Println(w.Code, w.Body)
			app.Stop(nil)
			return nil
		})
	fmt.Println(app.Run(context.Background()))
	// Output:
	// 200 {"status":"ok","checks":{"db":"ok"}}
	// <nil>
}

func ExampleApp_OnReload() {
	signals := make(chan os.Signal, 1)
	cfg, log := quiet()
	app, _ := lifecycle.New(cfg, log, lifecycle.WithSignals(signals))
	app.OnReload("certificates", func(context.Context) error {
		fmt.Println("certificates read again")
		app.Stop(nil)
		return nil
	})
	signals <- syscall.SIGHUP
	fmt.Println(app.Run(context.Background()))
	// Output:
	// certificates read again
	// <nil>
}

func ExampleApp_OnDrain() {
	app, _ := lifecycle.New(quiet())
	app.OnDrain("sra-sessions", lifecycle.DrainFunc(func(ctx context.Context) error {
		fmt.Println("no new sessions")
		return nil // when the live sessions have ended, or ctx has
	}))
	app.Stop(nil)
	_ = app.Run(context.Background())
}

func ExampleExitCode() {
	fmt.Println(lifecycle.ExitCode(nil))
	fmt.Println(lifecycle.ExitCode(errors.New("disk is full")))
	fmt.Println(lifecycle.ExitCode(&lifecycle.SignalError{Signal: syscall.SIGTERM}))
	// Output:
	// 0
	// 1
	// 143
}

func ExampleApp_OnShutdown() {
	app, _ := lifecycle.New(quiet())
	for _, name := range []string{"database", "cache", "queue"} { // in the order in which they were opened
		app.OnShutdown(name, func(context.Context) error { fmt.Println(name, "closed"); return nil })
	}
	app.Stop(nil)
	fmt.Println(app.Run(context.Background()))
	// Output:
	// queue closed
	// cache closed
	// database closed
	// <nil>
}

func ExampleApp_Stop() {
	app, _ := lifecycle.New(quiet())
	app.Go("guard", func(ctx context.Context) error {
		app.Stop(errors.New("the licence has expired"))
		<-ctx.Done()
		fmt.Println("stopping, because", context.Cause(ctx))
		return ctx.Err()
	})
	err := app.Run(context.Background())
	fmt.Println(err, lifecycle.ExitCode(err))
	// Output:
	// stopping, because the licence has expired
	// the licence has expired 1
}

// A main that fails between New and Run closes what it has opened: Run starts nothing after
// Stop, runs the hooks and returns the error.
func ExampleApp_Stop_beforeRun() {
	open := func(name string, err error) error {
		if err == nil {
			fmt.Println(name, "opened")
		}
		return err
	}
	run := func(ctx context.Context) error {
		app, err := lifecycle.New(quiet())
		if err != nil {
			return err
		}
		if err := open("database", nil); err != nil {
			return err // nothing is open yet
		}
		app.OnShutdown("database", func(context.Context) error { fmt.Println("database closed"); return nil })
		if err := open("queue", errors.New("no route to the queue")); err != nil {
			app.Stop(err)
			return app.Run(ctx)
		}
		app.Go("consumer", func(context.Context) error { fmt.Println("consumer started"); return nil })
		return app.Run(ctx)
	}
	fmt.Println(run(context.Background()))
	// Output:
	// database opened
	// database closed
	// no route to the queue
}

func ExampleMarkStarted() {
	app, _ := lifecycle.New(quiet())
	app.Go("cache", func(ctx context.Context) error {
		fmt.Println("warm up:", app.Phase())
		lifecycle.MarkStarted(ctx)
		<-app.Reached(lifecycle.PhaseRunning)
		fmt.Println("warm:", app.Phase())
		app.Stop(nil)
		<-ctx.Done()
		return ctx.Err()
	}, lifecycle.WithStartCondition())
	fmt.Println(app.Run(context.Background()))
	// Output:
	// warm up: starting
	// warm: running
	// <nil>
}

func ExampleApp_GRPC() {
	app, _ := lifecycle.New(quiet())
	ln, _ := net.Listen("tcp", "127.0.0.1:0")
	var srv lifecycle.GRPCServer = newEchoServer() // grpc.NewServer()
	var health lifecycle.GRPCHealth                // health.NewServer()
	app.GRPC("grpc", srv, ln, health).
		Go("stop", func(context.Context) error {
			<-app.Reached(lifecycle.PhaseRunning)
			app.Stop(nil)
			return nil
		})
	fmt.Println(app.Run(context.Background()))
	// Output: <nil>
}

// echoServer has the shape of a grpc.Server.
type echoServer struct{ quit chan struct{} }

func newEchoServer() *echoServer { return &echoServer{make(chan struct{})} }

func (s *echoServer) Serve(ln net.Listener) error {
	<-s.quit
	return ln.Close()
}

func (s *echoServer) GracefulStop() { close(s.quit) }
func (s *echoServer) Stop()         {}

func ExampleWithMetrics() {
	cfg, log := quiet()
	cfg.HealthAddr = "127.0.0.1:0"
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "jobs_total 3") }) // promhttp.Handler()
	app, _ := lifecycle.New(cfg, log, lifecycle.WithMetrics(metrics))
	app.Go("scraper", func(context.Context) error {
		<-app.Reached(lifecycle.PhaseRunning)
		resp, err := http.Get("http://" + app.HealthAddr().String() + "/metrics")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		defer app.Stop(nil)
		_, err = io.Copy(os.Stdout, resp.Body)
		return err
	})
	fmt.Println(app.Run(context.Background()))
	// Output:
	// jobs_total 3
	// <nil>
}

func ExampleRunLoop() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n := 0
	err := lifecycle.RunLoop(ctx, time.Millisecond, func(context.Context) error {
		if n++; n == 3 {
			cancel()
		}
		return nil
	}, lifecycle.WithImmediateTick(), lifecycle.WithBackoff(time.Minute))
	fmt.Println(n, err)
	// Output:
	// 3 <nil>
}
