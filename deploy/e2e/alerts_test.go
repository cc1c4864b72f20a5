package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestAlertsOfPods makes the two alerts fire that only a pod can: a grace that is too short
// for the configuration, which kube.Self reads in the manifest, and a container that ended
// badly. A real Prometheus scrapes the pods and evaluates the shipped rules. Each alert fires
// for its pod alone, and resolves when the pod is replaced or gone.
//
// The test exports itself what kube-state-metrics would of the pods' status, by its names.
func TestAlertsOfPods(t *testing.T) {
	full(t)
	c := onCluster(t)
	program := prometheusProgram(t)
	c.reachAPI(t)
	c.allow(t)
	tight := c.asking("tight", 1)
	tight.grace = 20
	declared := tight.env["SERVICE_LIFECYCLE_TERMINATION_GRACE"]
	delete(tight.env, "SERVICE_LIFECYCLE_TERMINATION_GRACE") // or the App would not start
	short, failing := c.deploy(t, tight).ready(t), c.deploy(t, c.serviceOf("failing", 1)).ready(t)
	states := httptest.NewServer(http.HandlerFunc(c.exportStates))
	defer states.Close()
	prom := startPrometheus(t, program, "2s")
	target := func(d *deployed) object {
		return object{"targets": []string{d.healthPort(t)}, "labels": object{"namespace": c.namespace, "pod": d.pods.only(t).name}}
	}
	kubeState := object{"targets": []string{strings.TrimPrefix(states.URL, "http://")}}
	prom.setTargets(t, target(short), target(failing), kubeState)
	fires := func(alert string, of *deployed) {
		t.Helper()
		eventually(t, alert+" to fire", func() bool { return len(prom.firing(t, alert)) > 0 })
		if got := prom.firing(t, alert); len(got) != 1 || got[0]["pod"] != of.pods.only(t).name {
			t.Errorf("%s fires for %v", alert, got)
		}
	}
	resolves := func(alert string) {
		t.Helper()
		eventually(t, alert+" to resolve", func() bool { return len(prom.firing(t, alert)) == 0 })
	}
	const grace, ended = "LifecycleStopExceedsGrace", "LifecycleContainerEndedBadly"
	fires(grace, short)
	if got := prom.firing(t, ended); len(got) != 0 {
		t.Errorf("%s fires for %v", ended, got)
	}
	tell(t, failing.addr, "/fail?how=error", 202)
	fires(ended, failing)

	tight.grace = 30
	tight.env["SERVICE_LIFECYCLE_TERMINATION_GRACE"] = declared
	short.change(t, tight)
	failing.must(t, "scale", "deployment/failing", "--replicas=0")
	failing.settled(t)
	prom.setTargets(t, target(short), kubeState)
	resolves(grace)
	resolves(ended)
	for _, labels := range prom.ever(t, "ALERTS") {
		if name := labels["alertname"]; labels["alertstate"] == "firing" && name != grace && name != ended {
			t.Errorf("%s fired: %v", name, labels)
		}
	}
}

// healthPort returns the address of the health port of the deployment's only pod, ready or
// not.
func (d *deployed) healthPort(t *testing.T) string {
	t.Helper()
	name := d.name + "-health"
	svc := service(name, object{"deployment": d.name})
	svc["spec"].(object)["publishNotReadyAddresses"] = true
	svc["spec"].(object)["ports"] = []object{{"port": 8081, "targetPort": "health"}}
	d.apply(t, svc)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := d.kubectl(ctx, "delete", "service", name, "--ignore-not-found", "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	addr := d.nodePort(t, name)
	awaitAnswer(t, addr)
	return addr
}

// exportStates serves how the containers of the namespace ended, as kube-state-metrics does.
func (c *cluster) exportStates(w http.ResponseWriter, r *http.Request) {
	text, err := c.kubectl(r.Context(), "get", "pods", "--output", "json")
	var list struct {
		Items []struct {
			Metadata struct{ Name, Namespace string }
			Status   struct {
				ContainerStatuses []struct {
					Name      string
					LastState struct {
						Terminated *struct {
							ExitCode   int
							FinishedAt time.Time
						}
					}
				}
			}
		}
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &list)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	for _, p := range list.Items {
		for _, s := range p.Status.ContainerStatuses {
			if end := s.LastState.Terminated; end != nil {
				labels := fmt.Sprintf("{namespace=%q,pod=%q,container=%q}", p.Metadata.Namespace, p.Metadata.Name, s.Name)
				fmt.Fprintf(w, "kube_pod_container_status_last_terminated_exitcode%s %d\n", labels, end.ExitCode)
				fmt.Fprintf(w, "kube_pod_container_status_last_terminated_timestamp%s %d\n", labels, end.FinishedAt.Unix())
			}
		}
	}
}
