//go:build unix

package deploy

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// stops is one run of TestStopsAreSeen: how many processes are stopped in which way, and
// the times of Prometheus and of the service.
type stops struct {
	cut, stuck, good, control int
	scrape, evaluation        string
	env                       []string // the times of a stop
	plain                     string   // shutdown_grace of a stop that awaits no scrape
	again                     int      // how many of each kind tell of their stop when they start again
	patience                  time.Duration
}

// TestStopsAreSeen stops real processes of the example while a real Prometheus scrapes
// them and evaluates the shipped rules. For each stop that cut a request, and for each
// that abandoned a unit, the alert fires; for a good stop none is even pending.
//
// The short run scrapes every other second. ALERTS_TEST=long is the run with the times of
// deploy/: a scrape in 15 s, an evaluation in 30 s, a window of 5 s. Rules, with their
// windows, are the same in both.
func TestStopsAreSeen(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for scrapes; TestAlerts tests the rules")
	}
	run := stops{cut: 2, stuck: 1, good: 2, again: 1, plain: "2500ms", scrape: "2s", evaluation: "1s", patience: patience, env: []string{
		"SERVICE_LIFECYCLE_DRAIN_INTERVAL=1s", "SERVICE_LIFECYCLE_SHUTDOWN_GRACE=62s", "SERVICE_LIFECYCLE_LINGER=500ms", "SERVICE_LIFECYCLE_UNIT_SLICE=500ms",
		"SERVICE_LIFECYCLE_HOOK_SLICE=500ms", "SERVICE_LIFECYCLE_REPORT_SLICE=60s", "SERVICE_LIFECYCLE_TERMINATION_GRACE=65s",
	}}
	if os.Getenv("ALERTS_TEST") == "long" {
		run = stops{cut: 10, stuck: 5, good: 50, control: 10, again: 5, plain: "20s", scrape: "15s", evaluation: "30s", patience: 10 * time.Minute, env: []string{
			"SERVICE_LIFECYCLE_DRAIN_INTERVAL=5s", "SERVICE_LIFECYCLE_SHUTDOWN_GRACE=37s", "SERVICE_LIFECYCLE_REPORT_SLICE=17s", "SERVICE_LIFECYCLE_TERMINATION_GRACE=47s",
		}}
	}
	run.test(t)
}

// unknown is the exit status of a process that has not been stopped.
const unknown = -1

// TestChartAwaitsOneScrape: with a ServiceMonitor the chart gives a stop the times of the
// long run of TestStopsAreSeen.
func TestChartAwaitsOneScrape(t *testing.T) {
	for interval, want := range map[string][]string{
		"15s": {"report_slice: 17s", "SHUTDOWN_GRACE, value: 37s", "terminationGracePeriodSeconds: 47"},
		"1m":  {"report_slice: 62s", "SHUTDOWN_GRACE, value: 82s", "terminationGracePeriodSeconds: 92"},
	} {
		manifest := chart(t, "serviceMonitor.enabled=true", "serviceMonitor.interval="+interval)
		for _, words := range append(want, "last_stop_file: /tmp/last-stop.json") {
			if !strings.Contains(manifest, words) {
				t.Errorf("every %s: the chart has no %q", interval, words)
			}
		}
	}
	if strings.Contains(chart(t), "report_slice") {
		t.Error("without a ServiceMonitor a stop waits for a scrape")
	}
}

// stopped is one process of the example.
type stopped struct {
	kind        string // "cut", "stuck", "good" or "control": a cut that is not told
	again       bool   // it tells of its stop when it starts again, and not in a last scrape
	web, health string
	folder      string
	env         []string
	proc        *process
	exit        int
}

