package e2e

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// prometheus is a server on this machine.
type prometheus struct {
	addr    string
	targets string // the file that names them
	client  *http.Client
}

// prometheusProgram returns the path of Debian's, or skips the test.
func prometheusProgram(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../bin/prometheus")
	if err == nil {
		path, err = exec.LookPath(path)
	}
	if err != nil {
		path, err = exec.LookPath("prometheus")
	}
	if err != nil {
		t.Skip("there is no prometheus: make bin/prometheus fetches Debian's, or install it")
	}
	return path
}

// startPrometheus starts one with the shipped rules. It evaluates them each 30 s, the
// default of the Prometheus Operator.
func startPrometheus(t *testing.T, program, interval string) *prometheus {
	t.Helper()
	folder := t.TempDir()
	rules, err := filepath.Abs("../alerts/lifecycle.yaml")
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &prometheus{addr: ln.Addr().String(), targets: filepath.Join(folder, "targets.json"), client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	ln.Close()
	// JSON is YAML.
	config, err := json.Marshal(object{
		"global":     object{"scrape_interval": interval, "evaluation_interval": "30s"},
		"rule_files": []string{rules},
		"scrape_configs": []object{{
			"job_name": "web", "file_sd_configs": []object{{"files": []string{p.targets}, "refresh_interval": "5s"}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "prometheus.yaml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	var printed bytes.Buffer
	cmd := exec.Command(program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(folder, "tsdb"), "--web.listen-address="+p.addr, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = &printed, &printed
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if t.Failed() {
			t.Logf("Prometheus printed:\n%s", &printed)
		}
	})
	eventually(t, "Prometheus to be ready", func() bool {
		resp, err := p.client.Get("http://" + p.addr + "/-/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return p
}

// scrape makes these pods the targets. Each has the label that a ServiceMonitor gives it.
func (p *prometheus) scrape(t *testing.T, all []*deleted) {
	t.Helper()
	var targets []object
	for _, d := range all {
		targets = append(targets, object{"targets": []string{d.health}, "labels": object{"pod": d.name}})
	}
	p.setTargets(t, targets...)
}

func (p *prometheus) setTargets(t *testing.T, targets ...object) {
	t.Helper()
	text, err := json.Marshal(targets)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.targets+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(p.targets+".new", p.targets); err != nil {
		t.Fatal(err)
	}
}

// get asks the API.
func (p *prometheus) get(t *testing.T, path string, v any) {
	t.Helper()
	resp, err := p.client.Get("http://" + p.addr + "/api/v1/" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", path, resp.Status, err)
	}
}

// firing returns the label sets of the alerts of this name that fire now.
func (p *prometheus) firing(t *testing.T, name string) (series []map[string]string) {
	t.Helper()
	var answer struct {
		Data struct {
			Result []struct{ Metric map[string]string }
		}
	}
	p.get(t, "query?query="+url.QueryEscape(`ALERTS{alertstate="firing",alertname="`+name+`"}`), &answer)
	for _, r := range answer.Data.Result {
		series = append(series, r.Metric)
	}
	return series
}

// ever returns the label sets of all series of the metric that have been 1 in the last
// hour, including the series of deleted pods.
func (p *prometheus) ever(t *testing.T, metric string) (series []map[string]string) {
	t.Helper()
	var answer struct {
		Data struct {
			Result []struct{ Metric map[string]string }
		}
	}
	p.get(t, "query?query="+url.QueryEscape("max_over_time("+metric+"[1h]) == 1"), &answer)
	for _, r := range answer.Data.Result {
		series = append(series, r.Metric)
	}
	return series
}

// awaitEach waits until the metric has been 1 for each pod but the control's, whose end no
// scrape sees for certain.
func (p *prometheus) awaitEach(t *testing.T, wave []*deleted, metric string) {
	t.Helper()
	eventually(t, metric+" to be 1 for each pod", func() bool {
		seen := make(map[string]bool)
		for _, labels := range p.ever(t, metric) {
			seen[labels["pod"]] = true
		}
		return !slices.ContainsFunc(wave, func(d *deleted) bool { return d.release == "told" && !seen[d.name] })
	})
}

// awaitEvaluation waits until each group of rules has been evaluated once more.
func (p *prometheus) awaitEvaluation(t *testing.T) {
	t.Helper()
	now := time.Now()
	eventually(t, "the next evaluation of the rules", func() bool {
		var rules struct {
			Data struct {
				Groups []struct{ LastEvaluation time.Time }
			}
		}
		p.get(t, "rules", &rules)
		return len(rules.Data.Groups) > 0 && !slices.ContainsFunc(rules.Data.Groups, func(g struct{ LastEvaluation time.Time }) bool { return !g.LastEvaluation.After(now) })
	})
}

// readAlerts notes for each pod which alerts there have been.
func (p *prometheus) readAlerts(t *testing.T, all []*deleted) {
	t.Helper()
	for _, labels := range p.ever(t, "ALERTS") {
		i := slices.IndexFunc(all, func(d *deleted) bool { return d.name == labels["pod"] })
		if i < 0 {
			t.Errorf("an alert without a pod: %v", labels)
			continue
		}
		if labels["alertstate"] == "firing" {
			all[i].firing = append(all[i].firing, labels["alertname"])
		} else {
			all[i].pending = append(all[i].pending, labels["alertname"])
		}
	}
}
