package lifecycletest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
)

// events is a stream that says goodbye.
func events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, "data: hello\n\n")
	_ = http.NewResponseController(w).Flush()
	select {
	case <-lifecycle.Draining(r.Context()):
		fmt.Fprint(w, "event: goodbye\ndata:\n\n")
	case <-r.Context().Done():
	}
}

// A stop under load loses no request, and the load knows how many it has sent.
func TestLoadCountsWhatWasSentAndLost(t *testing.T) {
	var posted atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{n}", func(w http.ResponseWriter, _ *http.Request) {
		posted.Add(1)
		w.WriteHeader(http.StatusCreated)
	})
	mux.HandleFunc("GET /events", events)
	app := lifecycletest.New(t, lifecycle.Config{DrainInterval: time.Second})
	app.Serve("http", &http.Server{Addr: "127.0.0.1:0", Handler: mux})
	app.Start()

	orders, streams := app.Load("http", "POST /orders/{n}"), app.Load("http", "GET /events")
	app.Signal(syscall.SIGTERM)
	app.WantClean()
	orders.WantNoneLost()
	streams.WantNoneLost()
	if sent, lost := orders.Wait(); int64(sent) != posted.Load() || lost != 0 || sent < 4 {
		t.Errorf("%d sent, %d lost, and the handler has seen %d", sent, lost, posted.Load())
	}
}

func TestLoadSaysWhatWasLost(t *testing.T) {
	var refuse atomic.Bool
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		load    func(app *lifecycletest.App) *lifecycletest.Load
		want    string
	}{
		"a stream that was cut": {
			func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done() // without a goodbye
				panic(http.ErrAbortHandler)
			},
			func(app *lifecycletest.App) *lifecycletest.Load { return app.Load("http", "GET /events") },
			"the answer was cut",
		},
		"a status": {
			func(w http.ResponseWriter, _ *http.Request) {
				if refuse.Load() {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			},
			func(app *lifecycletest.App) *lifecycletest.Load { return app.Load("http", "GET /") },
			"503 Service Unavailable",
		},
		"an error": {
			func(http.ResponseWriter, *http.Request) {},
			func(app *lifecycletest.App) *lifecycletest.Load {
				return app.LoadFunc(func(_ context.Context, n int) error {
					if n > 4 {
						return errors.New("unavailable")
					}
					return nil
				})
			},
			"unavailable",
		},
		"no server": {
			func(http.ResponseWriter, *http.Request) {},
			func(app *lifecycletest.App) *lifecycletest.Load { return app.Load("htpp", "GET /") },
			`server "htpp" has no TCP address`,
		},
		"no path": {
			func(http.ResponseWriter, *http.Request) {},
			func(app *lifecycletest.App) *lifecycletest.Load { return app.Load("http", "/") },
			`"/" is not a method and a path`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			refuse.Store(false)
			got := says(func(t lifecycletest.TB) {
				app := lifecycletest.New(t, lifecycle.Config{DrainInterval: 200 * time.Millisecond})
				app.Serve("http", &http.Server{Addr: "127.0.0.1:0", Handler: c.handler})
				app.Start()
				load := c.load(app)
				refuse.Store(true)
				app.Signal(syscall.SIGTERM)
				_ = app.Wait()
				load.WantNoneLost()
			})
			if !strings.Contains(got, c.want) {
				t.Errorf("does not say %q:\n%s", c.want, got)
			}
		})
	}
}
