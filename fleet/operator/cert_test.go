package operator_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
)

// person issues a certificate of a person.
func (a *authority) person(t *testing.T, serial int64, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	change(tmpl)
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// revoke returns a revocation list with these serials, in PEM.
func (a *authority) revoke(t *testing.T, until time.Time, serials ...int64) string {
	t.Helper()
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-2 * time.Hour), NextUpdate: until}
	for _, n := range serials {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: big.NewInt(n), RevocationTime: time.Now()})
	}
	issuer := *a.cert
	issuer.KeyUsage |= x509.KeyUsageCRLSign
	der, err := x509.CreateRevocationList(rand.Reader, list, &issuer, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}))
}

// People with certificates: by each kind of name, by their unit in a part of the fleet, and
// not when the certificate is revoked.
func TestCertificatesOfPeople(t *testing.T) {
	ca := newAuthority(t)
	crl := filepath.Join(t.TempDir(), "crl.pem")
	write(t, crl, ca.revoke(t, time.Now().Add(time.Hour), 66))
	auth, err := operator.Certificates(operator.CertificateConfig{CRLFile: crl, Logger: quiet, Grants: []operator.Grant{
		{Subject: "user:ada@example.com", Role: operator.RoleOperator}, {Subject: "user:spiffe://example.com/bob", Role: operator.RoleViewer},
		{Subject: "group:payments", Role: operator.RoleOperator, Services: []string{"payments-*"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	base, _ := serve(t, operator.Config{Auth: auth, TLS: &tls.Config{
		Certificates: []tls.Certificate{ca.issue(t, "server")}, ClientCAs: ca.pool, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS13,
	}})
	ask := func(cert tls.Certificate) (int, string) {
		t.Helper()
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{cert}}}
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr}).Get(base + "/whoami")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	for what, tc := range map[string]struct {
		serial int64
		change func(*x509.Certificate)
		code   int
		want   string
	}{
		"an email": {2, func(c *x509.Certificate) { c.EmailAddresses = []string{"ada@example.com"} }, 200, `"role":"operator"`},
		"revoked":  {66, func(c *x509.Certificate) { c.EmailAddresses = []string{"ada@example.com"} }, 401, ""},
		"the unit": {3, func(c *x509.Certificate) {
			c.Subject = pkix.Name{CommonName: "cy", OrganizationalUnit: []string{"payments"}}
		}, 200, `"services":["payments-*"]`},
		"the organization":  {3, func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: "cy", Organization: []string{"payments"}} }, 200, `"name":"cy"`},
		"a group as a name": {4, func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: "payments"} }, 401, ""},
		"a unit only":       {5, func(c *x509.Certificate) { c.Subject = pkix.Name{OrganizationalUnit: []string{"payments"}} }, 401, ""},
		"no grant": {6, func(c *x509.Certificate) {
			c.Subject = pkix.Name{CommonName: "eve", OrganizationalUnit: []string{"shop"}}
		}, 401, ""},
	} {
		if code, text := ask(ca.person(t, tc.serial, tc.change)); code != tc.code || !strings.Contains(text, tc.want) {
			t.Errorf("%s: %d %s", what, code, text)
		}
	}
	ada := ca.person(t, 7, func(c *x509.Certificate) { c.EmailAddresses = []string{"ada@example.com"} })
	await := func(what string, want int) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			code, text := ask(ada)
			if code == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %d %s", what, code, text)
			}
		}
	}
	await("at first", 200)
	write(t, crl, ca.revoke(t, time.Now().Add(time.Hour), 66, 7))
	await("revoked", 401)
	write(t, crl, ca.revoke(t, time.Now().Add(time.Hour)))
	await("a new list without it", 200)
	write(t, crl, ca.revoke(t, time.Now().Add(-time.Hour)))
	await("a list that is out of date", 503)
	write(t, crl, newAuthority(t).revoke(t, time.Now().Add(time.Hour)))
	await("a list of another authority", 503)
	write(t, crl, "nothing")
	await("no list", 503)
	for _, bad := range []operator.CertificateConfig{{}, {Grants: []operator.Grant{{Subject: "ada", Role: operator.RoleViewer}}}, {Grants: []operator.Grant{{Subject: "user:ada", Role: operator.RoleViewer}}, CRLFile: crl}} {
		if _, err := operator.Certificates(bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}
