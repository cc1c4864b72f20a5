package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPortedOperators rolls the two operators of examples/adopt while what they watch
// changes. Each old pod ends with 0, and the new one goes on where the old one was.
func TestPortedOperators(t *testing.T) {
	full(t)
	c := onCluster(t)
	c.reachAPI(t)
	c.administrator(t, "ported")
	t.Run("operator", func(t *testing.T) {
		d := c.ported(t, "operator", "operator")
		certificate := t.TempDir() // of the webhooks, which no test calls
		if _, err := command(t.Context(), nil, "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=operator",
			"-keyout", filepath.Join(certificate, "tls.key"), "-out", filepath.Join(certificate, "tls.crt")); err != nil {
			t.Fatal(err)
		}
		d.host = map[string]string{"/tmp/k8s-webhook-server/serving-certs": certificate}
		operator := c.deploy(t, d).ready(t)
		labelled := func(replicas string) {
			eventually(t, "the operator to write "+replicas+" ready pods on the ReplicaSet", func() bool {
				got := c.must(t, "get", "replicasets", "--selector", "deployment=labelled", "--output", `jsonpath={.items[*].metadata.labels.example\.com/ready}`)
				return strings.TrimSpace(got) == replicas
			})
		}
		watched := c.deploy(t, c.serviceOf("labelled", 1)).ready(t)
		labelled("1")
		watched.must(t, "scale", "deployment/labelled", "--replicas=2") // and while it comes
		operator.restart(t)
		labelled("2")
		operator.endedWell(t)
	})
	t.Run("controllerruntime", func(t *testing.T) {
		d := c.deploy(t, c.ported(t, "controllerruntime", "migrate/controllerruntime")).ready(t)
		leader := func() string {
			return strings.TrimSpace(c.must(t, "get", "leases",
				"--field-selector", "metadata.name=configmaps.example.com",
				"--output", "jsonpath={.items[*].spec.holderIdentity}"))
		}
		var first string
		eventually(t, "a leader", func() bool {
			first = leader()
			return first != ""
		})
		d.restart(t)
		eventually(t, "the new pod to lead", func() bool { return leader() != "" && leader() != first })
		d.endedWell(t)
	})
}

// ported builds the program after of a folder of examples/adopt into an image.
func (c *cluster) ported(t *testing.T, name, folder string) deployment {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	binary := filepath.Join(t.TempDir(), name)
	build := exec.CommandContext(ctx, "go", "build", "-C", "../../examples/adopt", "-trimpath", "-buildvcs=false", "-o", binary, "./"+folder+"/after")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	image := "e2e.local/ported-" + name + ":now"
	if out, err := command(ctx, nil, "bash", c.script, "load", image, binary); err != nil {
		t.Fatal(out, err)
	}
	t.Cleanup(func() { c.forget(t, image) })
	return deployment{name: "ported-" + name, image: image, account: "ported"}
}

// administrator makes a service account that may do everything, until the test ends.
func (c *cluster) administrator(t *testing.T, name string) {
	t.Helper()
	binding := c.namespace + "-" + name
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := c.kubectl(ctx, "delete", "clusterrolebinding", binding, "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	})
	c.apply(t,
		object{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": object{"name": name}},
		object{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": object{"name": binding},
			"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
			"subjects": []object{{"kind": "ServiceAccount", "name": name, "namespace": c.namespace}},
		})
}
