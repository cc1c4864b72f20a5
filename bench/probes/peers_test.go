package probes

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	sundheit "github.com/AppsFlyer/go-sundheit"
	"github.com/AppsFlyer/go-sundheit/checks"
	sundheithttp "github.com/AppsFlyer/go-sundheit/http"
	alex "github.com/alexliesenfeld/health"
	"github.com/go-logr/logr"
	hellofresh "github.com/hellofresh/health-go/v5"
	lifecycle "github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/health"
	"go.uber.org/goleak"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	crlog "sigs.k8s.io/controller-runtime/pkg/log"
)

func TestMain(m *testing.M) {
	crlog.SetLogger(logr.Discard()) // otherwise it logs, with a stack, that it has no logger
	goleak.VerifyTestMain(m)
}

// checkFunc is a check in the form that most libraries take.
type checkFunc = func(context.Context) error

// hour is the lifetime of results that must not expire during a measurement.
const hour = time.Hour

// plane is a readiness plane of one library. Each is set up as its
// documentation says, with n checks of the same function.
type plane struct {
	peer string
	mode string // "uncached": every probe runs every check; "cached": results are kept; "periodic": checks run in the background
	make func(tb testing.TB, n int, check checkFunc) http.Handler
}

// planes are the compared planes. hellofresh and controller-runtime run every
// check for every probe and have no other mode; go-sundheit only runs them
// in the background.
var planes = []plane{
	{"floor", "constant", constant},
	{"lifecycle-go", "uncached", ours()},
	{"alexliesenfeld", "uncached", alexliesenfeld(false, alex.WithDisabledCache(), alex.WithCheck)},
	{"hellofresh", "uncached", healthGo},
	{"controller-runtime", "uncached", controllerRuntime},
	{"lifecycle-go", "cached", ours(lifecycle.WithCache(hour))},
	{"alexliesenfeld", "cached", alexliesenfeld(false, alex.WithCacheDuration(hour), alex.WithCheck)},
	{"lifecycle-go", "periodic", ours(lifecycle.WithPeriodic(hour))},
	{"alexliesenfeld", "periodic", alexliesenfeld(true, alex.WithCacheDuration(hour), func(c alex.Check) alex.CheckerOption {
		return alex.WithPeriodicCheck(hour, 0, c)
	})},
	{"go-sundheit", "periodic", goSundheit},
}

// runsChecks says whether every probe runs every check.
func (p plane) runsChecks() bool { return p.mode == "uncached" }

// named returns the names of n checks.
func named(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("check-%02d", i)
	}
	return names
}

// constant is the floor: it writes the headers and the body of our plane,
// without computing them.
func constant(tb testing.TB, n int, check checkFunc) http.Handler {
	w := newWriter()
	ours()(tb, n, check).ServeHTTP(w, newRequest(tb))
	body := []byte(w.body)
	values := w.header.Clone()
	ctype, length, store, sniff := values["Content-Type"], values["Content-Length"], values["Cache-Control"], values["X-Content-Type-Options"]
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h["Content-Type"] = ctype
		h["Content-Length"] = length
		h["Cache-Control"] = store
		h["X-Content-Type-Options"] = sniff
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(body)
	})
}

func ours(opts ...health.Option) func(testing.TB, int, checkFunc) http.Handler {
	return func(tb testing.TB, n int, check checkFunc) http.Handler {
		r := lifecycle.NewRegistry()
		for _, name := range named(n) {
			if err := r.RegisterReadiness(name, lifecycle.ProbeFunc(check), opts...); err != nil {
				tb.Fatal(err)
			}
		}
		if err := r.Start(context.Background()); err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = r.Close(context.Background()) })
		return r.Handler()
	}
}

