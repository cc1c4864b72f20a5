//go:build unix

package deploy

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"
)

// gates are the objects that fail a rollout, as the chart renders them.
type gates struct{ argo, flagger string } // their queries

func readGates(t *testing.T, set ...string) (g gates) {
	t.Helper()
	for text := range strings.SplitSeq(chart(t, append(set, "rolloutGate.argoRollouts=true", "rolloutGate.flagger=true")...), "\n---") {
		var o struct {
			Kind string
			Spec struct {
				Query    string
				Provider struct{ Type, Address string }
				Metrics  []struct {
					SuccessCondition string `yaml:"successCondition"`
					FailureLimit     *int   `yaml:"failureLimit"`
					Provider         struct {
						Prometheus struct{ Address, Query string }
					}
				}
			}
		}
		if err := yaml.Unmarshal([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		switch o.Kind {
		case "AnalysisTemplate":
			m := o.Spec.Metrics[0]
			if m.SuccessCondition != "result[0] == 0" || m.FailureLimit == nil || *m.FailureLimit != 0 || m.Provider.Prometheus.Address == "" {
				t.Errorf("the AnalysisTemplate has %+v", m)
			}
			g.argo = m.Provider.Prometheus.Query
		case "MetricTemplate":
			if p := o.Spec.Provider; p.Type != "prometheus" || p.Address == "" {
				t.Errorf("the MetricTemplate has %+v", p)
			}
			g.flagger = o.Spec.Query
		}
	}
	if g.argo == "" || strings.TrimSpace(g.argo) != strings.TrimSpace(g.flagger) {
		t.Fatalf("Argo Rollouts asks\n%s\nand Flagger\n%s", g.argo, g.flagger)
	}
	// Both replace {{ … }} in a query.
	if strings.Contains(g.argo, "{{") {
		t.Errorf("the query has a placeholder: %s", g.argo)
	}
	return g
}

// TestGateFailsABadRollout stops real processes of three services, and a fourth that is not
// scraped, under a real Prometheus. The query that the chart renders for each is 0 while its
// stops are good, which both controllers take for a success, and the number of bad stops
// after those. Without a scrape it has no value, which both take for an error.
func TestGateFailsABadRollout(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for scrapes")
	}
	prometheus := tool(t, "prometheus")
	folder := t.TempDir()
	service := filepath.Join(folder, "service")
	build := exec.Command("go", "build", "-C", "../examples", "-buildvcs=false", "-o", service, "./service")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ports := lowPorts(t)
	own := ports()
	env := []string{
		"SERVICE_LIFECYCLE_DRAIN_INTERVAL=1s", "SERVICE_LIFECYCLE_SHUTDOWN_GRACE=62s", "SERVICE_LIFECYCLE_LINGER=500ms", "SERVICE_LIFECYCLE_UNIT_SLICE=500ms",
		"SERVICE_LIFECYCLE_HOOK_SLICE=500ms", "SERVICE_LIFECYCLE_REPORT_SLICE=60s", "SERVICE_LIFECYCLE_TERMINATION_GRACE=65s",
	}
	// A release is the service of a chart. Its pods are stopped in these ways.
	releases := map[string][]string{
		"good":   {"good", "good"},
		"bad":    {"good", "cut", "stuck"},
		"killed": {"killed"},
	}
	query := map[string]string{"missing": readGates(t, "fullnameOverride=missing").argo}
	var scrapes []string
	all := map[string][]*stopped{}
	for release, kinds := range releases {
		query[release] = readGates(t, "fullnameOverride="+release).argo
		for i, kind := range kinds {
			p := &stopped{kind: kind, web: ports(), health: ports(), folder: t.TempDir(), env: env}
			all[release] = append(all[release], p)
			// The labels are those that the chart's ServiceMonitor gives.
			scrapes = append(scrapes, fmt.Sprintf("{targets: [%q], labels: {namespace: default, job: %s-health, pod: %s-%d}}", p.health, release, release, i))
		}
	}
	scrape := filepath.Join(folder, "prometheus.yaml")
	text := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs:\n  - {job_name: pods, static_configs: [%s]}\n", strings.Join(scrapes, ", "))
	if err := os.WriteFile(scrape, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, nil, prometheus, "--config.file="+scrape, "--storage.tsdb.path="+filepath.Join(folder, "tsdb"), "--web.listen-address="+own, "--log.level=warn")
	client := browser(t)
	eventually(t, "Prometheus to be ready", func() bool { return ok(client, "http://"+own+"/-/ready") })
	each := func(do func(p *stopped)) {
		for _, list := range all {
			for _, p := range list {
				do(p)
			}
		}
	}
	each(func(p *stopped) { p.start(t, service) })
	eventually(t, "each process to be scraped", func() bool { return len(instant(t, client, own, `lifecycle_phase{phase="running"} == 1`)) == 6 })
	gate := func(release, want string) {
		t.Helper()
		eventually(t, fmt.Sprintf("the gate of %s to say %q", release, want), func() bool { return result(t, client, own, query[release]) == want })
	}
	for release := range releases {
		gate(release, "0")
	}
	gate("missing", "")
	each(func(p *stopped) { p.provoke(t, client) })
	each(func(p *stopped) {
		if p.kind != "killed" {
			p.stop(t)
			return
		}
		// The kubelet kills it in its stop, and starts the container again.
		p.provokeStuck(t, client)
		if err := p.proc.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the stop to begin", func() bool { return !ok(client, "http://"+p.health+"/readyz") })
		if err := p.proc.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-p.proc.ended
		p.start(t, service)
	})
	gate("good", "0")
	gate("bad", "2")
	gate("killed", "1")
	gate("missing", "")
}

// provokeStuck makes a unit ignore the end of its context.
func (p *stopped) provokeStuck(t *testing.T, client *http.Client) {
	t.Helper()
	resp, err := client.Post("http://"+p.web+"/fail?how=stuck-unit", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

// result returns the value of a query with one result at most, or "" without one.
func result(t *testing.T, client *http.Client, prometheus, expr string) string {
	t.Helper()
	var answer struct {
		Status, Error string
		Data          struct{ Result []struct{ Value [2]any } }
	}
	get(t, client, queryURL(prometheus, expr), &answer)
	switch {
	case answer.Status != "success" || len(answer.Data.Result) > 1:
		t.Fatalf("%s: %s, %d results", expr, answer.Error, len(answer.Data.Result))
	case len(answer.Data.Result) == 0:
		return ""
	}
	return fmt.Sprint(answer.Data.Result[0].Value[1])
}
