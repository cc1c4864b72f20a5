package otel_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
	lifecycleotel "github.com/pleme-io/lifecycle-go/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBoom = errors.New("boom")

// spans has the exported spans, by "name" or "name part".
type spans struct {
	t   *testing.T
	all map[string][]tracetest.SpanStub
}

func exported(t *testing.T, exporter *tracetest.InMemoryExporter) spans {
	s := spans{t, map[string][]tracetest.SpanStub{}}
	for _, stub := range exporter.GetSpans() {
		name := stub.Name
		if part := attr(stub, "lifecycle.name").AsString(); part != "" {
			name += " " + part
		}
		s.all[name] = append(s.all[name], stub)
	}
	return s
}

func attr(s tracetest.SpanStub, key attribute.Key) attribute.Value {
	for _, kv := range s.Attributes {
		if kv.Key == key {
			return kv.Value
		}
	}
	return attribute.Value{}
}

// one returns the only span of that name.
func (s spans) one(name string) tracetest.SpanStub {
	s.t.Helper()
	if n := len(s.all[name]); n != 1 {
		var names []string
		for name := range s.all {
			names = append(names, name)
		}
		slices.Sort(names)
		s.t.Fatalf("%d spans %q, want one; there are %q", n, name, names)
	}
	return s.all[name][0]
}

// below fails the test unless the span is a child of the parent, within its
// time.
func (s spans) below(name, parent string) {
	s.t.Helper()
	c, p := s.one(name), s.one(parent)
	if c.Parent.SpanID() != p.SpanContext.SpanID() || c.SpanContext.TraceID() != p.SpanContext.TraceID() {
		s.t.Errorf("%s is not a child of %s", name, parent)
	}
	if c.StartTime.Before(p.StartTime) || c.EndTime.After(p.EndTime) {
		s.t.Errorf("%s (%v to %v) is not within %s (%v to %v)", name, c.StartTime, c.EndTime, parent, p.StartTime, p.EndTime)
	}
}

func (s spans) root(name string) {
	s.t.Helper()
	c, start := s.one(name), s.one("lifecycle.start")
	if c.Parent.IsValid() {
		s.t.Errorf("%s has a parent", name)
	}
	if len(c.Links) != 1 || c.Links[0].SpanContext.SpanID() != start.SpanContext.SpanID() {
		s.t.Errorf("%s has the links %v, want one to the start", name, c.Links)
	}
}

func (s spans) status(name string, code codes.Code, description string) {
	s.t.Helper()
	if got := s.one(name).Status; got.Code != code || !strings.Contains(got.Description, description) {
		s.t.Errorf("the status of %s is %v, want %v %q", name, got, code, description)
	}
}

// traced returns an App whose spans are exported at once.
func traced(t *testing.T, cfg lifecycle.Config) (*lifecycletest.App, *tracetest.InMemoryExporter) {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	traces := lifecycleotel.New(provider)
	app := lifecycletest.New(t, cfg, traces.Option())
	app.OnShutdown("traces", traces.Close)
	return app, exporter
}

func TestSpansOfAWholeLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app, exporter := traced(t, lifecycle.Config{Name: "svc", DrainWait: lifecycle.WaitAlways})
		runs := 0
		app.Serve("http", &http.Server{}, lifecycle.WithListener(lifecycletest.NewListener())).
			Supervise("poller", func(ctx context.Context) error {
				if runs++; runs <= 2 {
					time.Sleep(time.Second)
					return errBoom
				}
				<-ctx.Done()
				return nil
			}, lifecycle.Backoff{}).
			Go("slow to start", func(ctx context.Context) error {
				time.Sleep(3 * time.Second)
				lifecycle.MarkStarted(ctx)
				<-ctx.Done()
				return nil
			}, lifecycle.WithStartCondition()).
			OnReload("config", func(context.Context) error { return errBoom }).
			OnDrain("streams", lifecycle.DrainFunc(func(context.Context) error { time.Sleep(2 * time.Second); return nil })).
			OnShutdown("db", func(context.Context) error { time.Sleep(time.Second); return nil })
		app.Start()
		time.Sleep(time.Hour)
		_ = app.Reload(t.Context())
		app.Stop(nil)
		app.WantClean()

		s := exported(t, exporter)
		start, stop := s.one("lifecycle.start"), s.one("lifecycle.stop")
		if got := start.EndTime.Sub(start.StartTime); got != 3*time.Second || start.Parent.IsValid() {
			t.Errorf("the start took %v, parent %v, want 3s and none", got, start.Parent)
		}
		if !stop.StartTime.Equal(app.EnteredAt(lifecycle.PhaseDraining)) {
			t.Errorf("the stop begins at %v, and the drain began at %v", stop.StartTime, app.EnteredAt(lifecycle.PhaseDraining))
		}
		drain, shutdown := s.one("lifecycle.drain"), s.one("lifecycle.shutdown")
		if !drain.EndTime.Equal(app.EnteredAt(lifecycle.PhaseStopping)) || !shutdown.StartTime.Equal(drain.EndTime) {
			t.Errorf("the drain ends at %v, the shutdown begins at %v, and stopping was entered at %v", drain.EndTime, shutdown.StartTime, app.EnteredAt(lifecycle.PhaseStopping))
		}
		for name, parent := range map[string]string{
			"lifecycle.drain": "lifecycle.stop", "lifecycle.shutdown": "lifecycle.stop",
			"lifecycle.drainer streams": "lifecycle.drain", "lifecycle.hook db": "lifecycle.shutdown", "lifecycle.hook traces": "lifecycle.shutdown",
		} {
			s.below(name, parent)
		}
		s.root("lifecycle.stop")
		s.root("lifecycle.reload config")
		s.root("lifecycle.unit http")
		for name, took := range map[string]time.Duration{"lifecycle.drainer streams": 2 * time.Second, "lifecycle.hook db": time.Second} {
			if got := s.one(name); got.EndTime.Sub(got.StartTime) != took {
				t.Errorf("%s took %v, want %v", name, got.EndTime.Sub(got.StartTime), took)
			}
		}
		s.status("lifecycle.stop", codes.Unset, "")
		s.status("lifecycle.start", codes.Unset, "")
		s.status("lifecycle.reload config", codes.Error, "boom")
		s.status("lifecycle.hook db", codes.Unset, "")
		if got := attr(stop, "lifecycle.app").AsString(); got != "svc" {
			t.Errorf("the app is %q", got)
		}

		failed, stopped := 0, 0
		for _, run := range s.all["lifecycle.unit poller"] {
			switch attr(run, "lifecycle.state").AsString() {
			case "Failed":
				failed++
				if run.Status.Code != codes.Error || run.Status.Description != "boom" || run.EndTime.Sub(run.StartTime) < time.Second {
					t.Errorf("a run that failed has the status %v and took %v", run.Status, run.EndTime.Sub(run.StartTime))
				}
			case "Stopped":
				stopped++
			}
			if len(run.Events) == 0 {
				t.Error("a run has no span events")
			}
		}
		if failed != 2 || stopped != 2 {
			t.Errorf("%d lives failed and %d were stopped, want two failed runs, and the last run and its restarter stopped", failed, stopped)
		}
		for _, run := range s.all["lifecycle.unit poller"] {
			var seen []string
			for _, e := range run.Events {
				seen = append(seen, e.Name)
			}
			// A span that mixes up two lives has an event twice, or lacks its own.
			if want := []string{"Starting", "Running"}; len(seen) < 3 || !slices.Equal(slices.DeleteFunc(seen[:len(seen)-1], func(s string) bool { return s == "Stopping" }), want) {
				t.Errorf("a life went through %q", seen)
			}
		}
	})
}

