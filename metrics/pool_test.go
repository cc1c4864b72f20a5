package metrics_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/metrics"
	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/procpool/child"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// The worker is this test binary, started again.
const workerEnv = "METRICS_TEST_WORKER"

func poolWorker() {
	err := child.Serve(context.Background(), func(ctx context.Context, q *child.Query) (any, error) {
		switch string(q.Payload) {
		case `"wait"`:
			<-ctx.Done()
			return nil, context.Cause(ctx)
		case `"fail"`:
			return nil, errors.New("failed")
		case `"die"`:
			os.Exit(3)
		}
		return q.Payload, nil
	})
	if err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

func newPool(t *testing.T, name string) *procpool.Pool {
	dir, err := os.MkdirTemp("", "mp") // short, as a socket's path has to be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	pool, err := procpool.New(procpool.Config{Name: name, MinWorkers: 2, MaxWorkers: 2, MaxQueue: 1, SocketDir: dir, Command: func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), workerEnv+"=1", "GORACE=atexit_sleep_ms=0")
		return cmd
	}})
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

// page returns the page that the App serves at a path.
func page(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v\n%s", url, resp.Status, err, body)
	}
	return string(body)
}

// TestPoolIsShown runs an App with a pool of real processes and checks that a scrape
// and /statusz show it.
func TestPoolIsShown(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a pool needs process groups, which Windows does not have")
	}
	reg := prometheus.NewPedanticRegistry()
	pool := newPool(t, "work")
	reg.MustRegister(metrics.Pool(pool))
	app, err := lifecycle.New(lifecycle.Config{Name: "svc", DrainInterval: -1, HealthAddr: lifecycle.HealthOff}, metrics.With(reg))
	if err != nil {
		t.Fatal(err)
	}
	app.Add(pool)
	srv := httptest.NewServer(app.Handler())
	defer srv.Close()
	defer http.DefaultClient.CloseIdleConnections()
	run := make(chan error, 1)
	go func() { run <- app.Run(context.Background()) }()
	// shows waits until the scrape has all the lines.
	shows := func(lines ...string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			got, missing := page(t, srv.URL+"/metrics"), ""
			for _, line := range lines {
				if !strings.Contains(got, "\n"+line+"\n") {
					missing += line + "\n"
				}
			}
			if missing == "" {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("missing are\n%sof\n%s", missing, got)
			}
		}
	}
	ask := func(payload string) (json.RawMessage, error) { return pool.Do(t.Context(), json.RawMessage(payload)) }

	shows(`lifecycle_pool_state{pool="work",state="at_capacity"} 1`, `lifecycle_pool_state{pool="work",state="idle"} 0`,
		`lifecycle_pool_workers{pool="work",state="ready"} 2`, `lifecycle_pool_workers{pool="work",state="busy"} 0`,
		`lifecycle_pool_workers_spawned_total{pool="work"} 2`, `lifecycle_pool_query_duration_seconds_count{pool="work"} 0`,
		`lifecycle_unit_status{status="Running",unit="work"} 1`, `lifecycle_unit_children{status="Running",unit="work"} 2`)

	if got, err := ask(`"echo"`); err != nil || string(got) != `"echo"` {
		t.Fatal(string(got), err)
	}
	_, _ = ask(`"fail"`)
	var waiting []*procpool.Query
	for range 3 {
		q, err := pool.Submit(t.Context(), json.RawMessage(`"wait"`))
		if err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, q)
	}
	if _, err := ask(`"too many"`); !errors.Is(err, procpool.ErrBusy) {
		t.Fatal(err)
	}
	shows(`lifecycle_pool_workers{pool="work",state="busy"} 2`, `lifecycle_pool_queries{pool="work",state="in_flight"} 2`,
		`lifecycle_pool_queries{pool="work",state="waiting"} 1`, `lifecycle_pool_queries_total{outcome="complete",pool="work"} 1`,
		`lifecycle_pool_queries_total{outcome="error",pool="work"} 1`, `lifecycle_pool_queries_total{outcome="rejected",pool="work"} 1`)
	status := page(t, srv.URL+"/statusz?format=json")
	html := page(t, srv.URL+"/statusz?format=html")
	for _, w := range pool.State().Children {
		if !strings.Contains(status, fmt.Sprintf(`"pid": %d`, w.PID)) {
			t.Errorf("process %d of %s is not in /statusz:\n%s", w.PID, w.Name, status)
		}
		for _, part := range []string{w.Name, "busy with q"} {
			if !strings.Contains(status, part) || !strings.Contains(html, part) {
				t.Errorf("%q of %s is not in /statusz:\n%s\n%s", part, w.Name, status, html)
			}
		}
	}

	for _, q := range waiting {
		q.Cancel(nil)
	}
	shows(`lifecycle_pool_queries_total{outcome="cancelled",pool="work"} 3`, `lifecycle_pool_queries{pool="work",state="in_flight"} 0`, `lifecycle_pool_workers{pool="work",state="ready"} 2`)
	if _, err := pool.Evict("", false); err != nil {
		t.Fatal(err)
	}
	_, _ = ask(`"die"`)
	shows(`lifecycle_pool_workers_lost_total{pool="work",reason="crashed"} 1`, `lifecycle_pool_workers_lost_total{pool="work",reason="evicted"} 1`,
		`lifecycle_pool_worker_ends_total{cause="query",pool="work"} 1`, `lifecycle_pool_worker_ends_total{cause="evicted",pool="work"} 1`, `lifecycle_pool_poisoned{pool="work"} 0`,
		`lifecycle_pool_workers_spawned_total{pool="work"} 4`, `lifecycle_pool_workers{pool="work",state="ready"} 2`,
		`lifecycle_pool_queries_total{outcome="error",pool="work"} 2`,
		`lifecycle_pool_query_duration_seconds_count{pool="work"} 6`, `lifecycle_pool_query_duration_seconds_bucket{pool="work",le="300"} 6`)

	app.Stop(nil)
	if err := <-run; err != nil {
		t.Errorf("run: %v", err)
	}
	shows(`lifecycle_pool_state{pool="work",state="idle"} 1`, `lifecycle_pool_workers{pool="work",state="ready"} 0`)
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
}

func TestPoolsOfOneRegistryHaveNamesOfTheirOwn(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(metrics.Pool(newPool(t, "a"))); err != nil {
		t.Fatal(err)
	}
	if err := reg.Register(metrics.Pool(newPool(t, "b\xff"))); err != nil {
		t.Fatal(err)
	}
	var twice prometheus.AlreadyRegisteredError
	if err := reg.Register(metrics.Pool(newPool(t, "a"))); !errors.As(err, &twice) {
		t.Errorf("a second pool of the same name: %v", err)
	}
	got := values(t, reg)
	want(t, got, map[string]float64{
		`lifecycle_pool_state{pool="a",state="idle"}`: 1, `lifecycle_pool_state{pool="b` + "\uFFFD" + `",state="idle"}`: 1,
	})
}
