package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// deletions is a kind of stop: how the test provokes it, and what its pods must show.
type deletions struct {
	kind    string
	count   int
	release string // of the chart: "told" awaits one last scrape, "untold" does not
	provoke string // the request that the pod gets before the test deletes it
	alert   string // the only alert that fires for the pod; empty for none
	exit    int
}

// wholeDeletions are the deletions with E2E_ALERTS=whole. The last kind is the control: without a
// last scrape Prometheus sees the cut request by chance, so the test counts its alerts and
// demands none.
var wholeDeletions = []deletions{
	{"cut", 10, "told", "/work?note=e2e&sleep=1m", "LifecycleRequestsCut", 75},
	{"stuck", 5, "told", "/fail?how=stuck-unit", "LifecycleAbandoned", 70},
	{"good", 50, "told", "/work?note=e2e&sleep=12s", "", 0},
	{"control", 5, "untold", "/work?note=e2e&sleep=1m", "LifecycleRequestsCut", 75},
}

// fewDeletions are the counts of each kind without it.
var fewDeletions = []int{3, 2, 10, 1}

// atOnce bounds how many pods run at the same time: a node has room for some dozens.
const atOnce = 24

// deleted is one pod.
type deleted struct {
	deletions
	name        string
	web, health string // on this machine, of this pod alone
	uid         string
	exit        int
	firing      []string // the alerts that have fired for it
	pending     []string // alerts that have been pending
}

// TestAlertsOfDeletedPods deletes pods of the shipped chart while a real Prometheus
// scrapes them, as the chart's ServiceMonitor says, and evaluates the shipped rules. A
// deleted pod has no next start that tells of the stop, so the last scrape has to. For
// each stop that cuts a request, and for each that abandons a unit, that alert fires and
// no other. For a good stop, which has a request in flight too, none is even pending.
func TestAlertsOfDeletedPods(t *testing.T) {
	full(t)
	c := onCluster(t)
	program := prometheusProgram(t)
	run := slices.Clone(wholeDeletions)
	if os.Getenv("E2E_ALERTS") != "whole" {
		for i, count := range fewDeletions {
			run[i].count = count
		}
	}
	t.Cleanup(func() { c.deleteLabelled(t, "pods,services,configmaps,serviceaccounts") })
	templates := map[string]object{"told": c.chart(t, "told", true), "untold": c.chart(t, "untold", false)}
	prom := startPrometheus(t, program, scrapeInterval(t))

	var all []*deleted
	watched := c.watchPods(t, "alerts=deleted")
	for next := dealt(run); len(next) > 0; {
		wave := next[:min(atOnce, len(next))]
		next = next[len(wave):]
		all = append(all, wave...)
		c.startPods(t, wave, templates, watched)
		prom.scrape(t, all)
		prom.awaitEach(t, wave, `lifecycle_phase{phase="running"}`)
		c.deletePods(t, wave, watched)
		prom.awaitEach(t, wave, "lifecycle_last_stop_ending")
	}
	prom.awaitEvaluation(t)
	prom.readAlerts(t, all)
	judgeDeleted(t, run, all)
}

// dealt returns the pods in an order that gives each wave pods of all kinds.
func dealt(run []deletions) (all []*deleted) {
	most := slices.MaxFunc(run, func(a, b deletions) int { return a.count - b.count }).count
	for i := range most {
		for _, d := range run {
			if before, after := i*d.count/most, (i+1)*d.count/most; after > before {
				all = append(all, &deleted{deletions: d, name: fmt.Sprintf("deleted-%s-%d", d.kind, after)})
			}
		}
	}
	return all
}

// judgeDeleted compares the alerts with how each pod was stopped.
func judgeDeleted(t *testing.T, run []deletions, all []*deleted) {
	t.Helper()
	counts := make(map[string]int)
	for _, p := range all {
		var want []string
		if p.alert != "" {
			want = []string{p.alert}
		}
		good := slices.Equal(p.firing, want) && (p.alert != "" || len(p.pending) == 0)
		if good {
			counts[p.kind]++
		} else if p.release == "told" {
			t.Errorf("%s: firing %q, pending %q; want only %q to fire", p.name, p.firing, p.pending, want)
		}
		if p.exit != p.deletions.exit {
			t.Errorf("%s exits with %d, want %d", p.name, p.exit, p.deletions.exit)
		}
	}
	for i, d := range run {
		says := d.alert + " alone fired"
		if d.alert == "" {
			says = "no alert fired or was pending"
		}
		t.Logf("%-8s %s for %d of %d deleted pods (of %d with E2E_ALERTS=whole)", d.kind+":", says, counts[d.kind], d.count, wholeDeletions[i].count)
	}
}