func TestSpansOfStopsThatWentWrong(t *testing.T) {
	long := strings.Repeat("ä", 1000)
	for name, tt := range map[string]struct {
		build func(app *lifecycletest.App)
		check func(s spans)
	}{
		"a unit fails": {
			func(app *lifecycletest.App) {
				app.Go("bad", func(context.Context) error { time.Sleep(time.Minute); return errors.New(long) })
			},
			func(s spans) {
				s.status("lifecycle.stop", codes.Error, "ää")
				s.status("lifecycle.unit bad", codes.Error, "ää")
				if d := s.one("lifecycle.stop").Status.Description; len(d) > 256 {
					s.t.Errorf("the description has %d bytes", len(d))
				}
				if r := attr(s.one("lifecycle.stop"), "lifecycle.reason").AsString(); len(r) > 256 || !strings.Contains(r, "unit bad") {
					s.t.Errorf("the reason is %q", r)
				}
			},
		},
		"a hook is abandoned": {
			func(app *lifecycletest.App) {
				app.OnShutdown("stuck", func(context.Context) error { time.Sleep(24 * time.Hour); return nil })
				app.Go("stops", func(context.Context) error { time.Sleep(time.Minute); app.App.Stop(nil); return nil })
			},
			func(s spans) {
				s.status("lifecycle.hook stuck", codes.Error, "abandoned")
				s.status("lifecycle.stop", codes.Error, "abandoned")
				s.below("lifecycle.hook stuck", "lifecycle.shutdown")
			},
		},
		"the start fails": {
			func(app *lifecycletest.App) {
				app.Go("bad", func(context.Context) error { time.Sleep(time.Second); return errBoom }, lifecycle.WithStartCondition())
			},
			func(s spans) {
				s.status("lifecycle.start", codes.Error, "boom")
				s.status("lifecycle.stop", codes.Error, "boom")
				s.below("lifecycle.shutdown", "lifecycle.stop")
				if len(s.all["lifecycle.drain"]) != 0 {
					s.t.Error("there is a span of a drain, although nothing ran")
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				app, exporter := traced(t, lifecycle.Config{DrainWait: lifecycle.WaitNever})
				tt.build(app)
				app.Launch()
				_ = app.Wait()
				tt.check(exported(t, exporter))
				time.Sleep(48 * time.Hour)
			})
		})
	}
}

// blocking is an exporter that never returns.
type blocking struct{ *tracetest.NoopExporter }

func (blocking) ExportSpans(ctx context.Context, _ []sdktrace.ReadOnlySpan) error {
	<-ctx.Done()
	return ctx.Err()
}

// This test runs outside of a bubble: the SDK holds a mutex while it exports, and
// a goroutine that waits for a mutex stops a bubble's clock.
func TestFlushStaysWithinItsBudget(t *testing.T) {
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(blocking{tracetest.NewNoopExporter()}, sdktrace.WithExportTimeout(2*time.Second)))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) }) // drops the spans that it could not export
	traces := lifecycleotel.New(provider)
	app := lifecycletest.New(t, lifecycle.Config{DrainInterval: lifecycle.Off, HookSlice: 200 * time.Millisecond, ShutdownGrace: time.Minute}, traces.Option())
	app.OnShutdown("traces", traces.Close)
	app.Start()
	app.Stop(nil)
	if err := app.Wait(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v, want the deadline of the hook", err)
	}
}

func TestOptionRefuses(t *testing.T) {
	if _, err := lifecycle.New(lifecycle.Config{}, lifecycleotel.New(nil).Option()); err == nil || !strings.Contains(err.Error(), "the tracer provider is nil") {
		t.Errorf("error is %v", err)
	}
	traces := lifecycleotel.New(sdktrace.NewTracerProvider())
	if err := traces.Close(t.Context()); err != nil {
		t.Errorf("Close before there is an App: %v", err)
	}
	if _, err := lifecycle.New(lifecycle.Config{}, traces.Option()); err != nil {
		t.Fatal(err)
	}
	if _, err := lifecycle.New(lifecycle.Config{}, traces.Option()); err == nil || !strings.Contains(err.Error(), "another App") {
		t.Errorf("error is %v", err)
	}
	var both sync.WaitGroup
	for range 2 { // at once, and twice
		both.Go(func() {
			if err := traces.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
}

func Example() {
	exporter := tracetest.NewInMemoryExporter() // a real exporter sends them to a collector
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter))

	traces := lifecycleotel.New(provider)
	app, err := lifecycle.New(lifecycle.Config{Name: "orders", HealthAddr: lifecycle.HealthOff}, traces.Option(), lifecycle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		fmt.Println(err)
		return
	}
	app.OnShutdown("traces", traces.Close). // first, and so the last to run
						OnShutdown("db", func(context.Context) error { return nil }).
						Actor("work", func() error { return nil }, func(error) {})
	if err := app.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	spans := exporter.GetSpans()
	if err := provider.Shutdown(context.Background()); err != nil {
		fmt.Println(err)
	}
	for _, s := range spans {
		if s.SpanKind == trace.SpanKindInternal && strings.HasPrefix(s.Name, "lifecycle.s") {
			fmt.Println(s.Name, s.Status.Code)
		}
	}
	// Output:
	// lifecycle.start Unset
	// lifecycle.shutdown Unset
	// lifecycle.stop Unset
}
