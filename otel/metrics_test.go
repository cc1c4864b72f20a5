package otel_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
	lifecycleotel "github.com/pleme-io/lifecycle-go/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/proto"
)

// meters receives metrics by OTLP over HTTP, as a collector does.
type meters struct {
	*httptest.Server
	flush func(context.Context) error

	mu     sync.Mutex // guards everything below
	values map[string]float64
	states map[string]bool
}

func newMeters(t *testing.T) *meters {
	m := &meters{values: map[string]float64{}, states: map[string]bool{}}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var export collector.ExportMetricsServiceRequest
		body, err := io.ReadAll(req.Body)
		if err == nil {
			err = proto.Unmarshal(body, &export)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, resource := range export.GetResourceMetrics() {
			for _, scope := range resource.GetScopeMetrics() {
				for _, metric := range scope.GetMetrics() {
					for _, p := range metric.GetGauge().GetDataPoints() {
						m.values[strings.TrimPrefix(metric.GetName(), "lifecycle.last_stop.")] = p.GetAsDouble() + float64(p.GetAsInt())
						for _, kv := range p.GetAttributes() {
							if kv.GetKey() == "lifecycle.state" {
								m.states[kv.GetValue().GetStringValue()] = true
							}
						}
					}
				}
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(m.Close)
	return m
}

// metered is an App that exports its metrics to the collector, by a reader whose own
// interval is an hour.
func metered(t *testing.T, m *meters, cfg lifecycle.Config) *lifecycletest.App {
	exporter, err := otlpmetrichttp.New(t.Context(), otlpmetrichttp.WithEndpointURL(m.URL+"/v1/metrics"),
		otlpmetrichttp.WithHTTPClient(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}))
	if err != nil {
		t.Fatal(err)
	}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter, sdkmetric.WithInterval(time.Hour))))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	m.flush = provider.ForceFlush
	return lifecycletest.New(t, cfg, lifecycleotel.Metrics(provider))
}

// When Run returns, a collector has the numbers of the stop, although the reader would
// export in an hour. The next life exports those of the life before.
func TestLastStopIsFlushedBeforeRunReturns(t *testing.T) {
	m := newMeters(t)
	cfg := lifecycle.Config{Name: "svc", DrainInterval: lifecycle.Off, LastStopFile: filepath.Join(t.TempDir(), "stop.json"), ShutdownGrace: 62 * time.Second, ReportSlice: time.Minute, Linger: 100 * time.Millisecond, UnitSlice: 100 * time.Millisecond, HookSlice: 400 * time.Millisecond}
	app := metered(t, m, cfg)
	release := make(chan struct{})
	defer close(release)
	app.OnShutdown("stuck", func(ctx context.Context) error { <-ctx.Done(); <-release; return nil })
	app.Start()
	app.Stop(nil)
	if err := app.Wait(); lifecycle.ExitCode(err) != lifecycle.ExitStuck {
		t.Errorf("Run returned %v", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.values["abandoned"] != 1 || m.values["exit_status"] != lifecycle.ExitStuck || m.values["requests_cut"] != 0 || m.values["budget"] != 64 || m.values["duration"] <= 0 || !m.states["failed"] {
		t.Errorf("the collector has %v, states %v", m.values, m.states)
	}
}

func TestMetricsRefuseNil(t *testing.T) {
	if _, err := lifecycle.New(lifecycle.Config{}, lifecycleotel.Metrics(nil)); err == nil || !strings.Contains(err.Error(), "the meter provider is nil") {
		t.Errorf("a nil provider: %v", err)
	}
}

// The life before is exported from the beginning, by metrics and by the span of the start.
func TestLifeBeforeIsExported(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stop.json")
	first := lifecycletest.New(t, lifecycle.Config{DrainInterval: lifecycle.Off, LastStopFile: file})
	first.Go("bad", func(context.Context) error { return errBoom })
	first.Launch()
	_ = first.Wait()

	m := newMeters(t)
	second := metered(t, m, lifecycle.Config{DrainInterval: lifecycle.Off, LastStopFile: file})
	second.Start()
	if err := m.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	if m.values["exit_status"] != 1 || !m.states["failed"] || m.states["stopped"] {
		t.Errorf("before the stop the collector has %v, states %v", m.values, m.states)
	}
	m.mu.Unlock()
	second.Stop(nil)
	second.WantClean()
	if m.values["exit_status"] != 0 || !m.states["stopped"] {
		t.Errorf("after the stop the collector has %v, states %v", m.values, m.states)
	}

	first = lifecycletest.New(t, lifecycle.Config{DrainInterval: lifecycle.Off, LastStopFile: file})
	first.Go("bad", func(context.Context) error { return errBoom })
	first.Launch()
	_ = first.Wait()
	spans, exporter := traced(t, lifecycle.Config{DrainInterval: lifecycle.Off, LastStopFile: file})
	spans.Start()
	spans.Stop(nil)
	spans.WantClean()
	s := exported(t, exporter)
	if got := attr(s.one("lifecycle.start"), "lifecycle.last_stop.state").AsString(); got != "failed" {
		t.Errorf("the start says of the life before %q", got)
	}
	if got := attr(s.one("lifecycle.start"), "lifecycle.last_stop.exit_status").AsInt64(); got != 1 {
		t.Errorf("its exit status is %d", got)
	}
	if got := attr(s.one("lifecycle.stop"), "lifecycle.budget").AsFloat64(); got != 22 {
		t.Errorf("the budget of the stop is %v", got)
	}
}

// A process that was killed without a stop has told of no exit status, and the span of the
// next start gives none.
func TestLifeBeforeThatWasKilledHasNoExitStatus(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stop.json")
	if err := os.WriteFile(file, []byte(`{"version":1,"life":{"name":"svc","phase":"running"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	app, exporter := traced(t, lifecycle.Config{DrainInterval: lifecycle.Off, LastStopFile: file})
	app.Start()
	app.Stop(nil)
	app.WantClean()
	start := exported(t, exporter).one("lifecycle.start")
	if got := attr(start, "lifecycle.last_stop.state").AsString(); got != "running" {
		t.Errorf("the start says of the life before %q", got)
	}
	if got := attr(start, "lifecycle.last_stop.exit_status"); got.Type() != (attribute.Value{}).Type() {
		t.Errorf("its exit status is %d", got.AsInt64())
	}
}
