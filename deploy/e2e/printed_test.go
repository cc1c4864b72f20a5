package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// printed are the lines of the pages that need a cluster, in the order in which a reader
// comes to them. A test of lifecyclectl names every other line.
var printed = []struct {
	page, line string
	sees       string // what kubectl --output=name then lists
	long       bool   // only the full tests run it
}{
	{page: "deploy/README.md", line: "kubectl apply --kustomize deploy/kustomize/overlays/dev", sees: "deployment/lifecycle-service-dev"},
	{page: "deploy/README.md", line: "helm upgrade --install web deploy/helm/lifecycle-service --set drainSeconds=15", sees: "deployment/web-lifecycle-service"},
	{page: "deploy/helm/lifecycle-service/README.md", line: "helm upgrade --install web deploy/helm/lifecycle-service --set image.repository=registry.example/web --set drainSeconds=15", sees: "deployment/web-lifecycle-service"},
	{page: "docs/guides/operating.md", line: "openssl genpkey -algorithm ed25519 -out operator.key"},
	{page: "docs/guides/operating.md", line: "openssl pkey -in operator.key -pubout -out operators.pem"},
	{page: "docs/guides/operating.md", line: "kubectl create secret generic operator-key --from-file=operator.key", sees: "secret/operator-key"},
	{page: "docs/guides/operating.md", line: "kubectl create configmap lifecycle-operators --from-file=operators.pem", sees: "configmap/lifecycle-operators"},
	{page: "docs/reference/lifecyclectl.md", line: "lifecyclectl prove deployment/web --image $IMAGE --get /healthz --post /orders --stream /events", long: true},
	{page: "docs/reference/lifecyclectl.md", line: "lifecyclectl prove deployment/web --image $IMAGE -n shop --yes -o json", long: true},
}

// TestPrintedCommandsWorkOnTheCluster runs the lines as they are printed. The images have
// the names that the pages, the chart and the overlay give them.
func TestPrintedCommandsWorkOnTheCluster(t *testing.T) {
	c := onCluster(t)
	own := c.restrictedNamespace(t, "printed")
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lifecycle-service:0.1.0", "registry.example/web:0.1.0"} {
		c.alias(t, c.service, name)
	}

	place := t.TempDir() // the reader's folder: a checkout, and what the lines write beside it
	for _, name := range []string{"deploy", "docs", "examples"} {
		if err := os.Symlink(filepath.Join(root, name), filepath.Join(place, name)); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(place, "kubeconfig")
	if err := os.WriteFile(config, []byte(c.must(t, "config", "view", "--raw", "--minify", "--flatten")), 0o600); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "KUBECONFIG="+config, "IMAGE="+c.ctl, "HELM_CACHE_HOME="+place, "HELM_CONFIG_HOME="+place, "HELM_DATA_HOME="+place,
		"PATH="+filepath.Dir(bin(t, "helm"))+":"+filepath.Dir(c.binary)+":"+os.Getenv("PATH"))
	sh := func(line string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, "bash", "-c", line)
		cmd.Dir, cmd.Env = place, env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		return string(out)
	}
	sh("kubectl config set-context --current --namespace " + own.namespace)

	web := false
	for _, p := range printed {
		if text, err := os.ReadFile(filepath.Join(root, p.page)); err != nil || !strings.Contains(string(text), p.line) {
			t.Errorf("%s does not print %q (%v)", p.page, p.line, err)
			continue
		}
		if p.long {
			if short() {
				continue
			}
			if !web {
				web = true
				c.deploy(t, c.serviceOf("web", 2)).ready(t)
				c.must(t, "label", "deployment", "web", "lifecycle.pleme.io/prove=allowed")
				sh("kubectl config set-context --current --namespace " + c.namespace) // where pods of the load may run
			}
		}
		line := strings.ReplaceAll(p.line, "-n shop ", "-n "+c.namespace+" ") // the reader's namespace
		out := sh(line)
		t.Logf("$ %s\n%s", line, out)
		if p.sees != "" {
			own.must(t, "get", p.sees)
		}
		if strings.HasPrefix(p.sees, "deployment/") {
			own.must(t, "rollout", "status", p.sees, "--timeout=2m")
		}
	}
}

// alias gives an image of the cluster one more name.
func (c *cluster) alias(t *testing.T, image, name string) {
	t.Helper()
	full := name
	if !strings.Contains(name, "/") {
		full = "docker.io/library/" + name // as the kubelet reads it
	}
	c.ctr(t, "images", "tag", "--force", image, full)
	t.Cleanup(func() { c.forget(t, full) })
}

func (c *cluster) forget(t *testing.T, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := command(ctx, nil, "ctr", "--address", filepath.Join(c.run, "containerd.sock"), "--namespace", "k8s.io", "images", "rm", name); err != nil {
		t.Error(err)
	}
}
