package operator_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
)

func TestTokenFileIsReadAgain(t *testing.T) {
	path, auth := tokenFile(t)
	ask := func(token string) error {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		_, err := auth.Authenticate(r)
		return err
	}
	await := func(what, token string, good bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); (ask(token) == nil) != good; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %v", what, ask(token))
			}
		}
	}
	await("at first", adaToken, true)
	write(t, path, "viewer vic "+vicToken+"\n")
	await("revoked", adaToken, false)
	await("still there", vicToken, true)
	write(t, path, "viewer vic "+vicToken+"\nking eve eve-0123456789-0123456789\n")
	await("a broken file refuses every token", vicToken, false)
	write(t, path, "operator ada "+adaToken+"\n")
	await("right again", adaToken, true)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	await("removed", adaToken, false)
}

func TestTokenFilesThatAreWrongNameTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "no token",
		"operator ada\n":                       "line 1: has 2 words",
		"\nking ada " + adaToken:               "line 2: role \"king\"",
		"viewer ada short":                     "line 1: the token has 5 characters",
		"viewer ada sha256:zz":                 "line 1: the digest",
		"viewer ada " + adaToken + " tomorrow": "line 1: expires",
		"viewer ada " + adaToken + "\nviewer bob " + adaToken: "line 2: the token is on line 1",
		"viewer ada " + adaToken + "\nviewer ada " + vicToken: "line 2: the name",
		strings.Repeat("x", 1<<20+1):                          "line 1",
	} {
		path := filepath.Join(t.TempDir(), "tokens")
		write(t, path, text)
		_, err := operator.TokenFile(path, quiet)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), adaToken) {
			t.Errorf("%.40q: %v, want %q and no token", text, err, want)
		}
	}
	if _, err := operator.TokenFile("/does/not/exist", quiet); err == nil {
		t.Error("a file that is missing was accepted")
	}
}

// authority makes certificates.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := x509.ParseCertificate(der)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &authority{key, cert, pool}
}

func (a *authority) issue(t testing.TB, name string) tls.Certificate {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// users gives roles to users in the whole fleet.
func users(roles map[string]operator.Role) (grants []operator.Grant) {
	for name, role := range roles {
		grants = append(grants, operator.Grant{Subject: "user:" + name, Role: role})
	}
	return grants
}

func TestClientCertificates(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	auth, err := operator.Certificates(operator.CertificateConfig{Grants: users(map[string]operator.Role{"ada": operator.RoleOperator, "vic": operator.RoleViewer})})
	if err != nil {
		t.Fatal(err)
	}
	base, _ := serve(t, operator.Config{Workflows: newMemory(1), Auth: auth, TLS: &tls.Config{
		Certificates: []tls.Certificate{ca.issue(t, "server")}, ClientCAs: ca.pool, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS13,
	}})
	ask := func(certs ...tls.Certificate) (int, string) {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.pool, Certificates: certs}, ForceAttemptHTTP2: true}
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr}).Get(base + "/whoami")
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	if code, text := ask(ca.issue(t, "ada")); code != 200 || !strings.Contains(text, `"operator"`) || !strings.Contains(text, `"certificate"`) {
		t.Errorf("ada: %d %s", code, text)
	}
	if code, text := ask(ca.issue(t, "eve")); code != 401 {
		t.Errorf("eve: %d %s", code, text)
	}
	if code, text := ask(); code != 401 {
		t.Errorf("without credentials: %d %s", code, text)
	}
	if code, text := ask(other.issue(t, "ada")); code != 0 && code != 401 {
		t.Errorf("ada of another authority: %d %s", code, text)
	}
	for _, bad := range []map[string]operator.Role{nil, {"": operator.RoleViewer}, {"ada": "king"}} {
		if _, err := operator.Certificates(operator.CertificateConfig{Grants: users(bad)}); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
}

