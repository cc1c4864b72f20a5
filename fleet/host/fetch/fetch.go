// Package fetch gets code from a URL that a client chose, so that the URL
// cannot be used to reach what only this process can: the loopback, the private
// networks, the metadata service of a cloud (server-side request forgery, OWASP
// A10:2021). The address is checked when it is dialled, after the name was
// resolved and for every redirect, so that neither a redirect nor a name that
// resolves differently the second time gets around it.
package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"
)

var (
	// ErrForbidden is wrapped by the error of a URL, or of an address behind it,
	// that the policy does not allow.
	ErrForbidden = errors.New("forbidden by policy")

	// ErrTooLarge is wrapped when there is more than MaxSize.
	ErrTooLarge = errors.New("too large")

	// ErrDigest is wrapped when what came is not what was expected.
	ErrDigest = errors.New("digest differs")
)

// Policy says what may be fetched. The zero value allows https from public
// addresses.
type Policy struct {
	// AllowHosts are the hosts that may be asked, "example.com" or, for every
	// host below it, "*.example.com". Empty allows every host.
	AllowHosts []string `koanf:"allow_hosts"`
	// AllowHTTP allows http, where every network on the way can change the code.
	AllowHTTP bool `koanf:"allow_http"`
	// AllowNets are networks, such as "10.1.0.0/16", that may be asked although
	// they are not public.
	AllowNets []string `koanf:"allow_nets"`
	// MaxSize is the most that is read, in bytes. Defaults to 32 MiB.
	MaxSize int64 `koanf:"max_size"`
	// Timeout bounds the whole of it, from the name's resolution to the last
	// byte. Defaults to 30 s.
	Timeout time.Duration `koanf:"timeout"`
	// MaxRedirects defaults to 3; -1 follows none.
	MaxRedirects int `koanf:"max_redirects"`
}

// Client fetches under one policy. It may be used concurrently.
type Client struct {
	policy Policy
	nets   []netip.Prefix
	http   *http.Client
}

// New returns a client. The error names what is wrong with the policy. transport
// is the base to clone for its TLS settings; nil is http.DefaultTransport. Its
// dialling and its proxy are not used.
func New(p Policy, transport *http.Transport) (*Client, error) {
	if p.MaxSize == 0 {
		p.MaxSize = 32 << 20
	}
	if p.Timeout == 0 {
		p.Timeout = 30 * time.Second
	}
	if p.MaxRedirects == 0 {
		p.MaxRedirects = 3
	}
	if p.MaxSize < 0 || p.Timeout < 0 {
		return nil, errors.New("fetch policy: max_size and timeout must not be negative")
	}
	c := &Client{policy: p}
	for _, text := range p.AllowNets {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("fetch policy: allow_nets: %w", err)
		}
		c.nets = append(c.nets, prefix)
	}
	for _, h := range p.AllowHosts {
		if h == "" || strings.ContainsAny(h, ":/") || strings.Contains(strings.TrimPrefix(h, "*."), "*") {
			return nil, fmt.Errorf("fetch policy: allow_hosts: %q is no host: write example.com or *.example.com", h)
		}
	}
	if transport == nil {
		transport, _ = http.DefaultTransport.(*http.Transport)
	}
	t := transport.Clone()
	t.Proxy = nil // a proxy would resolve the name, out of our sight
	dialer := &net.Dialer{Timeout: p.Timeout, Control: c.control}
	t.DialContext = dialer.DialContext
	t.DialTLSContext = nil
	t.DisableKeepAlives = true
	c.http = &http.Client{Transport: t, CheckRedirect: c.redirect}
	return c, nil
}

// Get returns what is at rawURL. digest, when not empty, is the SHA-256 that it
// must have, in hex, with or without "sha256:" before it. What is too slow, too
// large, not allowed or different is an error, and so is every status but 200.
func (c *Client) Get(ctx context.Context, rawURL, digest string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.policy.Timeout, fmt.Errorf("it took longer than %v", c.policy.Timeout))
	defer cancel()
	body, err := c.get(ctx, rawURL)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return nil, fmt.Errorf("fetch code: %w", err)
	}
	return body, Verify(body, digest)
}

func (c *Client) get(ctx context.Context, rawURL string) ([]byte, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	if err := c.allowed(u); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", u.Redacted(), resp.Status)
	}
	tooLarge := fmt.Errorf("%s: %w: more than %d bytes", u.Redacted(), ErrTooLarge, c.policy.MaxSize)
	if resp.ContentLength > c.policy.MaxSize {
		return nil, tooLarge
	}
	// The limit is on what is read, not on what was announced: the transport
	// may be decompressing.
	body, err := io.ReadAll(io.LimitReader(resp.Body, c.policy.MaxSize+1))
	if err == nil && int64(len(body)) > c.policy.MaxSize {
		err = tooLarge
	}
	if err == nil {
		// A server that is told of the cancellation may end its answer properly
		// before the connection is closed: what came looks whole and is cut off.
		err = ctx.Err()
	}
	return body, err
}

