//go:build unix

package deploy

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// provoked is what makes an alert fire: how often a process of the example gets a request
// of this path, before it is stopped with a request in flight.
type provoked struct {
	alert   string
	path    string
	times   int
	working time.Duration // the request that is in flight at the stop
}

// TestAlertsFireAndResolve lets real processes of the example do what the alerts about
// running processes are for, while a real Prometheus scrapes them and evaluates the shipped
// rules. Each alert fires for its process alone, and is gone once the process has ended and
// the window of the rule is over. The two that only a pod can provoke are in deploy/e2e.
//
// The short run divides the times of the rules by 20. ALERTS_TEST=long takes the shipped
// ones, and 11 minutes.
func TestAlertsFireAndResolve(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for scrapes; TestAlerts tests the rules")
	}
	prometheus := tool(t, "prometheus")
	folder := t.TempDir()
	service := filepath.Join(folder, "service")
	build := exec.Command("go", "build", "-C", "../examples", "-buildvcs=false", "-o", service, "./service")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	rules, err := os.ReadFile("alerts/lifecycle.yaml")
	if err != nil {
		t.Fatal(err)
	}
	longest := time.Minute
	if os.Getenv("ALERTS_TEST") == "long" {
		longest = 20 * time.Minute
	} else {
		rules = shorter(rules, 20)
	}
	write := func(name, text string) string {
		name = filepath.Join(folder, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	ports := lowPorts(t)
	own := ports()
	// With a scrape at the end, as the chart has it: 28 s are for the stop itself.
	env := []string{
		"SERVICE_LIFECYCLE_DRAIN_INTERVAL=1s", "SERVICE_LIFECYCLE_SHUTDOWN_GRACE=88s", "SERVICE_LIFECYCLE_LINGER=500ms", "SERVICE_LIFECYCLE_UNIT_SLICE=500ms",
		"SERVICE_LIFECYCLE_HOOK_SLICE=500ms", "SERVICE_LIFECYCLE_REPORT_SLICE=60s", "SERVICE_LIFECYCLE_TERMINATION_GRACE=91s",
	}
	all := []provoked{
		{alert: "LifecycleUnitRestarting", path: "/fail?how=restart", times: 5},
		{alert: "LifecycleUnitFailed", path: "/fail?how=lose", times: 1},
		{alert: "LifecycleShutdownNearlyOutOfTime", working: 26 * time.Second}, // a second of it in the window
	}
	processes := make([]*stopped, len(all))
	var targets []string
	for i := range all {
		p := &stopped{kind: "good", web: ports(), health: ports(), folder: t.TempDir(), env: env}
		processes[i] = p
		targets = append(targets, fmt.Sprintf("{targets: [%q], labels: {namespace: shop, pod: web-%d}}", p.health, i))
		p.start(t, service)
	}
	const config = "global: {scrape_interval: 1s, evaluation_interval: 1s}\n" +
		"rule_files: [%q]\n" +
		"scrape_configs:\n" +
		"  - {job_name: service, static_configs: [%s]}\n"
	scrape := write("prometheus.yaml", fmt.Sprintf(config, write("rules.yaml", string(rules)), strings.Join(targets, ", ")))
	start(t, nil, prometheus, "--config.file="+scrape, "--storage.tsdb.path="+filepath.Join(folder, "tsdb"), "--web.listen-address="+own, "--log.level=warn")
	client := browser(t)
	eventually(t, "Prometheus to be ready", func() bool { return ok(client, "http://"+own+"/-/ready") })
	eventually(t, "each process to be scraped", func() bool {
		return len(series(t, client, own, `lifecycle_phase{phase="running"} == 1`)) == len(all)
	})
	firing := func(alert string) []map[string]string {
		return instant(t, client, own, fmt.Sprintf(`ALERTS{alertname=~%q,alertstate="firing"}`, alert))
	}
	if fired := firing(".+"); len(fired) > 0 {
		t.Errorf("before anything has happened there is %v", fired)
	}

	began := time.Now()
	for i, a := range all {
		p := processes[i]
		for range a.times {
			resp, err := client.Post("http://"+p.web+a.path, "", nil)
			if err != nil || resp.StatusCode != http.StatusAccepted {
				t.Fatalf("%s: %v, %+v", a.path, err, resp)
			}
			resp.Body.Close()
		}
		if a.working > 0 {
			var working sync.WaitGroup
			working.Go(func() {
				if resp, err := client.Post(fmt.Sprintf("http://%s/work?sleep=%v", p.web, a.working), "", nil); err == nil {
					resp.Body.Close()
				}
			})
			t.Cleanup(working.Wait)
			p.awaitRequest(t, client)
			p.stop(t)
		}
		until(t, longest, a.alert+" to fire", func() bool { return len(firing(a.alert)) > 0 })
		pod := fmt.Sprintf("web-%d", i)
		if fired := firing(a.alert); len(fired) != 1 || fired[0]["instance"] != p.health || fired[0]["namespace"] != "shop" || fired[0]["pod"] != pod {
			t.Errorf("%s fires for %v, want %s at %s", a.alert, fired, pod, p.health)
		}
		t.Logf("%-34s fired after %v", a.alert, time.Since(began).Round(time.Second))
	}
	for i, a := range all {
		if a.working == 0 {
			processes[i].stop(t)
		}
		if processes[i].exit != 0 {
			t.Errorf("the process of %s exits with %d", a.alert, processes[i].exit)
		}
	}
	for _, a := range all {
		until(t, longest, a.alert+" to resolve", func() bool { return len(firing(a.alert)) == 0 })
		t.Logf("%-34s resolved after %v", a.alert, time.Since(began).Round(time.Second))
	}
	known := func(labels map[string]string) bool {
		return slices.ContainsFunc(all, func(a provoked) bool { return a.alert == labels["alertname"] })
	}
	for _, labels := range seriesSince(t, client, own, `ALERTS{alertstate="firing"}`, began) {
		if !known(labels) {
			t.Errorf("%s fired for %s", labels["alertname"], labels["instance"])
		}
	}
}

var ruleTime = regexp.MustCompile(`(\[|for: |offset )(\d+)(m|h)`)

// shorter returns the rules with their times divided by n.
func shorter(rules []byte, n int) []byte {
	text := ruleTime.ReplaceAllStringFunc(string(rules), func(found string) string {
		part := ruleTime.FindStringSubmatch(found)
		number, _ := strconv.Atoi(part[2]) // of digits
		seconds := number * map[string]int{"m": 60, "h": 3600}[part[3]]
		return fmt.Sprintf("%s%ds", part[1], seconds/n)
	})
	return []byte(strings.ReplaceAll(text, "< 900", fmt.Sprintf("< %d", 900/n)))
}

// instant returns the label sets of a query's results as they are now.
func instant(t *testing.T, client *http.Client, prometheus, expr string) []map[string]string {
	t.Helper()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Metric map[string]string }
		}
	}
	get(t, client, queryURL(prometheus, expr), &answer)
	if answer.Status != "success" {
		t.Errorf("%s: %s", expr, answer.Error)
	}
	var all []map[string]string
	for _, s := range answer.Data.Result {
		all = append(all, s.Metric)
	}
	return all
}

func queryURL(prometheus, expr string) string {
	return "http://" + prometheus + "/api/v1/query?query=" + url.QueryEscape(expr)
}
