package operator_test

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
)

// presented returns the certificates that a server presents, in PEM. The kubeconfig of a
// test's cluster may have no authority, so the test trusts what the server presents.
// Nothing but a test may do that.
func presented(t *testing.T, server string) string {
	t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(server, "https://"), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // see above
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	text := ""
	for _, c := range conn.ConnectionState().PeerCertificates {
		text += string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
	return text
}

// A real API server reviews its own tokens: valid ones, and those
// that were forged, made for another audience, or revoked.
//
// The test runs only when E2E_CLUSTER says that the cluster of KUBECONFIG is for
// tests. deploy/e2e/run sets both.
func TestKubernetesReviewsRealTokens(t *testing.T) {
	if os.Getenv("E2E_CLUSTER") == "" || os.Getenv("KUBECONFIG") == "" {
		t.Skip("no cluster for tests: E2E_CLUSTER and KUBECONFIG are not set; deploy/e2e/run sets them")
	}
	kubectl := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("kubectl", args...).Output()
		if err != nil {
			text := ""
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				text = string(exit.Stderr)
			}
			t.Fatalf("kubectl %s: %v %s", strings.Join(args, " "), err, text)
		}
		return strings.TrimSpace(string(out))
	}
	ns := "lifecycle-tokens-" + strings.ToLower(time.Now().UTC().Format("150405"))
	kubectl("create", "namespace", ns)
	t.Cleanup(func() {
		_ = exec.Command("kubectl", "delete", "namespace", ns, "--wait=false").Run()
		_ = exec.Command("kubectl", "delete", "clusterrolebinding", ns).Run()
	})
	for _, name := range []string{"reviewer", "ada", "vic", "stranger", "leaver"} {
		kubectl("create", "serviceaccount", name, "-n", ns)
	}
	token := func(name string, more ...string) string {
		t.Helper()
		return kubectl(append([]string{"create", "token", name, "-n", ns}, more...)...)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "token"), token("reviewer"))
	cluster := func(field string) string {
		t.Helper()
		return kubectl("config", "view", "--raw", "--minify", "-o", "jsonpath={.clusters[0].cluster."+field+"}")
	}
	write(t, filepath.Join(dir, "ca.crt"), presented(t, cluster("server")))
	start := func(audiences ...string) (ask func(token string) (int, string)) {
		t.Helper()
		user := "system:serviceaccount:" + ns + ":"
		auth, err := operator.Kubernetes(operator.KubernetesConfig{
			URL: cluster("server"), Dir: dir, Audiences: audiences, Cache: time.Second,
			Grants: users(map[string]operator.Role{user + "ada": operator.RoleOperator, user + "vic": operator.RoleViewer, user + "leaver": operator.RoleViewer}),
		})
		if err != nil {
			t.Fatal(err)
		}
		base, _ := serve(t, operator.Config{Workflows: newMemory(1), Auth: auth})
		return func(token string) (int, string) {
			code, _, text := request(t, "POST", base+"/workflows/drone-survey/m-00000/transition", `{"phase":"flying","dryRun":true}`, bearer(token)...)
			return code, text
		}
	}
	want := func(what string, code int, text string, wanted int) {
		t.Helper()
		if code != wanted {
			t.Errorf("%s: %d, want %d: %s", what, code, wanted, text)
		}
	}
	ask := start()
	code, text := ask(token("ada"))
	want("before the reviewer may review", code, text, http.StatusServiceUnavailable)
	kubectl("create", "clusterrolebinding", ns, "--clusterrole=system:auth-delegator", "--serviceaccount="+ns+":reviewer")
	ada := token("ada")
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // until the API server's authorizer knows the binding
		if code, text = ask(ada); code == http.StatusOK || time.Now().After(end) {
			break
		}
	}
	want("an operator", code, text, http.StatusOK)
	code, text = ask(token("vic"))
	want("a viewer that writes", code, text, http.StatusForbidden)
	code, text = ask(token("stranger"))
	want("an account without a role", code, text, http.StatusUnauthorized)
	parts := strings.Split(ada, ".") // header, payload, signature
	parts[2] = strings.Map(func(r rune) rune {
		switch r {
		case 'A':
			return 'B'
		case 'B':
			return 'A'
		}
		return r
	}, parts[2])
	code, text = ask(strings.Join(parts, "."))
	want("a forged signature", code, text, http.StatusUnauthorized)
	code, text = ask(token("ada", "--audience=another"))
	want("a token for another audience", code, text, http.StatusUnauthorized)

	leaver := token("leaver")
	code, text = ask(leaver)
	want("an account that is there", code, text, http.StatusForbidden)
	kubectl("delete", "serviceaccount", "leaver", "-n", ns)
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // until both caches have expired
		if code, text = ask(leaver); code == http.StatusUnauthorized || time.Now().After(end) {
			break
		}
	}
	want("an account that is gone", code, text, http.StatusUnauthorized)

	ask = start("lifecycle-operator")
	code, text = ask(token("ada", "--audience=lifecycle-operator"))
	want("a token for this server alone", code, text, http.StatusOK)
	code, text = ask(ada)
	want("a token for the API server", code, text, http.StatusUnauthorized)
}