// test runs all processes at once: they mostly wait.
func (s stops) test(t *testing.T) {
	prometheus := tool(t, "prometheus")
	folder := t.TempDir()
	service := filepath.Join(folder, "service")
	build := exec.Command("go", "build", "-C", "../examples", "-buildvcs=false", "-o", service, "./service")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	rules, err := filepath.Abs("alerts/lifecycle.yaml")
	if err != nil {
		t.Fatal(err)
	}
	ports := lowPorts(t)
	var all []*stopped
	add := func(kind string, n int, again bool) {
		for range n {
			p := &stopped{kind: kind, again: again, web: ports(), health: ports(), folder: t.TempDir(), exit: unknown}
			p.env = append(p.env, s.env...)
			if again || kind == "control" {
				p.env = append(p.env, "SERVICE_LIFECYCLE_REPORT_SLICE=0s", "SERVICE_LIFECYCLE_SHUTDOWN_GRACE="+s.plain)
			}
			all = append(all, p)
		}
	}
	add("cut", s.cut, false)
	add("stuck", s.stuck, false)
	add("good", s.good, false)
	add("control", s.control, false)
	for _, kind := range []string{"cut", "stuck", "good"} {
		add(kind, s.again, true)
	}
	var targets []string
	for _, p := range all {
		targets = append(targets, `"`+p.health+`"`)
	}
	scrape := filepath.Join(folder, "prometheus.yaml")
	const config = "global: {scrape_interval: %s, scrape_timeout: %s, evaluation_interval: %s}\n" +
		"rule_files: [%q]\n" +
		"scrape_configs:\n" +
		"  - {job_name: service, static_configs: [{targets: [%s], labels: {namespace: shop, pod: web}}]}\n"
	text := fmt.Sprintf(config, s.scrape, s.scrape, s.evaluation, rules, strings.Join(targets, ", "))
	if err := os.WriteFile(scrape, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	own := ports()
	start(t, nil, prometheus, "--config.file="+scrape, "--storage.tsdb.path="+filepath.Join(folder, "tsdb"), "--web.listen-address="+own, "--log.level=warn")
	client := browser(t)
	until(t, s.patience, "Prometheus to be ready", func() bool { return ok(client, "http://"+own+"/-/ready") })
	for _, p := range all {
		p.start(t, service)
	}
	// each waits until Prometheus has seen the series of each process.
	each := func(what, expr string) {
		until(t, s.patience, what, func() bool {
			for _, p := range all {
				select {
				case <-p.proc.ended:
					if p.exit == unknown {
						t.Fatalf("a process ended by itself:\n%s", p.proc.out)
					}
				default:
				}
			}
			seen := series(t, client, own, expr)
			return !slices.ContainsFunc(all, func(p *stopped) bool { return p.kind != "control" && !has(seen, p) })
		})
	}
	each("each process to be scraped", `lifecycle_phase{phase="running"} == 1`)

	var stopping sync.WaitGroup
	for _, p := range all {
		p.provoke(t, client)
		stopping.Go(func() { p.stop(t) })
	}
	stopping.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, p := range all {
		if p.again {
			p.start(t, service)
		}
	}
	// Later evaluations see no more than this one: the last scrape of each process was
	// before it, and the processes that started again are scraped.
	each("each stop to be told", `lifecycle_last_stop_ending == 1`)
	evaluated := time.Now()
	until(t, s.patience, "the next evaluation but one", func() bool {
		var groups struct {
			Data struct {
				Groups []struct{ LastEvaluation time.Time }
			}
		}
		get(t, client, "http://"+own+"/api/v1/rules", &groups)
		return !slices.ContainsFunc(groups.Data.Groups, func(g struct{ LastEvaluation time.Time }) bool { return !g.LastEvaluation.After(evaluated) })
	})
	judge(t, all, func(alert string) []map[string]string {
		return series(t, client, own, fmt.Sprintf(`ALERTS{alertname=~%q,alertstate=~"firing|pending"}`, alert))
	})
}

// has reports whether the list has a label set of the process.
func has(list []map[string]string, p *stopped) bool {
	return slices.ContainsFunc(list, func(labels map[string]string) bool { return labels["instance"] == p.health })
}

// judge compares what fired with how each process was stopped.
func judge(t *testing.T, all []*stopped, alerts func(string) []map[string]string) {
	cut, abandoned, any := alerts("LifecycleRequestsCut"), alerts("LifecycleAbandoned"), alerts(".+")
	counts := map[string][2]int{}
	for _, p := range all {
		name, fired := p.kind, false
		switch p.kind {
		case "cut", "control":
			fired = has(cut, p)
		case "stuck":
			fired = has(abandoned, p)
		case "good":
			fired = has(any, p)
		}
		if p.again {
			name += ", told by the next process"
		}
		c := counts[name]
		c[1]++
		if fired {
			c[0]++
		}
		counts[name] = c
		if p.kind != "control" && fired != (p.kind != "good") {
			t.Errorf("%s: a %s stop fired: %v; exit status %d", p.health, name, fired, p.exit)
		}
		if want := map[string]int{"good": 0, "cut": 75, "control": 75, "stuck": 70}[p.kind]; p.exit != want {
			t.Errorf("a %s stop exits with %d, want %d", name, p.exit, want)
		}
	}
	for _, labels := range any {
		if labels["namespace"] != "shop" || labels["pod"] != "web" {
			t.Errorf("the alert %s does not name the pod: %v", labels["alertname"], labels)
		}
		if labels["alertname"] == "LifecycleProbeDown" {
			t.Errorf("in a stop the alert %s is %s for %s", labels["alertname"], labels["alertstate"], labels["instance"])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%-36s fired for %d of %d", name, counts[name][0], counts[name][1])
	}
}

func (p *stopped) start(t *testing.T, service string) {
	t.Helper()
	p.proc = start(t, append(p.env, "SERVICE_LIFECYCLE_LAST_STOP_FILE="+filepath.Join(p.folder, "last-stop.json"), "SERVICE_ADDR="+p.web, "SERVICE_LIFECYCLE_HEALTH_ADDR="+p.health, "GOMAXPROCS=1"), service,
		"-config=kustomize/base/config.yaml", "-db="+filepath.Join(p.folder, "db"), "-allow-faults")
}

// provoke makes sure that the stop goes as the kind says.
func (p *stopped) provoke(t *testing.T, client *http.Client) {
	t.Helper()
	post := func(path string) { // one that does not answer ends with the process
		resp, err := client.Post("http://"+p.web+path, "", nil)
		if err == nil {
			resp.Body.Close()
		}
	}
	switch p.kind {
	case "cut", "control":
		var asked sync.WaitGroup
		asked.Go(func() { post("/work?sleep=1m") })
		t.Cleanup(asked.Wait)
		p.awaitRequest(t, client)
	case "stuck":
		post("/fail?how=stuck-unit")
	case "good":
		post("/work?note=hello")
	}
}

// awaitRequest waits until a handler works on a request.
func (p *stopped) awaitRequest(t *testing.T, client *http.Client) {
	t.Helper()
	until(t, patience, "the request to be in flight", func() bool {
		resp, err := client.Get("http://" + p.health + "/metrics")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		page, _ := io.ReadAll(resp.Body)
		return strings.Contains(string(page), `lifecycle_requests_in_flight{server="http"} 1`)
	})
}

// stop ends the process as a kubelet does, and waits for it.
func (p *stopped) stop(t *testing.T) {
	if err := p.proc.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
		return
	}
	<-p.proc.ended
	p.exit = p.proc.cmd.ProcessState.ExitCode()
}

// TestHistogramsAreNative lets a Prometheus with native histograms scrape a stop. The
// panels with quantiles show it, without any bucket of a classic histogram.
func TestHistogramsAreNative(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for scrapes")
	}
	prometheus := tool(t, "prometheus")
	folder := t.TempDir()
	service := filepath.Join(folder, "service")
	if out, err := exec.Command("go", "build", "-C", "../examples", "-buildvcs=false", "-o", service, "./service").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ports := lowPorts(t)
	own := ports()
	p := &stopped{kind: "good", web: ports(), health: ports(), folder: folder, env: []string{
		"SERVICE_LIFECYCLE_DRAIN_INTERVAL=1s", "SERVICE_LIFECYCLE_SHUTDOWN_GRACE=80s", "SERVICE_LIFECYCLE_LINGER=1s", "SERVICE_LIFECYCLE_REPORT_SLICE=60s"}}
	scrape := filepath.Join(folder, "prometheus.yaml")
	text := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs:\n  - {job_name: service, static_configs: [{targets: [%q]}]}\n", p.health)
	if err := os.WriteFile(scrape, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, nil, prometheus, "--enable-feature=native-histograms", "--config.file="+scrape, "--storage.tsdb.path="+filepath.Join(folder, "tsdb"), "--web.listen-address="+own, "--log.level=warn")
	client := browser(t)
	p.start(t, service)
	eventually(t, "a native histogram", func() bool {
		return ok(client, "http://"+own+"/-/ready") && len(series(t, client, own, `histogram_count(lifecycle_phase_completed_duration_seconds{phase="starting"}) == 1`)) > 0
	})
	p.stop(t)
	eventually(t, "the stop in it", func() bool {
		return len(series(t, client, own, `histogram_count(lifecycle_stop_duration_seconds) == 1 and histogram_sum(lifecycle_stop_duration_seconds) > 1`)) > 0
	})
	if got := series(t, client, own, "lifecycle_stop_duration_seconds_bucket"); len(got) > 0 {
		t.Errorf("the histogram is classic: %v", got)
	}
	panels := 0
	for _, q := range dashboardQueries(t) {
		if strings.Contains(q.expr, "histogram_quantile") {
			panels++
			expr := strings.NewReplacer("$job", ".+", "$instance", ".+", "$__range", "5m").Replace(q.expr)
			if len(series(t, client, own, expr)) == 0 {
				t.Errorf("%s shows nothing: %s", q.where, expr)
			}
		}
	}
	if panels == 0 {
		t.Error("no panel has a quantile")
	}
}