// The API server of this test answers as the documentation of TokenReview says,
// and counts its requests. [TestKubernetesReviewsRealTokens] asks a real one.
func TestKubernetesReviewsTokens(t *testing.T) {
	reviews := 0
	fail := false
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var ask struct{ Spec struct{ Token string } }
		json.NewDecoder(r.Body).Decode(&ask)
		reviews++
		if fail || r.Header.Get("Authorization") != "Bearer pod-token" || r.URL.Path != "/apis/authentication.k8s.io/v1/tokenreviews" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.WriteHeader(http.StatusCreated)
		switch ask.Spec.Token {
		case "good":
			fmt.Fprint(w, `{"status":{"authenticated":true,"user":{"username":"system:serviceaccount:ops:ada","groups":["ops"]}}}`)
		case "stranger":
			fmt.Fprint(w, `{"status":{"authenticated":true,"user":{"username":"system:serviceaccount:x:y"}}}`)
		default:
			fmt.Fprint(w, `{"status":{"authenticated":false,"error":"no"}}`)
		}
	}))
	defer api.Close()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "token"), "pod-token\n")
	write(t, filepath.Join(dir, "ca.crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})))
	auth, err := operator.Kubernetes(operator.KubernetesConfig{URL: api.URL, Dir: dir, Grants: []operator.Grant{{Subject: "group:ops", Role: operator.RoleOperator}, {Subject: "user:system:serviceaccount:ops:ada", Role: operator.RoleViewer}}})
	if err != nil {
		t.Fatal(err)
	}
	base, _ := serve(t, operator.Config{Auth: auth})
	for range 3 {
		if code, _, text := request(t, "GET", base+"/whoami", "", bearer("good")...); code != 200 || !strings.Contains(text, `"operator"`) {
			t.Errorf("ada: %d %s", code, text)
		}
	}
	if reviews != 1 {
		t.Errorf("%d reviews of one token", reviews)
	}
	for _, token := range []string{"stranger", "forged"} {
		if code, _, text := request(t, "GET", base+"/whoami", "", bearer(token)...); code != 401 {
			t.Errorf("%s: %d %s", token, code, text)
		}
	}
	// Guesses from the address of a proxy lock out no caller behind it.
	for i := range 60 {
		if code, _, text := request(t, "GET", base+"/whoami", "", bearer(fmt.Sprint("guess", i))...); code != 401 {
			t.Errorf("guess %d: %d %s", i, code, text)
		}
	}
	short, err := operator.Kubernetes(operator.KubernetesConfig{URL: api.URL, Dir: dir, Cache: time.Nanosecond, Grants: []operator.Grant{{Subject: "group:ops", Role: operator.RoleOperator}}})
	if err != nil {
		t.Fatal(err)
	}
	flooded, _ := serve(t, operator.Config{Auth: short})
	if code, _, text := request(t, "GET", flooded+"/whoami", "", bearer("good")...); code != 200 {
		t.Errorf("after the guesses: %d %s", code, text)
	}
	// This server answers without audiences, like a server that did not check them.
	strict, err := operator.Kubernetes(operator.KubernetesConfig{URL: api.URL, Dir: dir, Audiences: []string{"lifecycle"}, Grants: []operator.Grant{{Subject: "group:ops", Role: operator.RoleOperator}}})
	if err != nil {
		t.Fatal(err)
	}
	unchecked := httptest.NewRequest("GET", "/", nil)
	unchecked.Header.Set("Authorization", "Bearer good")
	if _, err := strict.Authenticate(unchecked); !errors.Is(err, operator.ErrBadCredentials) {
		t.Errorf("a token whose audience was not checked: %v", err)
	}
	fail = true
	if code, _, text := request(t, "GET", base+"/whoami", "", bearer("another")...); code != 503 {
		t.Errorf("an API server that refuses us: %d %s", code, text)
	}
}

// A connection may outlive the certificate that it began with.
func TestCertificateThatExpiredMeanwhile(t *testing.T) {
	auth, err := operator.Certificates(operator.CertificateConfig{Grants: users(map[string]operator.Role{"ada": operator.RoleOperator})})
	if err != nil {
		t.Fatal(err)
	}
	for until, want := range map[time.Time]error{time.Now().Add(time.Hour): nil, time.Now().Add(-time.Second): operator.ErrExpired} {
		leaf := &x509.Certificate{Subject: pkix.Name{CommonName: "ada"}, NotAfter: until}
		r := httptest.NewRequest("GET", "/", nil)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf}}}
		if _, err := auth.Authenticate(r); !errors.Is(err, want) {
			t.Errorf("until %v: %v, want %v", until, err, want)
		}
	}
}

func TestBrowserSignsIn(t *testing.T) {
	path, auth := tokenFile(t)
	base, _ := serve(t, operator.Config{Workflows: newMemory(1), Auth: auth})
	html := []string{"Accept", "text/html"}
	code, h, _ := request(t, "GET", base+"/ui/workflows", "", html...)
	if code != 303 || h.Get("Location") != "/ui/login?next=%2Fui%2Fworkflows" {
		t.Fatalf("a page without a session: %d %v", code, h)
	}
	if _, _, text := request(t, "GET", base+"/ui/login", ""); !strings.Contains(text, "encrypted into a cookie of this browser") {
		t.Error("the form does not say where the token is kept")
	}
	form := func(token, next string) (int, http.Header, string) {
		return request(t, "POST", base+"/ui/login", url.Values{"token": {token}, "next": {next}}.Encode(), "Content-Type", "application/x-www-form-urlencoded")
	}
	if code, h, text := form("wrong-0123456789-0123456789", "/ui/"); code != 401 || h.Get("Set-Cookie") != "" || !strings.Contains(text, "not known") {
		t.Errorf("a wrong token: %d", code)
	}
	for next, want := range map[string]string{"/ui/workflows": "/ui/workflows", "https://evil.example/": "/ui/", "//evil.example": "/ui/", "/ui/\\evil": "/ui/", "": "/ui/"} {
		code, h, _ := form(adaToken, next)
		if code != 303 || h.Get("Location") != want {
			t.Errorf("next %q leads to %q (%d)", next, h.Get("Location"), code)
		}
	}
	_, h, _ = form(adaToken, "/ui/")
	cookie := h.Get("Set-Cookie")
	wantText(t, "cookie", cookie, "HttpOnly", "SameSite=Strict", "Path=/ui/")
	if strings.Contains(cookie, "ada") {
		t.Error("the cookie contains the token")
	}
	value, _, _ := strings.Cut(cookie, ";")
	session := append(html, "Cookie", value)
	if code, _, text := request(t, "GET", base+"/ui/workflows/drone-survey", "", session...); code != 200 || !strings.Contains(text, "m-00000") {
		t.Errorf("with a session: %d", code)
	}
	if code, _, _ := request(t, "GET", base+"/definitions", "", "Cookie", value); code != 401 {
		t.Errorf("the cookie counts outside of the dashboard: %d", code)
	}
	write(t, path, "viewer vic "+vicToken+"\n")
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if code, _, _ := request(t, "GET", base+"/ui/workflows", "", session...); code == 303 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a token that was revoked keeps its session")
		}
	}
}
