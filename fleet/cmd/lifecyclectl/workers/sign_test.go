package workers

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host/codesign"
)

// Sign writes signatures that hosts accept, and apply sends them. A spec of percentages,
// durations and signatures is read as it is meant.
func TestSign(t *testing.T) {
	dir := t.TempDir()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	key := write("code.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
	write("a.js", "function handle(m) {}")
	digest := strings.Repeat("ab", 32)
	specs := write("workers.yaml", `
id: a
tenant: shop
mimeType: text/javascript
topic: orders
rollout: {canary: 10%, for: 10m, messages: 50, margin: 3%}
code: {file: a.js}
---
id: b
mimeType: text/javascript
topic: orders
code: {url: "https://example.com/b.js", digest: "sha256:`+digest+`"}
`)
	run := func(args ...string) (string, error) {
		t.Helper()
		var out strings.Builder
		cmd := sign()
		cmd.SetOut(&out)
		cmd.SetErr(&strings.Builder{})
		cmd.SetArgs(args)
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	lines, err := run("--file", specs, "--key", key)
	if err != nil {
		t.Fatal(err)
	}
	files := specFlags{files: []string{specs}, signatures: write("workers.sig", lines)}
	all, err := files.read(t.Context(), nil)
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	for i, code := range []codesign.Code{
		{Tenant: "shop", Worker: "a", MIMEType: "text/javascript", Digest: codesign.DigestOf([]byte("function handle(m) {}"))},
		{Worker: "b", MIMEType: "text/javascript", Digest: digest},
	} {
		if !codesign.Verify([]ed25519.PublicKey{public}, code, all[i].GetCode().GetSignature()) {
			t.Errorf("the signature of %s is not good", code.Worker)
		}
	}
	if o := all[0].GetRollout(); o.GetCanary() != 10 || o.GetFor().AsDuration().Minutes() != 10 || o.GetMessages() != 50 || o.GetMargin() != 3 {
		t.Errorf("the rollout is %v", o)
	}
	none := write("none.yaml", `{"id": "b", "mimeType": "text/javascript", "topic": "orders", "code": {"url": "https://example.com/b.js"}}`)
	for what, args := range map[string][]string{
		`"key" not set`:          {"--file", specs},
		"which workers?":         {"--key", key},
		"not a private key":      {"--file", specs, "--key", specs},
		"no such file":           {"--file", specs, "--key", key + ".gone"},
		"at a URL and has no di": {"--file", none, "--key", key},
	} {
		if _, err := run(args...); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%q: %v, want %q", args, err, what)
		}
	}
	files.signatures = specs
	if _, err := files.read(t.Context(), nil); err == nil || !strings.Contains(err.Error(), ":1: want the id of a worker and its signature") {
		t.Errorf("a file of something else: %v", err)
	}
}
