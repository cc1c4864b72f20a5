package e2e

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"
)

type object = map[string]any

// deployment has the fields that tests set. All others are as
// the documentation of the library recommends.
type deployment struct {
	name     string
	image    string
	replicas int
	command  []string // instead of the image's own
	args     []string
	env      map[string]string
	grace    int               // terminationGracePeriodSeconds; defaults to 30
	lifetime object            // the container's lifecycle hooks
	memory   string            // a limit
	traffic  string            // the Service's externalTrafficPolicy; defaults to Cluster
	surge    string            // maxSurge; defaults to 1
	startups int               // how often the startup probe may fail; defaults to 120
	host     map[string]string // folders of the node, by where they are mounted
	account  string            // a service account whose token the pod has, with its name in POD_NAME
	settle   int               // minReadySeconds
	probe    object            // the only probe, for readiness, of a program without planes
	answers  string            // the pod's eviction responder
	change   func(pod object)  // changes the pod's spec
}

func (d deployment) object() object {
	if d.grace == 0 {
		d.grace = 30
	}
	if d.startups == 0 {
		d.startups = 120
	}
	var surge any = 1
	if d.surge != "" {
		surge = d.surge
	}
	var env []object
	for _, name := range slices.Sorted(maps.Keys(d.env)) {
		env = append(env, object{"name": name, "value": d.env[name]})
	}
	if d.account != "" {
		env = append(env, object{"name": "POD_NAME", "valueFrom": object{"fieldRef": object{"fieldPath": "metadata.name"}}})
	}
	// The timeouts suit a busy machine. The periods decide how soon a
	// flip of readiness is seen.
	probe := func(path string, period, failures int) object {
		return object{"httpGet": object{"path": path, "port": "health"}, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}
	}
	container := object{
		"name": "main", "image": d.image, "imagePullPolicy": "Never", "args": d.args, "env": env,
		"ports":          []object{{"name": "http", "containerPort": 8080}, {"name": "health", "containerPort": 8081}},
		"startupProbe":   probe("/startupz", 1, d.startups),
		"livenessProbe":  probe("/livez", 10, 3),
		"readinessProbe": probe("/readyz", 1, 1),
		"volumeMounts":   []object{{"name": "tmp", "mountPath": "/tmp"}},
	}
	if d.command != nil {
		container["command"] = d.command
	}
	if d.probe != nil {
		delete(container, "startupProbe")
		delete(container, "livenessProbe")
		container["readinessProbe"] = d.probe
	}
	if d.lifetime != nil {
		container["lifecycle"] = d.lifetime
	}
	if d.memory != "" {
		container["resources"] = object{"limits": object{"memory": d.memory}}
	}
	volumes := []object{{"name": "tmp", "emptyDir": object{"medium": "Memory"}}}
	if d.account != "" {
		// As the kubelet mounts it, but with a certificate: see reachAPI.
		volumes = append(volumes, object{"name": "account", "projected": object{"sources": []object{
			{"serviceAccountToken": object{"path": "token"}},
			{"configMap": object{"name": authority, "items": []object{{"key": "ca.crt", "path": "ca.crt"}}}},
			{"downwardAPI": object{"items": []object{{"path": "namespace", "fieldRef": object{"fieldPath": "metadata.namespace"}}}}},
		}}})
		container["volumeMounts"] = append(container["volumeMounts"].([]object), object{"name": "account", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true})
	}
	for i, at := range slices.Sorted(maps.Keys(d.host)) {
		name := "host-" + strconv.Itoa(i)
		volumes = append(volumes, object{"name": name, "hostPath": object{"path": d.host[at], "type": "Directory"}})
		container["volumeMounts"] = append(container["volumeMounts"].([]object), object{"name": name, "mountPath": at, "readOnly": true})
	}
	spec := object{
		"terminationGracePeriodSeconds": d.grace, "automountServiceAccountToken": false, "enableServiceLinks": false,
		"serviceAccountName": d.account,
		"containers":         []object{container},
		"volumes":            volumes,
	}
	if d.answers != "" {
		spec["evictionResponders"] = []object{{"name": d.answers, "priority": 20000}}
	}
	if d.change != nil {
		d.change(spec)
	}
	return object{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"name": d.name},
		"spec": object{
			"replicas": d.replicas, "minReadySeconds": d.settle,
			"selector": object{"matchLabels": object{"deployment": d.name}},
			"strategy": object{"rollingUpdate": object{"maxSurge": surge, "maxUnavailable": 0}},
			"template": object{
				"metadata": object{"labels": object{"deployment": d.name}},
				"spec":     spec,
			},
		},
	}
}

