package otel_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
	lifecycleotel "github.com/pleme-io/lifecycle-go/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	wire "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// receiver receives spans by OTLP over HTTP, as a collector does.
type receiver struct {
	*httptest.Server

	mu    sync.Mutex // guards everything below
	spans []*wire.Span
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var export collector.ExportTraceServiceRequest
		body, err := io.ReadAll(req.Body)
		if err == nil {
			err = proto.Unmarshal(body, &export)
		}
		if err != nil || req.URL.Path != "/v1/traces" {
			http.Error(w, fmt.Sprint(req.URL.Path, err), http.StatusBadRequest)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, resource := range export.GetResourceSpans() {
			for _, scope := range resource.GetScopeSpans() {
				r.spans = append(r.spans, scope.GetSpans()...)
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(r.Close)
	return r
}

// tree lists the received spans as "parent > name part", without units.
func (r *receiver) tree() (lines []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	title := func(s *wire.Span) string {
		for _, kv := range s.GetAttributes() {
			if kv.GetKey() == "lifecycle.name" {
				return s.GetName() + " " + kv.GetValue().GetStringValue()
			}
		}
		return s.GetName()
	}
	names := map[string]string{}
	for _, s := range r.spans {
		names[string(s.GetSpanId())] = title(s)
	}
	for _, s := range r.spans {
		line := title(s)
		if parent := string(s.GetParentSpanId()); parent != "" {
			line = names[parent] + " > " + line
		}
		if !strings.HasPrefix(line, "lifecycle.unit") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// When Run returns, a real exporter that sends in batches has sent every span
// that the package promises, although the provider was not shut down.
func TestSpansOfTheStopAreExportedBeforeRunReturns(t *testing.T) {
	collected := newReceiver(t)
	exporter, err := otlptracehttp.New(t.Context(), otlptracehttp.WithEndpointURL(collected.URL+"/v1/traces"),
		// Close the exporter's connections, because the test looks for leaked
		// goroutines.
		otlptracehttp.WithHTTPClient(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}))
	if err != nil {
		t.Fatal(err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter, sdktrace.WithBatchTimeout(time.Hour)))
	t.Cleanup(func() {
		if err := provider.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	traces := lifecycleotel.New(provider)
	app := lifecycletest.New(t, lifecycle.Config{Name: "svc", DrainInterval: 50 * time.Millisecond, DrainWait: lifecycle.WaitAlways}, traces.Option())
	app.OnShutdown("after the traces", func(context.Context) error { return nil }).
		OnShutdown("traces", traces.Close).
		OnShutdown("db", func(context.Context) error { return nil }).
		OnDrain("streams", lifecycle.DrainFunc(func(context.Context) error { return nil })).
		Go("work", func(ctx context.Context) error { <-ctx.Done(); return nil })
	app.Start()
	if got := collected.tree(); len(got) != 0 {
		t.Errorf("exported by now: %q, want nothing, because the batch waits for an hour", got)
	}
	app.Stop(nil)
	app.WantClean()
	want := []string{
		"lifecycle.drain > lifecycle.drainer streams",
		"lifecycle.shutdown > lifecycle.hook db",
		"lifecycle.shutdown > lifecycle.hook traces",
		"lifecycle.start",
		"lifecycle.stop",
		"lifecycle.stop > lifecycle.drain",
		"lifecycle.stop > lifecycle.shutdown",
	}
	if got := collected.tree(); !slices.Equal(got, want) {
		t.Errorf("exported:\n\t%s\nwant:\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// When the collector is gone, the spans are lost, but the stop succeeds.
func TestCollectorThatIsGoneFailsTheHookAlone(t *testing.T) {
	collected := newReceiver(t)
	exporter, err := otlptracehttp.New(t.Context(), otlptracehttp.WithEndpointURL(collected.URL+"/v1/traces"), otlptracehttp.WithRetry(otlptracehttp.RetryConfig{}))
	if err != nil {
		t.Fatal(err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	traces := lifecycleotel.New(provider)
	closed := false
	app := lifecycletest.New(t, lifecycle.Config{DrainInterval: lifecycle.Off}, traces.Option())
	app.OnShutdown("db", func(context.Context) error { closed = true; return nil }).OnShutdown("traces", traces.Close)
	app.Start()
	collected.Close()
	app.Stop(nil)
	if err := app.Wait(); err == nil || !strings.Contains(err.Error(), "traces") {
		t.Errorf("Run returned %v, want the error of the flush", err)
	}
	if !closed {
		t.Error("the hook after it did not run")
	}
}
