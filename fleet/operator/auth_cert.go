package operator

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"time"
)

// ClientCertificates identifies callers by their TLS client certificate. The
// connection must have verified it: set ClientCAs in [Config.TLS], and ClientAuth to
// VerifyClientCertIfGiven or RequireAndVerifyClientCert. roles maps a certificate's
// URI name, DNS name or common name, in that order, to a role. It refuses a
// certificate without such a name, and one that has expired since its connection
// began.
func ClientCertificates(roles map[string]Role) (Authenticator, error) {
	if len(roles) == 0 {
		return nil, fmt.Errorf("client certificates: no name has a role")
	}
	for name, role := range roles {
		if _, err := ParseRole(string(role)); name == "" || err != nil {
			return nil, fmt.Errorf("client certificates: name %q has the role %q: want a name, and viewer or operator", name, role)
		}
	}
	return certificates(roles), nil
}

type certificates map[string]Role

func (c certificates) Authenticate(r *http.Request) (Principal, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return Principal{}, ErrNoCredentials
	}
	if len(r.TLS.VerifiedChains) == 0 { // presented but not verified
		return Principal{}, ErrBadCredentials
	}
	leaf := r.TLS.PeerCertificates[0]
	if time.Now().After(leaf.NotAfter) {
		return Principal{}, ErrExpired
	}
	for _, name := range names(leaf) {
		if role, ok := c[name]; ok {
			return Principal{Name: name, Role: role, Method: "certificate", Until: leaf.NotAfter}, nil
		}
	}
	return Principal{}, ErrBadCredentials
}

func names(c *x509.Certificate) []string {
	var list []string
	for _, u := range c.URIs {
		list = append(list, u.String())
	}
	return append(append(list, c.DNSNames...), c.Subject.CommonName)
}
