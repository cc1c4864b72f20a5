package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// shipped is one way to install the files of deploy/ on the cluster.
type shipped struct {
	name string // of the Deployment, its Service, its ConfigMap and its budget
	up   func(t *testing.T, c *cluster)
}

// bin returns the path of a program that make manifest-tools has built.
func bin(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("there is no bin/%s: make manifest-tools builds it", name)
	}
	return path
}

func run(t *testing.T, stdin, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := command(ctx, strings.NewReader(stdin), name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// byKustomize applies the base with the image and the external access that a
// test needs; everything else is as shipped.
var byKustomize = shipped{"lifecycle-service", func(t *testing.T, c *cluster) {
	folder := t.TempDir()
	base, err := filepath.Abs("../kustomize/base")
	if err != nil {
		t.Fatal(err)
	}
	if base, err = filepath.Rel(folder, base); err != nil { // kustomize refuses absolute paths
		t.Fatal(err)
	}
	name, tag := image(c.service)
	overlay, err := json.Marshal(object{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"namespace": c.namespace,
		"resources": []string{base},
		"images":    []object{{"name": "lifecycle-service", "newName": name, "newTag": tag}},
		"patches":   []object{{"target": object{"kind": "Service"}, "patch": `[{"op": "add", "path": "/spec/type", "value": "NodePort"}]`}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "kustomization.yaml"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, run(t, "", bin(t, "kustomize"), "build", folder), "kubectl", "apply", "--filename", "-")
}}

// byHelm installs the chart.
var byHelm = shipped{"web-lifecycle-service", func(t *testing.T, c *cluster) {
	name, tag := image(c.service)
	helm(t, "upgrade", "--install", "web", "../helm/lifecycle-service", "--namespace", c.namespace,
		"--set", "image.repository="+name, "--set-string", "image.tag="+tag, "--set", "service.type=NodePort")
}}

// helm runs it with caches and settings of its own.
func helm(t *testing.T, args ...string) (out string) {
	t.Helper()
	home := t.TempDir()
	t.Setenv("HELM_CACHE_HOME", home)
	t.Setenv("HELM_CONFIG_HOME", home)
	t.Setenv("HELM_DATA_HOME", home)
	return run(t, "", bin(t, "helm"), args...)
}

// foreignKinds are the definitions of the kinds of other projects that the chart can render, as
// these projects publish them.
var foreignKinds = map[string][]string{
	"github.com/argoproj/argo-rollouts@v1.8.3":                   {"manifests/crds/analysis-template-crd.yaml"},
	"github.com/fluxcd/flagger@v1.36.1":                          {"artifacts/flagger/crd.yaml"},
	"github.com/prometheus-operator/prometheus-operator@v0.85.0": {"example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml"},
	"sigs.k8s.io/gateway-api@v1.4.0":                             {"config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"},
}

// TestEveryOptionIsAccepted: the API server accepts all that the service chart can render, in a
// dry run, the kinds of other projects too. Before 1.37 it has no field for evictions.
func TestEveryOptionIsAccepted(t *testing.T) {
	c := onCluster(t)
	full(t)
	for module, files := range foreignKinds {
		var downloaded struct{ Dir string }
		if err := json.Unmarshal([]byte(run(t, "", "go", "mod", "download", "-json", module)), &downloaded); err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			path := filepath.Join(downloaded.Dir, file)
			run(t, "", "kubectl", "apply", "--server-side", "--force-conflicts", "--filename", path)
			t.Cleanup(func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				if _, err := c.kubectl(ctx, "delete", "--ignore-not-found", "--timeout=2m", "--filename", path); err != nil {
					t.Error(err)
				}
			})
			eventually(t, "the kinds of "+path, func() bool { // kubectl wait fails where there are no conditions yet
				_, err := c.kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=10s", "--filename", path)
				return err == nil
			})
		}
	}
	manifest := helm(t, "template", "web", "../helm/lifecycle-service", "--namespace", c.namespace, "--values", "../testdata/everything.yaml",
		"--set", fmt.Sprintf("kubernetesAPI.evictions=%v", c.hasEvictions(t)))
	accepted := run(t, manifest, "kubectl", "--namespace", c.namespace, "apply", "--dry-run=server", "--validate=strict", "--filename", "-")
	if n := strings.Count(accepted, "(server dry run)"); n != strings.Count(manifest, "\nkind: ") || n == 0 {
		t.Errorf("it accepts %d objects of\n%s\nand says\n%s", n, manifest, accepted)
	}
}

func image(ref string) (name, tag string) {
	i := strings.LastIndexByte(ref, ':')
	return ref[:i], ref[i+1:]
}

// restrictedNamespace makes a namespace that refuses every pod that does not
// meet the restricted Pod Security Standard.
func (c *cluster) restrictedNamespace(t *testing.T, name string) *cluster {
	t.Helper()
	own := *c
	own.namespace = c.namespace + "-" + name
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := c.kubectl(ctx, "delete", "namespace", own.namespace, "--ignore-not-found", "--timeout=2m"); err != nil {
			t.Error(err)
		}
	})
	c.apply(t, object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": own.namespace, "labels": object{
		"pod-security.kubernetes.io/enforce": "restricted",
	}}})
	eventually(t, "the default service account", func() bool {
		_, err := own.kubectl(t.Context(), "get", "serviceaccount", "default")
		return err == nil
	})
	return &own
}

