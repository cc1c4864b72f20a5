package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/internal/oidctest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
)

// signInServer is an operator server whose people sign in at issuer.
func signInServer(t *testing.T, issuer string) (url string) {
	t.Helper()
	auth, err := operator.OIDC(operator.OIDCConfig{
		Issuer: issuer, ClientID: "cli", NameClaim: "email",
		Grants: []operator.Grant{{Subject: "group:ops", Role: operator.RoleViewer, Services: []string{"payments-*"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	op, err := operator.New(operator.Config{Auth: auth, Logger: brokertest.Quiet()})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(op.Handler())
	t.Cleanup(func() { srv.Close(); _ = op.Close(context.Background()) })
	return srv.URL
}

// enter runs lifecyclectl.
func enter(t *testing.T, args ...string) (status int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status = Run(t.Context(), args, strings.NewReader(""), &stdout, &stderr)
	return status, stdout.String(), stderr.String()
}

// oneLogin returns the file of the only login.
func oneLogin(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "logins", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the logins are %v, %v", files, err)
	}
	return files[0]
}

func TestLoginAtARealProvider(t *testing.T) {
	issuer := oidctest.Start(t, []map[string]any{{
		"client_id": "cli", "application_type": "native", "token_endpoint_auth_method": "none", "response_types": []string{"code"},
		"redirect_uris": []string{"http://127.0.0.1/callback"}, "grant_types": []string{"authorization_code", "refresh_token"},
	}}, "ops")
	server := signInServer(t, issuer)
	dir := t.TempDir()
	t.Setenv("LIFECYCLECTL_CONFIG", filepath.Join(dir, "config.yaml"))
	if status, _, text := enter(t, "whoami", "--server", server); status != cli.ExitDenied || !strings.Contains(text, "lifecyclectl login") {
		t.Fatalf("before: %d %s", status, text)
	}
	from, to := io.Pipe()
	went := make(chan int, 1)
	go func() { // the user, who reads the address and opens it
		lines := bufio.NewScanner(from)
		for lines.Scan() {
			if address := lines.Text(); strings.HasPrefix(address, issuer) {
				went <- oidctest.SignIn(t, address, "ada")
			}
		}
	}()
	var out bytes.Buffer
	status := Run(t.Context(), []string{"login", "--no-browser", "--server", server}, strings.NewReader(""), &out, to)
	to.Close()
	if status != 0 || !strings.Contains(out.String(), "as ada@example.com") || <-went != http.StatusOK {
		t.Fatalf("login: %d %s", status, out.String())
	}
	file := oneLogin(t, dir)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the file of the login: %v, %v", info, err)
	}
	if status, text, errs := enter(t, "whoami", "--server", server); status != 0 || !strings.Contains(text, "ada@example.com") || !strings.Contains(text, "viewer services=payments-*") {
		t.Errorf("whoami: %d %s %s", status, text, errs)
	}
	// A token that has expired is renewed, and the new one is kept.
	age := func(change func(*cli.Login)) {
		t.Helper()
		l := new(cli.Login)
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, l)
		}
		if change(l); err == nil {
			err = l.Write()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	age(func(l *cli.Login) { l.Expiry = time.Now().Add(-time.Minute) })
	if status, text, errs := enter(t, "whoami", "--server", server); status != 0 || !strings.Contains(text, "ada@example.com") {
		t.Errorf("whoami after the token has expired: %d %s %s", status, text, errs)
	}
	age(func(l *cli.Login) {
		if !l.Expiry.After(time.Now()) {
			t.Errorf("the token was not renewed: it expired at %v", l.Expiry)
		}
		l.Expiry, l.RefreshToken = time.Now().Add(-time.Minute), ""
	})
	if status, _, errs := enter(t, "whoami", "--server", server); status != cli.ExitDenied || !strings.Contains(errs, "sign in again: lifecyclectl login") {
		t.Errorf("whoami after all has expired: %d %s", status, errs)
	}
	if status, text, errs := enter(t, "logout", "--server", server); status != 0 || !strings.Contains(text, "signed out") {
		t.Errorf("logout: %d %s %s", status, text, errs)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the login is still there")
	}
	if status, text, _ := enter(t, "logout", "--server", server); status != 0 || !strings.Contains(text, "no login") {
		t.Errorf("logout again: %d %s", status, text)
	}
}

// The provider of this test is as RFC 8628 says, and confirms the second time it is asked.
func TestLoginWithACode(t *testing.T) {
	key := newSigner(t)
	asked := 0
	mux := http.NewServeMux()
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"issuer":%q,"authorization_endpoint":%q,"token_endpoint":%q,"device_authorization_endpoint":%q,"jwks_uri":%q,"id_token_signing_alg_values_supported":["RS256"]}`,
			srv.URL, srv.URL+"/auth", srv.URL+"/token", srv.URL+"/device", srv.URL+"/jwks")
	})
	mux.HandleFunc("GET /jwks", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(key.set) })
	mux.HandleFunc("POST /device", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"device_code":"d-1","user_code":"WDJB-MJHT","verification_uri":%q,"expires_in":600,"interval":1}`, srv.URL+"/code")
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if asked++; asked == 1 || r.PostFormValue("device_code") != "d-1" || r.PostFormValue("client_id") != "cli" {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":"authorization_pending"}`)
			return
		}
		fmt.Fprintf(w, `{"access_token":"a","token_type":"Bearer","id_token":%q}`, key.sign(t, map[string]any{
			"iss": srv.URL, "sub": "u-1", "aud": "cli", "email": "bob@example.com", "email_verified": true, "groups": []string{"ops"}, "exp": time.Now().Add(time.Hour).Unix(),
		}))
	})
	server := signInServer(t, srv.URL)
	dir := t.TempDir()
	t.Setenv("LIFECYCLECTL_CONFIG", filepath.Join(dir, "config.yaml"))
	status, out, errs := enter(t, "login", "--device", "--server", server)
	if status != 0 || !strings.Contains(out, "as bob@example.com") || !strings.Contains(errs, "enter the code WDJB-MJHT") {
		t.Fatalf("login: %d %s %s", status, out, errs)
	}
	// The token goes to the server of the login alone, and not unencrypted to another machine.
	text, err := os.ReadFile(oneLogin(t, dir))
	if err != nil || !bytes.Contains(text, []byte(server)) {
		t.Errorf("the login is %s, %v", text, err)
	}
	other := signInServer(t, srv.URL)
	if status, _, _ := enter(t, "whoami", "--server", other); status != cli.ExitDenied {
		t.Errorf("the token went to another server: exit status %d", status)
	}
	if status, _, errs := enter(t, "login", "--server", "127.0.0.1:1"); status != cli.ExitUnreachable {
		t.Errorf("login at no server: %d %s", status, errs)
	}
	plain, err := operator.New(operator.Config{Logger: brokertest.Quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close(t.Context())
	without := httptest.NewServer(plain.Handler())
	defer without.Close()
	if status, _, errs := enter(t, "login", "--server", without.URL); status != cli.ExitFindings || !strings.Contains(errs, "do not sign in") {
		t.Errorf("login at a server without a provider: %d %s", status, errs)
	}
}

// signer signs tokens as a provider does.
type signer struct {
	key *rsa.PrivateKey
	set []byte // its public key, as JWKS
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	return &signer{key, fmt.Appendf(nil, `{"keys":[{"kty":"RSA","kid":"a","alg":"RS256","use":"sig","n":%q,"e":%q}]}`, encode(key.N.Bytes()), encode(big.NewInt(int64(key.E)).Bytes()))}
}

func (s *signer) sign(t *testing.T, claims map[string]any) string {
	t.Helper()
	text, err := json.Marshal(claims)
	if err != nil {
		t.Error(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"RS256","kid":"a","typ":"JWT"}`)) + "." + encode(text)
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, s.key, crypto.SHA256, sum[:])
	if err != nil {
		t.Error(err)
	}
	return signed + "." + encode(signature)
}