// Digest is the SHA-256 of code in hex.
func Digest(code []byte) string {
	sum := sha256.Sum256(code)
	return hex.EncodeToString(sum[:])
}

// Verify checks code against an expected digest, in the form of [Client.Get].
func Verify(code []byte, digest string) error {
	if digest == "" {
		return nil
	}
	want := strings.ToLower(strings.TrimPrefix(digest, "sha256:"))
	if got := Digest(code); got != want {
		return fmt.Errorf("%w: expected %.80s and got %s", ErrDigest, want, got)
	}
	return nil
}

// allowed checks a URL against the policy, without resolving anything.
func (c *Client) allowed(u *url.URL) error {
	switch {
	case u.Scheme != "https" && (u.Scheme != "http" || !c.policy.AllowHTTP):
		return fmt.Errorf("%s: %w: the scheme is %q and must be https", u.Redacted(), ErrForbidden, u.Scheme)
	case u.Hostname() == "":
		return fmt.Errorf("%s: %w: it has no host", u.Redacted(), ErrForbidden)
	case u.User != nil:
		return fmt.Errorf("%s: %w: it has a user name", u.Redacted(), ErrForbidden)
	case len(c.policy.AllowHosts) == 0:
		return nil
	}
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	for _, h := range c.policy.AllowHosts {
		h = strings.ToLower(h)
		if host == h || strings.HasPrefix(h, "*.") && strings.HasSuffix(host, h[1:]) {
			return nil
		}
	}
	return fmt.Errorf("%s: %w: the host is none of %s", u.Redacted(), ErrForbidden, strings.Join(c.policy.AllowHosts, ", "))
}

func (c *Client) redirect(req *http.Request, via []*http.Request) error {
	if len(via) > max(c.policy.MaxRedirects, 0) {
		return fmt.Errorf("%s: %w: more than %d redirects", req.URL.Redacted(), ErrForbidden, max(c.policy.MaxRedirects, 0))
	}
	return c.allowed(req.URL)
}

// control is called with the address that is about to be dialled.
func (c *Client) control(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %q is no address: %w", ErrForbidden, address, err)
	}
	addr := to.Addr().Unmap().WithZone("")
	for _, n := range c.nets {
		if n.Contains(addr) {
			return nil
		}
	}
	if !Public(addr) {
		return fmt.Errorf("%w: %s is not a public address", ErrForbidden, addr)
	}
	return nil
}

// special are the networks that the IANA registries of special-purpose addresses
// (RFC 6890) list as not globally reachable and that package netip has no word
// for, and those that carry an IPv4 address inside an IPv6 one.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"),   // shared, RFC 6598: some clouds' metadata services
	netip.MustParsePrefix("192.0.0.0/24"),    // IETF protocol assignments
	netip.MustParsePrefix("192.0.2.0/24"),    // documentation
	netip.MustParsePrefix("198.18.0.0/15"),   // benchmarking
	netip.MustParsePrefix("198.51.100.0/24"), // documentation
	netip.MustParsePrefix("203.0.113.0/24"),  // documentation
	netip.MustParsePrefix("240.0.0.0/4"),     // reserved, and broadcast
	netip.MustParsePrefix("::/96"),           // IPv4-compatible, deprecated
	netip.MustParsePrefix("64:ff9b::/96"),    // NAT64
	netip.MustParsePrefix("64:ff9b:1::/48"),  // local NAT64
	netip.MustParsePrefix("100::/64"),        // discard
	netip.MustParsePrefix("100:0:0:1::/64"),  // dummy, RFC 9780
	netip.MustParsePrefix("2001::/23"),       // IETF protocol assignments, Teredo
	netip.MustParsePrefix("2001:db8::/32"),   // documentation
	netip.MustParsePrefix("2002::/16"),       // 6to4
	netip.MustParsePrefix("3fff::/20"),       // documentation, RFC 9637
	netip.MustParsePrefix("5f00::/16"),       // segment routing, RFC 9602
	netip.MustParsePrefix("fec0::/10"),       // site-local, deprecated
}

// Public reports whether addr is globally reachable and in no range of special
// purpose.
func Public(addr netip.Addr) bool {
	addr = addr.Unmap()
	if !addr.IsGlobalUnicast() || addr.IsPrivate() {
		return false
	}
	for _, n := range special {
		if n.Contains(addr.WithZone("")) {
			return false
		}
	}
	return true
}
