package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// The names in an Eviction.
const (
	appResponder = "lifecycle.pleme.io/app"
	evictor      = "imperative-eviction.k8s.io/evictor" // the API's last responder, which deletes the pod
)

// controller writes Evictions as the evictionrequest-controller will. Kubernetes 1.37 has the
// API, whose rules hold for what the test writes, but not the controller.
type controller struct {
	*deployed
	name string // of the Eviction
	pod  *pod
}

// evictionStatus is the used part of what a responder reports.
type evictionStatus struct {
	Name                                                                      string
	StartTime, HeartbeatTime, ExpectedCompletionTime, CompletionTime, Message string
}

// begin makes an Eviction of the pod, in which it is the App's turn.
func (c controller) begin(t *testing.T) {
	t.Helper()
	c.apply(t, object{
		"apiVersion": "lifecycle.k8s.io/v1alpha1", "kind": "Eviction", "metadata": object{"name": c.name},
		"spec": object{"target": object{"pod": object{"name": c.pod.name, "uid": c.pod.uid}}},
	})
	c.write(t, "merge", object{
		"requesters":       []object{{"name": "drain.example/kubectl", "intent": "Eviction"}},
		"targetResponders": []object{{"name": appResponder, "priority": 20000, "state": "Active"}, {"name": evictor, "priority": 100, "state": "Inactive"}},
		"responders":       []object{{"name": appResponder, "startTime": now()}, {"name": evictor}},
	})
}

// cancel ends the Eviction: nobody wants the pod to go any more.
func (c controller) cancel(t *testing.T) {
	t.Helper()
	c.write(t, "strategic", object{
		"requesters":       []object{{"name": "drain.example/kubectl", "intent": "Withdrawn"}},
		"targetResponders": []object{{"name": appResponder, "priority": 20000, "state": "Canceled"}},
		"conditions": []object{{
			"type": "Failed", "status": "True", "reason": "CanceledDueToNoRequesters", "message": "no requester is left", "lastTransitionTime": now(),
		}},
	})
}

// next gives the turn to the evictor, and does what it will: it evicts the pod.
func (c controller) next(t *testing.T) {
	t.Helper()
	c.write(t, "strategic", object{
		"targetResponders": []object{{"name": appResponder, "priority": 20000, "state": "Completed"}, {"name": evictor, "priority": 100, "state": "Active"}},
		"responders":       []object{{"name": evictor, "startTime": now()}},
	})
	if err := c.evict(t, c.pod.name); err != nil {
		t.Fatal(err)
	}
}

func now() string { return time.Now().UTC().Format(time.RFC3339) }

// patch returns the arguments of kubectl that write the status of the Eviction.
func (c controller) patch(t *testing.T, kind string, status object) []string {
	t.Helper()
	text, err := json.Marshal(object{"status": status})
	if err != nil {
		t.Fatal(err)
	}
	return []string{"patch", "evictions.lifecycle.k8s.io", c.name, "--subresource=status", "--type=" + kind, "--patch", string(text)}
}

func (c controller) write(t *testing.T, kind string, status object) {
	t.Helper()
	c.must(t, c.patch(t, kind, status)...)
}

// told returns what the App has reported.
func (c controller) told(t *testing.T) (own evictionStatus) {
	t.Helper()
	var o struct {
		Status struct{ Responders []evictionStatus }
	}
	if err := json.Unmarshal([]byte(c.must(t, "get", "evictions.lifecycle.k8s.io", c.name, "--output", "json")), &o); err != nil {
		t.Fatal(err)
	}
	for _, r := range o.Status.Responders {
		if r.Name == appResponder {
			own = r
		}
	}
	return own
}

// isReady reports whether the kubelet takes the pod to be ready.
func (c controller) isReady() bool {
	for _, p := range c.pods.list() {
		if p.uid == c.pod.uid {
			return p.ready
		}
	}
	return false
}

// stream opens an event stream of the pod. The returned function closes it.
func stream(t *testing.T, addr string) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v, %+v", err, resp)
	}
	return func() {
		cancel()
		resp.Body.Close()
	}
}