// chart applies what the pods of a release of the shipped chart need, and returns the
// template of its pods.
func (c *cluster) chart(t *testing.T, release string, monitored bool) object {
	t.Helper()
	name, tag := image(c.service)
	render := func(files ...string) string {
		args := []string{"template", release, "../helm/lifecycle-service", "--namespace", c.namespace, "--set", fmt.Sprintf("serviceMonitor.enabled=%v", monitored),
			"--set", "image.repository=" + name, "--set-string", "image.tag=" + tag, "--set", "args={-allow-faults}",
			"--set", "resources.requests=null", "--set", "labels.alerts=deleted"}
		for _, f := range files {
			args = append(args, "--show-only", "templates/"+f+".yaml")
		}
		return helm(t, args...)
	}
	run(t, render("configmap", "serviceaccount"), "kubectl", "--namespace", c.namespace, "apply", "--filename", "-")
	var d struct {
		Spec struct{ Template object }
	}
	text := run(t, render("deployment"), "kubectl", "--namespace", c.namespace, "create", "--dry-run=client", "--output=json", "--filename", "-")
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	return d.Spec.Template
}

// scrapeInterval returns the scrape interval of the chart's ServiceMonitor.
func scrapeInterval(t *testing.T) string {
	t.Helper()
	text := helm(t, "template", "told", "../helm/lifecycle-service", "--set", "serviceMonitor.enabled=true", "--show-only", "templates/servicemonitor.yaml")
	if !strings.Contains(text, "publishNotReadyAddresses: true") {
		t.Error("the chart's Service hides pods that stop from Prometheus")
	}
	_, interval, _ := strings.Cut(text, "interval: ")
	interval, _, found := strings.Cut(interval, "}")
	if !found {
		t.Fatalf("there is no interval in\n%s", text)
	}
	return interval
}

// startPods starts the pods, each behind a nodePort of its own, and waits until they
// answer. A pod has no controller: nothing replaces it.
func (c *cluster) startPods(t *testing.T, wave []*deleted, templates map[string]object, watched *pods) {
	t.Helper()
	var objects []any
	for _, p := range wave {
		labels := object{"alerts": "deleted", "only": p.name}
		svc := service(p.name, object{"only": p.name})
		svc["metadata"].(object)["labels"] = labels
		svc["spec"].(object)["publishNotReadyAddresses"] = true
		svc["spec"].(object)["ports"] = []object{{"name": "http", "port": 80, "targetPort": "http"}, {"name": "health", "port": 8081, "targetPort": "health"}}
		objects = append(objects, svc, object{
			"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": p.name, "labels": labels}, "spec": templates[p.release]["spec"],
		})
	}
	c.apply(t, objects...)
	watched.await(t, "the pods to be ready", func([]*pod) bool { return len(watched.running()) == len(wave) })
	for _, one := range watched.running() {
		wave[slices.IndexFunc(wave, func(p *deleted) bool { return p.name == one.name })].uid = one.uid
	}
	var services struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ Ports []struct{ NodePort int } }
		}
	}
	if err := json.Unmarshal([]byte(c.must(t, "get", "services", "--selector", "alerts=deleted", "--output", "json")), &services); err != nil {
		t.Fatal(err)
	}
	for _, svc := range services.Items {
		if i := slices.IndexFunc(wave, func(p *deleted) bool { return p.name == svc.Metadata.Name }); i >= 0 {
			wave[i].web = fmt.Sprintf("127.0.0.1:%d", svc.Spec.Ports[0].NodePort)
			wave[i].health = fmt.Sprintf("127.0.0.1:%d", svc.Spec.Ports[1].NodePort)
		}
	}
	for _, p := range wave {
		awaitAnswer(t, p.web)
		awaitAnswer(t, p.health)
	}
}

// deletePods provokes each pod, deletes all at once, and waits until their containers
// have ended.
func (c *cluster) deletePods(t *testing.T, wave []*deleted, watched *pods) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	var asked, good sync.WaitGroup
	defer asked.Wait()
	defer good.Wait()
	defer cancel()
	args := []string{"delete", "pods", "--wait=false"}
	for _, p := range wave {
		args = append(args, p.name)
		answered := make(chan struct{})
		ask := func() {
			defer close(answered)
			if err := post(ctx, client, "http://"+p.web+p.provoke); err != nil && p.deletions.exit != 75 {
				t.Errorf("%s lost its request: %v", p.name, err)
			}
		}
		if p.kind == "good" {
			good.Go(ask)
		} else {
			asked.Go(ask)
		}
		eventually(t, "the request of "+p.name, func() bool {
			select {
			case <-answered:
				return true
			default:
				return inFlight(ctx, client, p.health)
			}
		})
	}
	c.must(t, args...)
	for _, p := range wave {
		p.exit = watched.ended(t, p.uid).ExitCode
	}
	good.Wait() // not cancelled
}

func post(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return fmt.Errorf("status %s", resp.Status)
	}
	return nil
}

// inFlight reports whether a handler of the pod is working on a request.
func inFlight(ctx context.Context, client *http.Client, health string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+health+"/metrics", nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	return err == nil && strings.Contains(string(page), `lifecycle_requests_in_flight{server="http"} 1`)
}

// deleteLabelled deletes what the test has made.
func (c *cluster) deleteLabelled(t *testing.T, kinds string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := c.kubectl(ctx, "delete", kinds, "--selector", "alerts=deleted", "--grace-period=1", "--wait=false"); err != nil {
		t.Error(err)
	}
}