// service returns a nodePort for the pods with these labels.
func service(name string, selector object) object {
	return object{
		"apiVersion": "v1", "kind": "Service", "metadata": object{"name": name},
		"spec": object{"type": "NodePort", "selector": selector, "ports": []object{{"port": 80, "targetPort": "http"}}},
	}
}

// wayTo returns an address of only this pod, ready or not.
func (d *deployed) wayTo(t *testing.T, p *pod) string {
	t.Helper()
	name := d.name + "-only"
	d.must(t, "label", "pod", p.name, "only="+name)
	only := service(name, object{"only": name})
	only["spec"].(object)["publishNotReadyAddresses"] = true
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := d.kubectl(ctx, "delete", "service", name, "--ignore-not-found", "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	d.apply(t, only)
	addr := d.nodePort(t, name)
	awaitAnswer(t, addr)
	return addr
}

// tell posts to the address and wants this status.
func tell(t *testing.T, addr, path string, want int) {
	t.Helper()
	conn, err := dialRaw(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if a := conn.post(path); a.err != nil || a.status != want {
		t.Fatalf("POST %s: status %d, %v, want %d", path, a.status, a.err, want)
	}
}

// stopPod deletes the pod. A grace of 0 or more replaces the pod's own.
func (d *deployed) stopPod(t *testing.T, p *pod, grace int) {
	t.Helper()
	args := []string{"delete", "pod", p.name, "--wait=false"}
	if grace >= 0 {
		args = append(args, "--grace-period="+strconv.Itoa(grace))
	}
	d.must(t, args...)
}

// deployed is a Deployment behind a Service, watched.
type deployed struct {
	*cluster
	name string
	addr string // on this machine
	pods *pods
}

// deploy creates d and waits until its Service answers. It is deleted with
// the test, and the account of its pods is printed.
func (c *cluster) deploy(t *testing.T, d deployment) *deployed {
	t.Helper()
	if d.replicas == 0 {
		d.replicas = 1
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := c.kubectl(ctx, "delete", "deployment,service", d.name, "--ignore-not-found", "--wait=false"); err != nil {
			t.Error(err)
		}
		if _, err := c.kubectl(ctx, "delete", "pods", "--selector", "deployment="+d.name, "--grace-period=1", "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	svc := service(d.name, object{"deployment": d.name})
	if d.traffic != "" {
		svc["spec"].(object)["externalTrafficPolicy"] = d.traffic
	}
	c.apply(t, d.object(), svc)
	up := &deployed{cluster: c, name: d.name, addr: c.nodePort(t, d.name), pods: c.watchPods(t, "deployment="+d.name)}
	return up
}

// ready waits until all of it is ready and answers.
func (d *deployed) ready(t *testing.T) *deployed {
	t.Helper()
	d.rolledOut(t)
	awaitAnswer(t, d.addr)
	return d
}

// restart rolls the Deployment and waits until the new pods are ready and the
// old ones gone.
func (d *deployed) restart(t *testing.T) {
	t.Helper()
	d.must(t, "rollout", "restart", "deployment/"+d.name)
	d.rolledOut(t)
	d.settled(t)
}

func (d *deployed) rolledOut(t *testing.T) {
	t.Helper()
	d.must(t, "rollout", "status", "deployment/"+d.name, "--timeout="+strconv.Itoa(int(patience/time.Second))+"s")
}

func (d *deployed) scale(t *testing.T, replicas int) {
	t.Helper()
	d.must(t, "scale", "deployment/"+d.name, "--replicas="+strconv.Itoa(replicas))
	d.rolledOut(t)
	d.settled(t)
}

// settled waits until no pod is terminating.
func (d *deployed) settled(t *testing.T) {
	t.Helper()
	d.pods.await(t, "pods to be gone", func(all []*pod) bool {
		return !slices.ContainsFunc(all, func(p *pod) bool { return !p.stopped.IsZero() && p.gone.IsZero() })
	})
}
