package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// cluster is the Kubernetes of the tests; this machine is its only
// node. deploy/e2e/run sets its place.
type cluster struct {
	script    string // ../shared/k8s/cluster
	run       string // the folder of its sockets and pids
	namespace string
	service   string // the image of examples/service
	app       string // the image of deploy/e2e/app
	ctl       string // the image of lifecyclectl
	binary    string // lifecyclectl itself
}

// onCluster skips the test without a cluster.
func onCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Getenv("E2E") == "" {
		t.Skip("needs a cluster: deploy/e2e/run brings one up and sets E2E")
	}
	env := func(name string) string {
		v := os.Getenv(name)
		if v == "" {
			t.Fatalf("%s is not set: start deploy/e2e/run, it sets it", name)
		}
		return v
	}
	return &cluster{
		script:    env("E2E_CLUSTER"),
		run:       filepath.Dir(env("KUBECONFIG")),
		namespace: env("E2E_NAMESPACE"),
		service:   env("E2E_SERVICE_IMAGE"),
		app:       env("E2E_APP_IMAGE"),
		ctl:       env("E2E_LIFECYCLECTL_IMAGE"),
		binary:    env("E2E_LIFECYCLECTL"),
	}
}

// kubectl runs kubectl and returns its output.
func (c *cluster) kubectl(ctx context.Context, args ...string) (string, error) {
	return command(ctx, nil, "kubectl", append([]string{"--namespace", c.namespace}, args...)...)
}

// must runs kubectl. It fails the test on an error.
func (c *cluster) must(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := c.kubectl(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (c *cluster) apply(t *testing.T, objects ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var in bytes.Buffer
	for _, o := range objects {
		if err := json.NewEncoder(&in).Encode(o); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := command(ctx, &in, "kubectl", "--namespace", c.namespace, "apply", "--filename", "-"); err != nil {
		t.Fatal(err)
	}
}

// ctr asks containerd, below Kubernetes.
func (c *cluster) ctr(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := command(ctx, nil, "ctr", append([]string{"--address", filepath.Join(c.run, "containerd.sock"), "--namespace", "k8s.io"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func command(ctx context.Context, stdin io.Reader, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), errors.Join(err, ctx.Err()), strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// slow makes the cluster as slow as a large one. Each call of the returned function
// pauses kube-proxy for 1.5 s, so that it still sends connections to a stopping pod. A
// cluster with one node would otherwise need less than a second to stop doing so.
func (c *cluster) slow(t *testing.T) (now func()) { return c.slower(t, "1.5") }

// slower does what slow does, with a pause of long seconds.
func (c *cluster) slower(t *testing.T, long string) (now func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	asked := make(chan struct{}, 1)
	var pauses sync.WaitGroup
	pauses.Go(func() {
		for {
			select {
			case <-asked:
			case <-ctx.Done():
				return
			}
			// Not under ctx: it must resume kube-proxy.
			if _, err := command(context.WithoutCancel(ctx), nil, c.script, "pause", "kube-proxy", long); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		pauses.Wait()
	})
	return func() {
		select {
		case asked <- struct{}{}:
		default: // already requested
		}
	}
}

// nodePort returns the address of the Service on this machine.
func (c *cluster) nodePort(t *testing.T, service string) string {
	t.Helper()
	port := c.must(t, "get", "service", service, "--output", "jsonpath={.spec.ports[0].nodePort}")
	return "127.0.0.1:" + port
}

// awaitAnswer waits until the Service answers.
func awaitAnswer(t *testing.T, addr string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	eventually(t, "an answer from "+addr, func() bool {
		resp, err := client.Get("http://" + addr + "/")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return true
	})
	forgetDials(t, addr)
}

// forgetDials makes the kernel forget connections to addr that were tried
// before kube-proxy had set the rules. The kernel keeps them for two minutes as not
// translated. It would take a later connection from the same local port for
// one of them, and refuse it although three pods are ready.
func forgetDials(t *testing.T, addr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	// Its exit status only says whether there were any.
	_, _ = command(ctx, nil, "conntrack", "-D", "-p", "tcp", "--orig-port-dst", addr[len("127.0.0.1:"):])
}

// eventually polls until the answer is yes.
func eventually(t *testing.T, what string, ask func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ask() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", patience, what)
		}
		if !pause(t.Context(), 100*time.Millisecond) {
			t.Fatalf("gave up on %s", what)
		}
	}
}
