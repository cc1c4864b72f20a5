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
	"sync"
	"time"
)

// ClientCertificates identifies callers by their TLS client certificate, as [Certificates]
// does. roles maps the names of certificates to roles in the whole fleet.
func ClientCertificates(roles map[string]Role) (Authenticator, error) {
	var cfg CertificateConfig
	for name, role := range roles {
		cfg.Grants = append(cfg.Grants, Grant{Subject: "user:" + name, Role: role})
	}
	return Certificates(cfg)
}

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

	// Log defaults to slog.Default().
	Log *slog.Logger
}

// Certificates identifies callers by their TLS client certificate. The connection must
// have verified it: set ClientCAs in [Config.TLS], and ClientAuth to
// VerifyClientCertIfGiven or RequireAndVerifyClientCert. It refuses a certificate that no
// grant names, one that is revoked, and one that has expired since its connection began.
func Certificates(cfg CertificateConfig) (Authenticator, error) {
	if err := checkGrants(cfg.Grants); err != nil {
		return nil, fmt.Errorf("client certificates: %w", err)
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	c := &certificates{grants: cfg.Grants}
	if cfg.CRLFile != "" {
		c.lists = &revocations{path: cfg.CRLFile, log: cfg.Log}
		if c.lists.read(); c.lists.broken != nil {
			return nil, fmt.Errorf("client certificates: %w", c.lists.broken)
		}
	}
	return c, nil
}

type certificates struct {
	grants []Grant
	lists  *revocations // nil for none
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
		if err := c.lists.check(r.TLS.VerifiedChains); err != nil {
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

// revocations are the lists of a file.
type revocations struct {
	path string
	log  *slog.Logger

	mu     sync.Mutex // guards the fields below
	looked time.Time
	stamp  stamp
	lists  []*x509.RevocationList
	broken error
}

// check returns an error unless one of the verified chains has no revoked certificate.
func (c *revocations) check(chains [][]*x509.Certificate) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refreshLocked()
	if c.broken != nil {
		return fmt.Errorf("the revocation lists cannot be used: %w", c.broken)
	}
	for _, chain := range chains {
		if err = c.chainLocked(chain); err == nil {
			return nil
		}
	}
	return err
}

func (c *revocations) chainLocked(chain []*x509.Certificate) error {
	for i := range chain[:max(0, len(chain)-1)] { // the last one is trusted as it is
		known := false
		for _, list := range c.lists {
			if !bytes.Equal(list.RawIssuer, chain[i].RawIssuer) || list.CheckSignatureFrom(chain[i+1]) != nil || time.Now().After(list.NextUpdate) {
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

// refreshLocked reads the file again when it has changed, at most once a second.
func (c *revocations) refreshLocked() {
	now := time.Now()
	if now.Sub(c.looked) < time.Second && !now.Before(c.looked) {
		return
	}
	info, err := os.Stat(c.path)
	if err == nil && c.broken == nil && info.Size() == c.stamp.size && info.ModTime().Equal(c.stamp.changed) && os.SameFile(info, c.stamp.info) {
		c.looked = now
		return
	}
	was := c.broken
	if c.read(); c.broken != nil && (was == nil || was.Error() != c.broken.Error()) {
		c.log.Error("operator: the revocation lists cannot be used: every certificate is refused", "error", c.broken)
	} else if c.broken == nil {
		c.log.Info("operator: the revocation lists were read", "lists", len(c.lists))
	}
}

// maxLists is how large the file of the lists may be.
const maxLists = 64 << 20

func (c *revocations) read() {
	c.looked, c.lists, c.broken = time.Now(), nil, nil
	info, err := os.Stat(c.path)
	if err != nil {
		c.broken = err
		return
	}
	c.stamp = stamp{info.Size(), info.ModTime(), info}
	if info.Size() > maxLists || !info.Mode().IsRegular() {
		c.broken = fmt.Errorf("%s is not a file of at most 64 MiB", c.path)
		return
	}
	text, err := os.ReadFile(c.path)
	if err != nil {
		c.broken = err
		return
	}
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
			c.broken = fmt.Errorf("%s: %w", c.path, err)
			return
		}
		c.lists = append(c.lists, list)
	}
	if len(c.lists) == 0 {
		c.broken = errors.New(c.path + " has no revocation list in PEM (X509 CRL)")
	}
}
