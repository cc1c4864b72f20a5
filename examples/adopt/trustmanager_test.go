//go:build unix

package adopt

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"testing"
	"time"
)

// trust-manager answers every call of its webhook in the window, and exits with 0.
func TestTrustManagerStops(t *testing.T) {
	if testing.Short() {
		t.Skip("it links and runs the program: make test-long runs it")
	}
	certs := certificate(t)
	_, healthPort, err := net.SplitHostPort(freeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	api := httptest.NewServer(http.HandlerFunc(serveAPI))
	defer api.Close()
	defer api.CloseClientConnections()
	port := freePort(t)
	p := start(t, "./real/trustmanager", "http://"+net.JoinHostPort("127.0.0.1", healthPort)+"/readyz", nil,
		"--server="+api.URL, "--leader-elect=false", "--metrics-port=0", "--readiness-probe-port="+healthPort,
		"--webhook-host=127.0.0.1", "--webhook-port="+port, "--webhook-certificate-dir="+certs)
	p.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // the certificate is made for this test
	call := func(when string) {
		t.Helper()
		status, _, err := p.ask(t, http.MethodPost, "https://127.0.0.1:"+port+"/validate-trust-cert-manager-io-v1alpha1-bundle", review)
		if err != nil || status != http.StatusOK {
			t.Errorf("%s: status %d, %v", when, status, err)
		}
	}
	call("before the stop")
	p.stop(t)
	for end := time.Now().Add(during); time.Now().Before(end); {
		call("in the window")
	}
	p.exit(t)
}

// review is what an API server asks when a bundle is created.
const review = `{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
	"uid": "1", "operation": "CREATE", "name": "b",
	"kind": {"group": "trust.cert-manager.io", "version": "v1alpha1", "kind": "Bundle"},
	"resource": {"group": "trust.cert-manager.io", "version": "v1alpha1", "resource": "bundles"},
	"object": {"apiVersion": "trust.cert-manager.io/v1alpha1", "kind": "Bundle", "metadata": {"name": "b"},
		"spec": {"sources": [{"useDefaultCAs": true}], "target": {"configMap": {"key": "ca.crt"}}}}}}`

// serveAPI is an API server without objects. It answers what a manager asks to start.
func serveAPI(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	answer := func(status int, body string) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
	switch resource := path.Base(r.URL.Path); {
	case r.URL.Query().Get("sendInitialEvents") == "true": // it lists then
		answer(http.StatusUnprocessableEntity, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422}`)
	case r.URL.Query().Get("watch") == "true":
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case r.URL.Path == "/api":
		answer(http.StatusOK, `{"kind": "APIVersions", "versions": ["v1"]}`)
	case r.URL.Path == "/apis":
		answer(http.StatusOK, `{"kind": "APIGroupList", "apiVersion": "v1", "groups": [`+trustGroup+`]}`)
	case r.URL.Path == "/apis/trust.cert-manager.io":
		answer(http.StatusOK, trustGroup)
	case r.URL.Path == "/api/v1":
		answer(http.StatusOK, resources("v1", "ConfigMap", "configmaps", "true", "Secret", "secrets", "true", "Namespace", "namespaces", "false"))
	case r.URL.Path == "/apis/trust.cert-manager.io/v1alpha1":
		answer(http.StatusOK, resources("trust.cert-manager.io/v1alpha1", "Bundle", "bundles", "false"))
	case lists[resource] != [2]string{}:
		answer(http.StatusOK, fmt.Sprintf(`{"kind": %q, "apiVersion": %q, "metadata": {"resourceVersion": "1"}, "items": []}`, lists[resource][0], lists[resource][1]))
	default:
		answer(http.StatusNotFound, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`)
	}
}

const trustGroup = `{"kind": "APIGroup", "apiVersion": "v1", "name": "trust.cert-manager.io",
	"versions": [{"groupVersion": "trust.cert-manager.io/v1alpha1", "version": "v1alpha1"}],
	"preferredVersion": {"groupVersion": "trust.cert-manager.io/v1alpha1", "version": "v1alpha1"}}`

var lists = map[string][2]string{
	"configmaps": {"ConfigMapList", "v1"}, "secrets": {"SecretList", "v1"}, "namespaces": {"NamespaceList", "v1"},
	"bundles": {"BundleList", "trust.cert-manager.io/v1alpha1"},
}

// resources returns a list of resources: their kind, name and scope in turn.
func resources(version string, of ...string) string {
	items := ""
	for i := 0; i < len(of); i += 3 {
		if i > 0 {
			items += ","
		}
		items += fmt.Sprintf(`{"kind": %q, "name": %q, "singularName": "", "namespaced": %s, "verbs": ["get", "list", "watch"]}`, of[i], of[i+1], of[i+2])
	}
	return fmt.Sprintf(`{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": %q, "resources": [%s]}`, version, items)
}

// certificate writes tls.crt and tls.key of a webhook, and returns their folder.
func certificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for name, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: cert}, "tls.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(folder, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}
