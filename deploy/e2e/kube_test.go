package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// asking returns examples/service with kube.Window and kube.Self.
func (c *cluster) asking(name string, replicas int) deployment {
	d := c.serviceOf(name, replicas)
	d.env["SERVICE_KUBE"] = "true"
	d.account = "asking"
	return d
}

// allow gives the service account the permissions of deploy/kustomize/components.
func (c *cluster) allow(t *testing.T) {
	t.Helper()
	c.apply(t,
		object{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": object{"name": "asking"}},
		object{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": object{"name": "asking"}, "rules": []object{
			{"apiGroups": []string{"discovery.k8s.io"}, "resources": []string{"endpointslices"}, "verbs": []string{"list", "watch"}},
			{"apiGroups": []string{""}, "resources": []string{"pods"}, "verbs": []string{"get", "watch"}},
		}},
		object{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": object{"name": "asking"},
			"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "asking"},
			"subjects": []object{{"kind": "ServiceAccount", "name": "asking"}},
		})
}

// TestWindowOfTheCluster rolls the same Deployment with kube.Window and without, under
// the same load: the window ends when the cluster has noticed, nothing is lost, and the
// rollout is shorter.
func TestWindowOfTheCluster(t *testing.T) {
	c := onCluster(t)
	c.reachAPI(t)
	c.allow(t)
	took := make(map[string]time.Duration)
	for name, d := range map[string]deployment{"with": c.asking("asking", 3), "without": c.serviceOf("waiting", 3)} {
		t.Run(name, func(t *testing.T) {
			d := c.deploy(t, d)
			d.pods.onStop = c.slow(t)
			d.ready(t)
			load := d.load(t, keepAlive, newConns, replays, longIdle)
			defer load.stop()
			pause(t.Context(), 3*time.Second)
			began := time.Now()
			d.restart(t)
			took[name] = time.Since(began)
			pause(t.Context(), 2*time.Second)
			ledgers := load.stop()
			mustLoseNothing(t, d.pods.stops(), ledgers...)
			d.endedWell(t)
			for _, p := range d.pods.list() {
				if p.stopped.IsZero() {
					continue
				}
				over := d.pods.log.await(t, p.uid, "the drain window is over")
				if how := over["how"]; (how == "ended early") != (name == "with") {
					t.Errorf("pod %s: its window ended %q:\n%v", p.name, how, d.pods.log.said(p.uid, "the drain window does not follow the endpoints"))
				}
				t.Logf("pod %s: window %v, %v", p.name, over["how"], over["took"])
			}
		})
	}
	t.Logf("one rolling restart of 3 pods took %v with kube.Window and %v without", took["with"].Round(time.Millisecond), took["without"].Round(time.Millisecond))
}

// TestWindowWithoutAnAnswer: the API server hangs, or refuses. The window then
// keeps its length, and one log line says why.
func TestWindowWithoutAnAnswer(t *testing.T) {
	full(t)
	c := onCluster(t)
	c.reachAPI(t)
	c.allow(t)
	t.Run("it stands still", func(t *testing.T) {
		d := c.deploy(t, c.asking("still", 2)).ready(t)
		one := d.pods.running()[0]
		p := d.process(t, one)
		var paused sync.WaitGroup
		paused.Go(func() {
			if out, err := command(context.WithoutCancel(t.Context()), nil, "bash", c.script, "pause", "kube-apiserver", "12"); err != nil {
				t.Error(out, err)
			}
		})
		pause(t.Context(), time.Second)
		d.signal(t, p, "SIGTERM")
		over := d.pods.log.await(t, one.uid, "the drain window is over")
		paused.Wait()
		if over["how"] != "full" {
			t.Errorf("the window ended %v", over)
		}
		d.oneReason(t, one.uid, "no answer")
	})
	t.Run("it refuses", func(t *testing.T) {
		d := c.deploy(t, c.asking("refused", 2)).ready(t)
		c.must(t, "delete", "rolebinding", "asking")
		eventually(t, "the API server to refuse", func() bool {
			_, err := c.kubectl(t.Context(), "auth", "can-i", "list", "endpointslices.discovery.k8s.io",
				"--as=system:serviceaccount:"+c.namespace+":asking", "--quiet")
			return err != nil
		})
		one := d.pods.running()[0]
		d.stopPod(t, one, -1)
		over := d.pods.log.await(t, one.uid, "the drain window is over")
		if over["how"] != "full" {
			t.Errorf("the window ended %v", over)
		}
		d.oneReason(t, one.uid, `lacks the rule {apiGroups: ["discovery.k8s.io"], resources: ["endpointslices"], verbs: ["list"]}`)
	})
}

