package presence

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func newKey(tb testing.TB) ed25519.PrivateKey {
	tb.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

const subject = "lifecycle.fleet.command.orders.a"

// newGate returns a gate that trusts one key.
func newGate(operator ed25519.PrivateKey) *gate {
	return &gate{subject: subject, life: "this-life", nonces: map[string]time.Time{}, trust: func(k ed25519.PublicKey) error {
		if !k.Equal(operator.Public()) {
			return errors.New("not an operator")
		}
		return nil
	}}
}

func good(now time.Time) command {
	return command{Do: "drain", Reason: "new node", Who: "ada", Life: "this-life", Nonce: rand.Text(), Issued: now, Expires: now.Add(5 * time.Second)}
}

func sealed(tb testing.TB, key ed25519.PrivateKey, subject string, c command) []byte {
	tb.Helper()
	body, err := json.Marshal(c)
	if err != nil {
		tb.Fatal(err)
	}
	return seal(key, "command "+subject, body)
}

func TestGate(t *testing.T) {
	ada, eve := newKey(t), newKey(t)
	now := time.Now()
	for name, tt := range map[string]struct {
		key     ed25519.PrivateKey
		subject string
		change  func(*command)
		want    string // in the error; "" for none
		signer  bool   // the signer is known
	}{
		"good":                {signer: true},
		"clock 29 s behind":   {change: func(c *command) { c.Issued, c.Expires = now.Add(29*time.Second), now.Add(34*time.Second) }, signer: true},
		"clock 29 s ahead":    {change: func(c *command) { c.Issued, c.Expires = now.Add(-34*time.Second), now.Add(-29*time.Second) }, signer: true},
		"expired":             {change: func(c *command) { c.Issued, c.Expires = now.Add(-time.Hour), now.Add(-time.Hour+time.Second) }, want: "compare the clocks", signer: true},
		"from the future":     {change: func(c *command) { c.Issued, c.Expires = now.Add(time.Hour), now.Add(time.Hour+time.Second) }, want: "issued in the future", signer: true},
		"valid for ever":      {change: func(c *command) { c.Expires = now.Add(24 * time.Hour) }, want: "valid for", signer: true},
		"expired when issued": {change: func(c *command) { c.Expires = now.Add(-time.Second) }, want: "valid for", signer: true},
		"without times":       {change: func(c *command) { c.Issued, c.Expires = time.Time{}, time.Time{} }, want: "expired", signer: true},
		"other process":       {subject: subject + "2", want: errForged.Error()},
		"other life":          {change: func(c *command) { c.Life = "earlier-life" }, want: "another life", signer: true},
		"other key":           {key: eve, want: "not an operator", signer: true},
		"no principal":        {change: func(c *command) { c.Who = "" }, want: "names no operator", signer: true},
		"endless principal":   {change: func(c *command) { c.Who = strings.Repeat("x", maxReason+1) }, want: "longer than", signer: true},
		"name of 10 kB":       {change: func(c *command) { c.Who = strings.Repeat("x", 10_000) }, want: "at most 8192"},
		"no nonce":            {change: func(c *command) { c.Nonce = "" }, want: "nonce", signer: true},
		"endless nonce":       {change: func(c *command) { c.Nonce = strings.Repeat("x", 65) }, want: "nonce", signer: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := good(now)
			if tt.change != nil {
				tt.change(&c)
			}
			if tt.key == nil {
				tt.key = ada
			}
			if tt.subject == "" {
				tt.subject = subject
			}
			_, signer, err := newGate(ada).admit(now, sealed(t, tt.key, tt.subject, c))
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if (signer == fingerprint(publicOf(tt.key))) != tt.signer || !tt.signer && signer != "" {
				t.Errorf("the signer is %q", signer)
			}
		})
	}
}

func TestGateRefusesAReplay(t *testing.T) {
	ada := newKey(t)
	g, now := newGate(ada), time.Now()
	m := sealed(t, ada, subject, good(now))
	if _, _, err := g.admit(now, m); err != nil {
		t.Fatal(err)
	}
	// The nonce is remembered for as long as the command could be admitted.
	for at := now; at.Before(now.Add(time.Minute)); at = at.Add(time.Second) {
		if _, _, err := g.admit(at, m); err == nil || !strings.Contains(err.Error(), "replay") && !strings.Contains(err.Error(), "expired") {
			t.Fatalf("again after %v: %v", at.Sub(now), err)
		}
	}
	// The clock is set on, so that the nonce is forgotten, and back again.
	on := now.Add(time.Hour)
	if _, _, err := g.admit(on, sealed(t, ada, subject, good(on))); err != nil {
		t.Fatal(err)
	}
	if _, _, err := g.admit(now.Add(time.Second), m); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("again after the clock was set back: %v", err)
	}
	// A clock that is wrong for a moment costs nothing when it is right again.
	g = newGate(ada)
	if _, _, err := g.admit(now.AddDate(1, 0, 0), m); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("a year later: %v", err)
	}
	if _, _, err := g.admit(now, sealed(t, ada, subject, good(now))); err != nil {
		t.Errorf("when the clock is right again: %v", err)
	}
	// A nonce is forgotten when later commands have come.
	later := now.Add(time.Hour)
	if _, _, err := g.admit(later, sealed(t, ada, subject, good(later))); err != nil || len(g.nonces) != 1 {
		t.Errorf("an hour later: %v, and %d are remembered", err, len(g.nonces))
	}
}