func alexliesenfeld(periodic bool, cache alex.CheckerOption, add func(alex.Check) alex.CheckerOption) func(testing.TB, int, checkFunc) http.Handler {
	return func(tb testing.TB, n int, check checkFunc) http.Handler {
		// c.Start runs every check once, in a goroutine that no caller can wait for.
		// Checks that are not periodic do without it: the first request runs them.
		opts := []alex.CheckerOption{cache, alex.WithDisabledAutostart()}
		for _, name := range named(n) {
			opts = append(opts, add(alex.Check{Name: name, Check: check}))
		}
		c := alex.NewChecker(opts...)
		if periodic {
			c.Start()
			tb.Cleanup(c.Stop)
		}
		return alex.NewHandler(c)
	}
}

func healthGo(tb testing.TB, n int, check checkFunc) http.Handler {
	h, err := hellofresh.New()
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range named(n) {
		if err := h.Register(hellofresh.Config{Name: name, Check: check}); err != nil {
			tb.Fatal(err)
		}
	}
	return h.Handler()
}

// controllerRuntime mounts the handler as its manager does, below the path with
// that prefix taken off.
func controllerRuntime(_ testing.TB, n int, check checkFunc) http.Handler {
	h := &healthz.Handler{Checks: make(map[string]healthz.Checker, n)}
	for _, name := range named(n) {
		h.Checks[name] = func(req *http.Request) error { return check(req.Context()) }
	}
	return http.StripPrefix("/readyz", h)
}

func goSundheit(tb testing.TB, n int, check checkFunc) http.Handler {
	h := sundheit.New()
	for _, name := range named(n) {
		err := h.RegisterCheck(&checks.CustomCheck{
			CheckName: name,
			CheckFunc: func(ctx context.Context) (any, error) { return nil, check(ctx) },
		}, sundheit.ExecutionPeriod(hour))
		if err != nil {
			tb.Fatal(err)
		}
	}
	tb.Cleanup(h.DeregisterAll)
	return sundheithttp.HandleHealthJSON(h)
}

// mounted puts a plane behind the mux that all of them share.
func mounted(h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/readyz", h)
	return mux
}

// reused is a reused ResponseWriter, which costs as
// little as possible.
type reused struct {
	header http.Header
	status int
	bytes  int
	keep   bool // keep the body too
	body   string
}

func newWriter() *reused { return &reused{header: make(http.Header), keep: true} }

func (w *reused) Header() http.Header    { return w.header }
func (w *reused) WriteHeader(status int) { w.status = status }

func (w *reused) Write(p []byte) (int, error) {
	w.bytes += len(p)
	if w.keep {
		w.body += string(p)
	}
	return len(p), nil
}

func newRequest(tb testing.TB) *http.Request {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://127.0.0.1/readyz", http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	return req
}

// awaitPassing probes until the plane passes: background checks run
// at some later time.
func awaitPassing(tb testing.TB, h http.Handler) {
	tb.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		w := newWriter()
		h.ServeHTTP(w, newRequest(tb))
		if w.status == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("the plane does not pass: %d %s", w.status, w.body)
		}
		time.Sleep(time.Millisecond)
	}
}

// Every peer does the measured work: it runs the checks, and a check that
// fails fails the plane.
func TestPeersDoTheWork(t *testing.T) {
	for _, p := range planes {
		t.Run(p.mode+"/"+p.peer, func(t *testing.T) {
			ran := make(chan struct{}, 1000)
			h := mounted(p.make(t, 3, func(context.Context) error { ran <- struct{}{}; return nil }))
			awaitPassing(t, h)
			if len(ran) < 3 {
				t.Errorf("%d checks have run, want 3", len(ran))
			}
			before := len(ran)
			awaitPassing(t, h)
			switch again := len(ran) - before; {
			case p.runsChecks() && again != 3:
				t.Errorf("a further probe ran %d checks, want 3", again)
			case !p.runsChecks() && again != 0:
				t.Errorf("a further probe ran %d checks, want none", again)
			}
			if p.mode == "constant" {
				return
			}
			h = mounted(p.make(t, 3, func(context.Context) error { return io.ErrUnexpectedEOF }))
			w := newWriter()
			h.ServeHTTP(w, newRequest(t))
			if w.status < 500 {
				t.Errorf("status %d when checks fail", w.status)
			}
		})
	}
}