// oneReason wants one log line that says why the window keeps its length.
func (d *deployed) oneReason(t *testing.T, uid, says string) {
	t.Helper()
	d.pods.log.await(t, uid, "the drain window does not follow the endpoints")
	lines := d.pods.log.said(uid, "the drain window does not follow the endpoints")
	if text, _ := lines[0]["because"].(string); len(lines) != 1 || !strings.Contains(text, says) {
		t.Errorf("the log says %v, want one line with %q", lines, says)
	}
}

// TestSelfOnTheCluster: a manifest that does not fit is a log line at the start, and a
// deletion with less grace than the manifest's shortens the stop, so that a hook that
// hangs is abandoned by the App and not killed by the kubelet.
func TestSelfOnTheCluster(t *testing.T) {
	full(t)
	c := onCluster(t)
	c.reachAPI(t)
	c.allow(t)
	t.Run("the manifest", func(t *testing.T) {
		wrong := c.asking("wrong", 1)
		wrong.grace = 20
		delete(wrong.env, "SERVICE_LIFECYCLE_TERMINATION_GRACE") // or the App would not start
		d := c.deploy(t, wrong).ready(t)
		said := d.pods.log.await(t, d.pods.only(t).uid, "the pod's manifest does not fit the configuration")
		if text := fmt.Sprint(said["error"]); !strings.Contains(text, "terminationGracePeriodSeconds is 20s") || !strings.Contains(text, "set it to 27 or more") {
			t.Errorf("it says %v", said)
		}
	})
	for _, grace := range []int{9, 5} {
		t.Run("deleted within "+strconv.Itoa(grace)+" s", func(t *testing.T) {
			d := c.deploy(t, c.asking("hurried-"+strconv.Itoa(grace), 1)).ready(t)
			one := d.pods.only(t)
			tell(t, d.addr, "/fail?how=stuck-hook", 202)
			d.stopPod(t, one, grace)
			e := d.pods.ended(t, one.uid)
			t.Log(e)
			// Without kube.Self it is killed: 137, as TestStuck shows.
			if e.ExitCode != 70 || !strings.Contains(e.Message, "hook faulty") || !strings.Contains(e.Message, "did not return") {
				t.Errorf("%s; want 70 and the hook", e)
			}
		})
	}
}

// authority is the ConfigMap with the certificate of the API server.
const authority = "e2e-root-ca.crt"

// reachAPI lets pods reach the API server as in any cluster: by the Service kubernetes,
// with a certificate beside the token. The cluster of the tests has neither: its API
// server listens on 127.0.0.1 only, and its controller publishes no certificate.
func (c *cluster) reachAPI(t *testing.T) {
	t.Helper()
	api := c.api(t)
	c.apply(t, object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": authority}, "data": object{"ca.crt": string(api.CA)}})
	node := strings.TrimSpace(c.must(t, "get", "nodes", "--output", `jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}`))
	ln, err := net.Listen("tcp", net.JoinHostPort(node, "0"))
	if err != nil {
		t.Fatal(err)
	}
	forward(t, ln, strings.TrimPrefix(api.Host, "https://"))
	_, text, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	system := *c
	system.namespace = "default"
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := system.kubectl(ctx, "delete", "endpointslice", "kubernetes-e2e", "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	})
	system.apply(t, object{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
		"metadata":    object{"name": "kubernetes-e2e", "namespace": "default", "labels": object{"kubernetes.io/service-name": "kubernetes"}},
		"addressType": "IPv4", "ports": []object{{"name": "https", "port": port, "protocol": "TCP"}},
		"endpoints": []object{{"addresses": []string{node}, "conditions": object{"ready": true}}},
	})
}

// forward passes the connections of a listener on to an address, until the test ends.
func forward(t *testing.T, ln net.Listener, to string) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var all sync.WaitGroup
	all.Go(func() {
		for {
			from, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer from.Close()
				there, err := new(net.Dialer).DialContext(ctx, "tcp", to)
				if err != nil {
					return
				}
				defer there.Close()
				defer context.AfterFunc(ctx, func() { from.Close(); there.Close() })()
				var back sync.WaitGroup
				back.Go(func() { _, _ = io.Copy(from, there); from.Close() })
				_, _ = io.Copy(there, from)
				there.Close()
				back.Wait()
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		ln.Close()
		all.Wait()
	})
}
