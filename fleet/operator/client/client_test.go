package client_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestClientActsAsTheOwnerOfItsToken(t *testing.T) {
	dir := t.TempDir()
	tokens, mine := filepath.Join(dir, "tokens"), filepath.Join(dir, "mine")
	write(t, tokens, "viewer vic vic-0123456789-0123456789\noperator ada ada-0123456789-0123456789\n")
	write(t, mine, "vic-0123456789-0123456789\n")
	auth, err := operator.TokenFile(tokens, nil)
	if err != nil {
		t.Fatal(err)
	}
	op, err := operator.New(operator.Config{Auth: auth})
	if err != nil {
		t.Fatal(err)
	}
	defer op.Close(t.Context())
	srv := httptest.NewServer(op.Handler())
	defer srv.Close()
	c, err := client.New(client.Config{Server: srv.URL, TokenFile: mine})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	who, err := c.Access.WhoAmI(t.Context(), &operatorv1.WhoAmIRequest{})
	if err != nil || who.GetName() != "vic" {
		t.Fatalf("%v, %v", who, err)
	}
	_, err = c.Workflows.Transition(t.Context(), &operatorv1.TransitionRequest{})
	if connect.CodeOf(err) != connect.CodePermissionDenied || client.Reason(err) != operator.ReasonForbidden {
		t.Errorf("a viewer writes: %v, reason %q", err, client.Reason(err))
	}
	write(t, mine, "ada-0123456789-0123456789\n")
	_, err = c.Workflows.Transition(t.Context(), &operatorv1.TransitionRequest{Type: "x"})
	if client.Reason(err) != operator.ReasonInvalid || client.Fields(err)["phase"] != "is missing" {
		t.Errorf("reason %q, fields %v of %v", client.Reason(err), client.Fields(err), err)
	}
	os.Remove(mine)
	if _, err := c.Access.WhoAmI(t.Context(), &operatorv1.WhoAmIRequest{}); err == nil || !strings.Contains(err.Error(), "token file") {
		t.Errorf("without its token file: %v", err)
	}
}

func TestCredentialsDoNotFollowARedirect(t *testing.T) {
	var seen string
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r.Header.Get("Authorization") }))
	defer thief.Close()
	proxy := httptest.NewServer(http.RedirectHandler(thief.URL, http.StatusTemporaryRedirect))
	defer proxy.Close()
	c, err := client.New(client.Config{Server: proxy.URL, Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Access.WhoAmI(t.Context(), &operatorv1.WhoAmIRequest{}); err == nil || seen != "" {
		t.Errorf("the credentials %q followed a redirect to another server: %v", seen, err)
	}
}

func TestConfigsThatCannotWork(t *testing.T) {
	for want, cfg := range map[string]client.Config{
		"want a URL":         {Server: "ops.example.com"},
		"one of the two":     {Token: "a", TokenFile: "b"},
		"in the clear":       {Server: "http://ops.example.com", Token: "a"},
		"would cross":        {Server: "http://127.0.0.1.example.com", Token: "a"},
		"no effect":          {CAFile: "x"},
		"needs both":         {Server: "https://a", CertFile: "x"},
		"CA file":            {Server: "https://a", CAFile: "/does/not/exist"},
		"client certificate": {Server: "https://a", CertFile: "/x", KeyFile: "/y"},
	} {
		if _, err := client.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
	for _, host := range []string{"LOCALHOST:1", "127.0.0.2:1", "[::1]:1"} {
		c, err := client.New(client.Config{Server: "http://" + host, Token: "a"})
		if err != nil {
			t.Fatalf("%s is this machine: %v", host, err)
		}
		c.Close()
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	c, err := client.New(client.Config{Server: "http://" + ln.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Access.WhoAmI(t.Context(), &operatorv1.WhoAmIRequest{}); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("a server that is down: %v", err)
	}
}
