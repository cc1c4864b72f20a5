package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPortedOperators rolls the operator of examples/adopt while it leads. The old pod ends with
// 0, and the new one leads.
func TestPortedOperators(t *testing.T) {
	full(t)
	c := onCluster(t)
	c.reachAPI(t)
	c.administrator(t, "ported")
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
