package codesign_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host/codesign"
)

func newKey(t *testing.T) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return public, private
}

// A signature is for one code of one worker, and for nothing else.
func TestASignatureIsForOneCode(t *testing.T) {
	old, oldKey := newKey(t)
	current, key := newKey(t)
	other, _ := newKey(t)
	code := codesign.Code{Tenant: "acme", Worker: "w", MIMEType: "text/javascript", Digest: codesign.DigestOf([]byte("x"))}
	signature, err := codesign.Sign(key, code)
	if err != nil {
		t.Fatal(err)
	}
	oldSignature, err := codesign.Sign(oldKey, code)
	if err != nil {
		t.Fatal(err)
	}
	both := []ed25519.PublicKey{old, current}
	if !codesign.Verify(both, code, signature) || !codesign.Verify(both, code, oldSignature) {
		t.Error("a key of two does not verify what it signed")
	}
	if codesign.Verify([]ed25519.PublicKey{current}, code, oldSignature) || codesign.Verify([]ed25519.PublicKey{other}, code, signature) || codesign.Verify(nil, code, signature) {
		t.Error("a key verifies what another one signed")
	}
	for what, change := range map[string]func(*codesign.Code){
		"tenant": func(c *codesign.Code) { c.Tenant = "other" }, "worker": func(c *codesign.Code) { c.Worker = "v" },
		"kind": func(c *codesign.Code) { c.MIMEType = "text/x-python" }, "code": func(c *codesign.Code) { c.Digest = codesign.DigestOf([]byte("y")) },
		"borders": func(c *codesign.Code) { c.Tenant, c.Worker = "acme\nw", "" }, "empty": func(c *codesign.Code) { *c = codesign.Code{} },
	} {
		forged := code
		change(&forged)
		if codesign.Verify(both, forged, signature) {
			t.Errorf("the signature is good for another %s", what)
		}
	}
	for i := range signature {
		broken := bytes.Clone(signature)
		broken[i] ^= 1
		if codesign.Verify(both, code, broken) {
			t.Fatalf("a signature with another byte %d is good", i)
		}
	}
	if _, err := codesign.Sign(key, codesign.Code{Worker: "w\n", MIMEType: "x", Digest: code.Digest}); err == nil {
		t.Error("an id with a line break can be signed")
	}
	if _, err := codesign.Sign(nil, code); err == nil {
		t.Error("no key can sign")
	}
}

func TestKeysInFiles(t *testing.T) {
	public, private := newKey(t)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	pkix, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, raw []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}))
	}
	if got, err := codesign.ParsePrivate([]byte(encode("PRIVATE KEY", pkcs8))); err != nil || !got.Equal(private) {
		t.Errorf("the private key: %v", err)
	}
	for _, text := range []string{encode("PUBLIC KEY", pkix), base64.StdEncoding.EncodeToString(pkix), base64.StdEncoding.EncodeToString(public) + "\n"} {
		if got, err := codesign.ParsePublic(text); err != nil || !got.Equal(public) {
			t.Errorf("the public key %q: %v", text, err)
		}
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := x509.MarshalPKCS8PrivateKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "hunter2", encode("PRIVATE KEY", other), encode("PRIVATE KEY", []byte("hunter2")), encode("PUBLIC KEY", pkix)} {
		if _, err := codesign.ParsePrivate([]byte(text)); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("a private key of %q: %v", text, err)
		}
	}
	for _, text := range []string{"", "hunter2", encode("PRIVATE KEY", pkcs8), encode("PUBLIC KEY", []byte("x")), base64.StdEncoding.EncodeToString(private)} {
		if _, err := codesign.ParsePublic(text); err == nil {
			t.Errorf("a public key of %q: %v", text, err)
		}
	}
}
