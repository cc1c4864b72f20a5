package operator

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"time"
)

// CertificateConfig configures [Certificates].
type CertificateConfig struct {
	// Grants give roles to certificates. "user:NAME" is a URI name, a DNS name, an email
	// address or the common name of a certificate; the first one with a grant, in that
	// order, is the caller's name. "group:NAME" is an organization or an organizational
	// unit of its subject.
	Grants []Grant

	// CRLFile has the revocation lists (CRL) of the authorities that issue the
	// certificates, in PEM. The file is read again when it changes. A caller is refused
	// when its authority has no list in the file, or only one that is out of date: a new
	// list must be there before the old one ends. Without CRLFile a certificate is valid
	// until it expires; then give certificates a life of hours.
	CRLFile string

	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Certificates identifies callers by their TLS client certificate. The connection must
// have verified it: set ClientCAs in [Config.TLS], and ClientAuth to
// VerifyClientCertIfGiven or RequireAndVerifyClientCert. It refuses a certificate that no
// grant names, one that is revoked, and one that has expired since its connection began.
func Certificates(cfg CertificateConfig) (Authenticator, error) {
	if err := checkGrants(cfg.Grants); err != nil {
		return nil, fmt.Errorf("client certificates: %w", err)
	}
	c := &certificates{grants: cfg.Grants}
	if cfg.CRLFile != "" {
		var err error
		if c.lists, err = newFileCache(cfg.CRLFile, "the file of revocation lists", cfg.Logger, parseLists); err != nil {
			return nil, fmt.Errorf("client certificates: %w", err)
		}
	}
	return c, nil
}

type certificates struct {
	grants []Grant
	lists  *fileCache[[]*x509.RevocationList] // nil for none
}

func (c *certificates) Authenticate(r *http.Request) (Principal, error) {
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
	if c.lists != nil {
		lists, err := c.lists.get()
		if err != nil {
			return Principal{}, fmt.Errorf("the revocation lists cannot be used: %w", err)
		}
		if err := checkChains(lists, r.TLS.VerifiedChains); err != nil {
			return Principal{}, err
		}
	}
	all := slices.DeleteFunc(names(leaf), func(name string) bool { return name == "" })
	if len(all) == 0 {
		return Principal{}, ErrBadCredentials
	}
	name := all[0]
	for _, one := range all {
		if slices.ContainsFunc(c.grants, func(g Grant) bool { return g.Subject == "user:"+one }) {
			name = one
			break
		}
	}
	groups := append(slices.Clone(leaf.Subject.Organization), leaf.Subject.OrganizationalUnit...)
	return granted(c.grants, Principal{Name: clip(name, maxName), Method: "certificate", Until: leaf.NotAfter}, groups)
}

func names(c *x509.Certificate) []string {
	var list []string
	for _, u := range c.URIs {
		list = append(list, u.String())
	}
	return append(append(append(list, c.DNSNames...), c.EmailAddresses...), c.Subject.CommonName)
}

// checkChains returns an error unless one of the verified chains has no revoked certificate.
func checkChains(lists []*x509.RevocationList, chains [][]*x509.Certificate) (err error) {
	for _, chain := range chains {
		if err = checkChain(lists, chain); err == nil {
			return nil
		}
	}
	return err
}

func checkChain(lists []*x509.RevocationList, chain []*x509.Certificate) error {
	for i := range chain[:max(0, len(chain)-1)] { // the last one is trusted as it is
		known := false
		for _, list := range lists {
			ofIssuer := bytes.Equal(list.RawIssuer, chain[i].RawIssuer) && list.CheckSignatureFrom(chain[i+1]) == nil
			if !ofIssuer || time.Now().After(list.NextUpdate) {
				continue
			}
			known = true
			for _, entry := range list.RevokedCertificateEntries {
				if entry.SerialNumber.Cmp(chain[i].SerialNumber) == 0 {
					return ErrBadCredentials
				}
			}
		}
		if !known {
			return fmt.Errorf("there is no revocation list of %s that is up to date", chain[i+1].Subject)
		}
	}
	return nil
}

// parseLists reads revocation lists in PEM.
func parseLists(text []byte) (lists []*x509.RevocationList, err error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "X509 CRL" {
			continue
		}
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return nil, err
		}
		lists = append(lists, list)
	}
	if len(lists) == 0 {
		return nil, errors.New("it has no revocation list in PEM (X509 CRL)")
	}
	return lists, nil
}

// rootsIn returns the certificates of a file in PEM.
func rootsIn(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate in PEM", file)
	}
	return roots, nil
}