// TestEvictionOnTheCluster evicts a pod of examples/service while a client has an event stream
// of it, with the permissions that the chart renders. The pod leaves the Service, reports how
// far it is, and comes back when the eviction is withdrawn. The next one waits until the
// client has left; then the pod is deleted. Under load no request is lost.
func TestEvictionOnTheCluster(t *testing.T) {
	full(t)
	c := onCluster(t)
	if !c.hasEvictions(t) {
		t.Skip("needs the API of evictions: Kubernetes 1.37 with the gate EvictionRequestAPI")
	}
	c.reachAPI(t)
	c.chartsPermissions(t)
	d := c.asking("evicted", 2)
	d.env["SERVICE_KUBE_EVICTIONS"] = "true"
	d.answers = appResponder
	up := c.deploy(t, d)
	up.ready(t)
	if got := up.must(t, "get", "pods", "--selector", "deployment=evicted", "--output", "jsonpath={.items[0].spec.evictionResponders[0].name}"); got != appResponder {
		t.Fatalf("the pod's responder is %q", got)
	}
	one, other := up.pods.running()[0], up.pods.running()[1]
	leave := stream(t, up.wayTo(t, one))
	load := up.load(t, keepAlive, newConns)
	defer load.stop()

	first := controller{up, "evicted-1", one}
	first.begin(t)
	eventually(t, "the pod to leave its Service", func() bool { return !first.isReady() })
	eventually(t, "a heartbeat", func() bool { return first.told(t).HeartbeatTime != "" })
	told := first.told(t)
	if told.CompletionTime != "" || told.ExpectedCompletionTime == "" || !strings.Contains(told.Message, "waiting since") || !strings.Contains(told.Message, "requests in flight") {
		t.Errorf("it reports %+v", told)
	}
	c.onlyItsOwn(t, first, other)
	eventually(t, "another heartbeat", func() bool { return first.told(t).HeartbeatTime != told.HeartbeatTime })
	first.cancel(t)
	eventually(t, "the pod to be back in service", first.isReady)
	if got := first.told(t); got.CompletionTime != "" {
		t.Errorf("withdrawn, it reports %+v", got)
	}
	up.must(t, "delete", "evictions.lifecycle.k8s.io", first.name)

	second := controller{up, "evicted-2", one}
	second.begin(t)
	eventually(t, "the pod to leave its Service again", func() bool { return !second.isReady() })
	if got := second.told(t); got.CompletionTime != "" {
		t.Errorf("with an open stream it reports %+v", got)
	}
	leave()
	eventually(t, "the end of the wait", func() bool { return second.told(t).CompletionTime != "" })
	if got := second.told(t); got.Message != "the work has ended" {
		t.Errorf("it reports %+v", got)
	}
	if second.isReady() {
		t.Error("it is back in service before it is deleted")
	}
	second.next(t)
	if e := up.pods.ended(t, one.uid); e.ExitCode != 0 {
		t.Errorf("the pod ended with %s", e)
	}
	up.rolledOut(t)
	pause(t.Context(), 2*time.Second)
	mustLoseNothing(t, up.pods.stops(), load.stop()...)
	up.must(t, "delete", "evictions.lifecycle.k8s.io", second.name)
}

// hasEvictions reports whether the API server has the API of evictions.
func (c *cluster) hasEvictions(t *testing.T) bool {
	t.Helper()
	return strings.Contains(c.must(t, "api-resources", "--api-group=lifecycle.k8s.io", "--output", "name"), "evictions")
}

// chartsPermissions applies the Role and the policy of the service chart, for the service
// account asking.
func (c *cluster) chartsPermissions(t *testing.T) {
	t.Helper()
	text := helm(t, "template", "evicted", "../helm/lifecycle-service", "--namespace", c.namespace, "--set", "serviceAccount.name=asking",
		"--set", "kubernetesAPI.enabled=true,kubernetesAPI.evictions=true,kubernetesAPI.evictionPolicy=true",
		"--show-only", "templates/serviceaccount.yaml", "--show-only", "templates/role.yaml", "--show-only", "templates/evictionpolicy.yaml")
	run(t, text, "kubectl", "--namespace", c.namespace, "apply", "--filename", "-")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		kinds := "validatingadmissionpolicies,validatingadmissionpolicybindings"
		if _, err := c.kubectl(ctx, "delete", kinds, "--selector", "app.kubernetes.io/instance=evicted"); err != nil {
			t.Error(err)
		}
	})
}

// onlyItsOwn tries what the permissions of a pod do not include, with the tokens of two pods:
// the eviction of another pod, and what others say in its own.
func (c *cluster) onlyItsOwn(t *testing.T, ev controller, other *pod) {
	t.Helper()
	api := c.api(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(api.CA)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	// kubectl reads an object before it writes, which the Role does not allow.
	write := func(token string, status object) (code int, says string) {
		t.Helper()
		text, err := json.Marshal(object{"status": status})
		if err != nil {
			t.Fatal(err)
		}
		url := api.Host + "/apis/lifecycle.k8s.io/v1alpha1/namespaces/" + c.namespace + "/evictions/" + ev.name + "/status"
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, url, bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(token))
		req.Header.Set("Content-Type", "application/strategic-merge-patch+json")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(answer)
	}
	of := func(p *pod) string {
		return c.must(t, "create", "token", "asking", "--bound-object-kind=Pod", "--bound-object-name="+p.name, "--bound-object-uid="+p.uid)
	}
	own := object{"responders": []object{{"name": appResponder, "message": "by hand"}}}
	withdrawn := object{"requesters": []object{{"name": "me.example/app", "intent": "Withdrawn"}}}
	for _, tt := range []struct {
		token  string
		status object
		says   string
	}{
		{of(other), own, "a pod may write to the eviction of itself and no other"},
		{c.must(t, "create", "token", "asking"), own, "a pod may write to the eviction of itself and no other"},
		{of(ev.pod), withdrawn, "a pod may write the status of its own responder"},
	} {
		last := ""
		defer func() {
			if t.Failed() {
				t.Log(last)
			}
		}()
		eventually(t, "a refusal that says: "+tt.says, func() bool { // the API server takes a moment to know a policy
			var code int
			code, last = write(tt.token, tt.status)
			return code == http.StatusUnprocessableEntity && strings.Contains(last, tt.says)
		})
	}
	if code, says := write(of(ev.pod), own); code != http.StatusOK {
		t.Errorf("the pod may not write to its own eviction: %d %s", code, says)
	}
}