// TestShippedManifests applies the files of deploy/, as its users do, in a
// namespace that enforces the restricted standard. Then it does what clusters
// do: a rollout, a change of the configuration, an eviction, and one too many.
func TestShippedManifests(t *testing.T) {
	c := onCluster(t)
	for how, s := range map[string]shipped{"kustomize": byKustomize, "helm": byHelm} {
		t.Run(how, func(t *testing.T) {
			if how == "helm" {
				full(t)
			}
			own := c.restrictedNamespace(t, how)
			mustRefuseUnrestricted(t, own)
			s.up(t, own)
			d := &deployed{cluster: own, name: s.name, addr: own.nodePort(t, s.name), pods: own.watchPods(t, "app.kubernetes.io/name=lifecycle-service")}
			d.pods.onStop = c.slow(t)
			d.ready(t)

			load := d.load(t, keepAlive, newConns, replays, sse, sockets)
			defer load.stop()
			pause(t.Context(), 3*time.Second)
			d.restart(t)
			d.reloads(t)
			d.evictions(t)
			pause(t.Context(), 2*time.Second)
			ledgers := load.stop()
			mustLoseNothing(t, d.pods.stops(), ledgers...)
			mustHaveDrained(t, ledgers...)
			d.endedWell(t)
		})
	}
}

// mustRefuseUnrestricted is the control: a pod without a security context is refused.
func mustRefuseUnrestricted(t *testing.T, c *cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	pod := `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain"}, "spec": {"containers": [{"name": "main", "image": "` + c.app + `"}]}}`
	if _, err := command(ctx, strings.NewReader(pod), "kubectl", "--namespace", c.namespace, "create", "--filename", "-"); err == nil || !strings.Contains(err.Error(), "restricted") {
		t.Errorf("the namespace takes pods that are not restricted: %v", err)
	}
}

// reloads changes the ConfigMap: every pod takes it over, and none is restarted.
func (d *deployed) reloads(t *testing.T) {
	t.Helper()
	before := d.pods.running()
	text := d.must(t, "get", "configmap", d.name, "--output", `jsonpath={.data.service\.yaml}`)
	changed := strings.Replace(text, "lifecycle:\n", "lifecycle:\n  linger: 4s\n", 1)
	if changed == text {
		t.Fatalf("there is no section lifecycle in\n%s", text)
	}
	patch, err := json.Marshal(object{"data": object{"service.yaml": changed}})
	if err != nil {
		t.Fatal(err)
	}
	d.must(t, "patch", "configmap", d.name, "--type=merge", "--patch", string(patch))
	for _, p := range before {
		// The kubelet syncs a pod's volumes once a minute, or when the pod changes.
		d.must(t, "annotate", "pod", p.name, "e2e/changed=now")
	}
	for _, p := range before {
		record := d.pods.log.await(t, p.uid, "config: changed")
		if changes, _ := record["changes"].(string); !strings.Contains(changes, "lifecycle.linger: its default -> 4s") {
			t.Errorf("%s says %v", p.name, record)
		}
		d.pods.log.await(t, p.uid, "reloaded")
	}
	for i, p := range d.pods.running() {
		if len(p.ends) > 0 || i >= len(before) {
			t.Errorf("%s was restarted: %v", p.name, p.ends)
		}
	}
}

// evictions does what kubectl drain does. The first pod is evicted. While its successor
// is not ready the budget refuses the second, which stays untouched. Once it
// is, the second is evicted too.
func (d *deployed) evictions(t *testing.T) {
	t.Helper()
	pods := d.pods.running()
	if len(pods) != 2 {
		t.Fatalf("there are %d pods, want 2", len(pods))
	}
	d.awaitBudget(t, 1)
	if err := d.evict(t, pods[0].name); err != nil {
		t.Fatalf("the first eviction: %v", err)
	}
	err := d.evict(t, pods[1].name)
	if err == nil || !strings.Contains(err.Error(), "disruption budget") {
		t.Errorf("the second eviction: %v; want a refusal that names the budget", err)
	}
	t.Logf("refused as it should be: %v", err)
	d.awaitGone(t, pods[0])
	for _, p := range d.pods.list() {
		if p.uid == pods[1].uid && !p.stopped.IsZero() {
			t.Error("the pod whose eviction was refused was stopped all the same")
		}
	}
	d.awaitBudget(t, 1)
	if err := d.evict(t, pods[1].name); err != nil {
		t.Errorf("the second eviction, once there are two again: %v", err)
		return
	}
	d.awaitGone(t, pods[1])
}

// awaitGone waits until the pod is gone and its successor ready.
func (d *deployed) awaitGone(t *testing.T, p *pod) {
	t.Helper()
	d.pods.await(t, p.name+" to be gone", func([]*pod) bool { return d.pods.isGone(p.uid) })
	d.rolledOut(t)
}

func (d *deployed) evict(t *testing.T, pod string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	body := `{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "` + pod + `"}}`
	_, err := command(ctx, strings.NewReader(body), "kubectl", "create", "--raw", "/api/v1/namespaces/"+d.namespace+"/pods/"+pod+"/eviction", "--filename", "-")
	return err
}

// awaitBudget waits until the controller allows that many evictions.
func (d *deployed) awaitBudget(t *testing.T, want int) {
	t.Helper()
	eventually(t, "the budget to allow an eviction", func() bool {
		return d.must(t, "get", "poddisruptionbudget", d.name, "--output", "jsonpath={.status.disruptionsAllowed}") == strconv.Itoa(want)
	})
}