// No message that the operator has not sealed for this subject passes, however it is
// derived from one that it has.
func FuzzGate(f *testing.F) {
	ada := newKey(f)
	now := time.Now()
	valid := sealed(f, ada, subject, good(now))
	for _, seed := range [][]byte{valid, valid[:len(valid)-1], append(bytes.Clone(valid), ' '), nil, []byte("lifecycle1 "), []byte(`{"do":"drain"}`), bytes.Repeat([]byte{'a'}, sealing)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		_, signer, err := newGate(ada).admit(now, message)
		if (err == nil || signer != "") && !bytes.Equal(message, valid) {
			if key, _, err := unseal("command "+subject, message); err != nil || key.Equal(ada.Public()) {
				t.Errorf("%q passes", message)
			}
		}
	})
}

func TestSealHoldsForOnePurpose(t *testing.T) {
	key := newKey(t)
	m := seal(key, "entry FLEET a.b", []byte("body"))
	if k, body, err := unseal("entry FLEET a.b", m); err != nil || string(body) != "body" || !k.Equal(key.Public()) {
		t.Fatal(k, body, err)
	}
	for _, purpose := range []string{"entry FLEET a.c", "command a.b", "", "entry FLEET a.b\n"} {
		if _, _, err := unseal(purpose, m); !errors.Is(err, errForged) {
			t.Errorf("for %q: %v", purpose, err)
		}
	}
	for i := range m {
		bad := bytes.Clone(m)
		bad[i] ^= 1
		if _, _, err := unseal("entry FLEET a.b", bad); err == nil {
			t.Errorf("with byte %d changed it still opens", i)
		}
		if _, _, err := unseal("entry FLEET a.b", m[:i]); err == nil {
			t.Errorf("of %d bytes it still opens", i)
		}
	}
}

func pemFile(tb testing.TB, blocks ...*pem.Block) string {
	tb.Helper()
	var text bytes.Buffer
	for _, b := range blocks {
		if err := pem.Encode(&text, b); err != nil {
			tb.Fatal(err)
		}
	}
	name := filepath.Join(tb.TempDir(), "keys.pem")
	if err := os.WriteFile(name, text.Bytes(), 0o600); err != nil {
		tb.Fatal(err)
	}
	return name
}

func privateBlock(tb testing.TB, key any) *pem.Block {
	tb.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	return &pem.Block{Type: "PRIVATE KEY", Bytes: der}
}

func publicBlock(tb testing.TB, key any) *pem.Block {
	tb.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	return &pem.Block{Type: "PUBLIC KEY", Bytes: der}
}

func TestKeyFiles(t *testing.T) {
	ada, eve := newKey(t), newKey(t)
	if key, err := readKey(pemFile(t, privateBlock(t, ada))); err != nil || !key.Equal(ada) {
		t.Errorf("a private key: %v", err)
	}
	keys, err := readOperators(pemFile(t, publicBlock(t, ada.Public()), publicBlock(t, eve.Public())))
	if err != nil || len(keys) != 2 || !keys[0].Equal(ada.Public()) || !keys[1].Equal(eve.Public()) {
		t.Errorf("two public keys: %v, %v", keys, err)
	}
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, bytes.Repeat([]byte("garbage\n"), 20_000), 0o600); err != nil {
		t.Fatal(err)
	}
	short := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(short, []byte("ed25519 but no PEM"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{
		"missing": filepath.Join(t.TempDir(), "none"), "folder": t.TempDir(), "empty": pemFile(t), "garbage": garbage, "no PEM": short,
		"broken": pemFile(t, &pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")}),
		"other":  pemFile(t, &pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}),
	} {
		if _, err := readOperators(file); err == nil {
			t.Errorf("%s: accepted as public keys", name)
		}
		if _, err := readKey(file); err == nil {
			t.Errorf("%s: accepted as a private key", name)
		}
	}
	if _, err := readKey(pemFile(t, publicBlock(t, ada.Public()))); err == nil {
		t.Error("a public key is accepted as a private one")
	}
	if _, err := readOperators(pemFile(t, privateBlock(t, ada))); err == nil || strings.Contains(err.Error(), fmt.Sprintf("%x", ada.Seed())) {
		t.Errorf("a private key in place of a public one: %v", err)
	}
}
