// Package fetch gets code from a URL that a client chose. It prevents server-side
// request forgery (OWASP A10:2021): the URL cannot reach addresses that only this
// process can reach, such as the loopback, private networks or a cloud's metadata
// service. The package checks each address when it dials, after it has resolved
// the name, and for every redirect. So neither a redirect nor a name that later
// resolves to another address gets around the check.
//
// Begin with [New] and [Client.Get]; [Addresses] says which addresses are allowed. It stands
// on the standard library alone. Package outbound uses the same check.
package fetch

import (
	"cmp"
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
	"slices"
	"strings"
	"syscall"
	"time"
)

var (
	// ErrForbidden is wrapped by the error for a URL, or for an address that its
	// name resolves to, that the policy does not allow.
	ErrForbidden = errors.New("not allowed")

	// ErrTooLarge is wrapped by the error for a body of more than MaxSize bytes.
	ErrTooLarge = errors.New("too large")

	// ErrDigest is wrapped by the error for code that does not have the expected
	// digest.
	ErrDigest = errors.New("digest differs")
)

// Policy says which URLs may be fetched. The zero value allows none.
type Policy struct {
	// AllowHosts lists the allowed hosts: "example.com", "*.example.com" for every host
	// below it, or "*" for every host. Empty allows none.
	AllowHosts []string `koanf:"allow_hosts"`
	// AllowHTTP allows http. Every network on the way can then change the code.
	AllowHTTP bool `koanf:"allow_http"`
	// AllowNets lists networks, such as "10.1.0.0/16", that are allowed although
	// they are not public.
	AllowNets []string `koanf:"allow_nets"`
	// MaxSize is the largest body, in bytes. Defaults to 32 MiB.
	MaxSize int64 `koanf:"max_size"`
	// Timeout bounds the whole fetch, from the resolution of the name to the last
	// byte. Defaults to 30 s.
	Timeout time.Duration `koanf:"timeout"`
	// MaxRedirects is how many redirects a fetch follows. Defaults to 3; -1 means
	// none.
	MaxRedirects int `koanf:"max_redirects"`
}

// Client fetches code under one policy. It may be used concurrently.
type Client struct {
	policy Policy
	http   *http.Client
}

// New returns a client. The error names the invalid fields of the policy. New
// clones transport for its TLS settings and does not use its dialer or its proxy;
// nil means http.DefaultTransport.
func New(p Policy, transport *http.Transport) (*Client, error) {
	p.MaxSize = cmp.Or(p.MaxSize, 32<<20)
	p.Timeout = cmp.Or(p.Timeout, 30*time.Second)
	p.MaxRedirects = cmp.Or(p.MaxRedirects, 3)
	if p.MaxSize < 0 || p.Timeout < 0 {
		return nil, errors.New("fetch policy: max_size and timeout must not be negative")
	}
	c := &Client{policy: p}
	addresses, err := ParseAddresses(p.AllowNets)
	if err != nil {
		return nil, fmt.Errorf("fetch policy: allow_nets: %w", err)
	}
	for _, h := range p.AllowHosts {
		if h == "*" {
			continue
		}
		if h == "" || strings.ContainsAny(h, ":/") || strings.Contains(strings.TrimPrefix(h, "*."), "*") {
			return nil, fmt.Errorf("fetch policy: allow_hosts: %q is not a host: write example.com or *.example.com", h)
		}
	}
	if transport == nil {
		transport, _ = http.DefaultTransport.(*http.Transport)
	}
	t := transport.Clone()
	t.Proxy = nil // a proxy would resolve the name, and the client could not check the address
	dialer := &net.Dialer{Timeout: p.Timeout, Control: addresses.Control}
	t.DialContext = dialer.DialContext
	t.DialTLSContext = nil
	t.DisableKeepAlives = true
	c.http = &http.Client{Transport: t, CheckRedirect: c.redirect}
	return c, nil
}

// Get returns the body at rawURL. digest, when not empty, is the SHA-256 that the
// body must have, in hex, with or without the prefix "sha256:". Get returns an
// error when the policy forbids the URL, the fetch takes too long, the body is
// too large or has another digest, or the status is not 200.
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
	body, err := ReadBody(ctx, resp, c.policy.MaxSize)
	if int64(len(body)) > c.policy.MaxSize {
		err = tooLarge
	}
	return body, err
}

// ReadBody reads the body of a response, up to one byte more than limit. It limits the bytes
// that are read, not the announced length: the transport may decompress the body. A server
// that notices the end of ctx may end its answer properly before the connection closes. The
// body then looks complete but is cut off: that is an error too.
func ReadBody(ctx context.Context, resp *http.Response, limit int64) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	err = cmp.Or(err, ctx.Err())
	return body, err
}

// Digest returns the SHA-256 of code, in hex.
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
		return fmt.Errorf("%s: %w: the scheme is %q, want https", u.Redacted(), ErrForbidden, u.Scheme)
	case u.Hostname() == "":
		return fmt.Errorf("%s: %w: it has no host", u.Redacted(), ErrForbidden)
	case u.User != nil:
		return fmt.Errorf("%s: %w: it has a user name", u.Redacted(), ErrForbidden)
	case len(c.policy.AllowHosts) == 0:
		return fmt.Errorf("%s: %w: the policy allows no host: fetch.allow_hosts is empty", u.Redacted(), ErrForbidden)
	}
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	for _, h := range c.policy.AllowHosts {
		h = strings.ToLower(h)
		if h == "*" || host == h || strings.HasPrefix(h, "*.") && strings.HasSuffix(host, h[1:]) {
			return nil
		}
	}
	hosts := strings.Join(c.policy.AllowHosts, ", ")
	return fmt.Errorf("%s: %w: the host is not one of %s", u.Redacted(), ErrForbidden, hosts)
}

func (c *Client) redirect(req *http.Request, via []*http.Request) error {
	if len(via) > max(c.policy.MaxRedirects, 0) {
		return fmt.Errorf("%s: %w: more than %d redirects", req.URL.Redacted(), ErrForbidden, max(c.policy.MaxRedirects, 0))
	}
	return c.allowed(req.URL)
}

// Addresses are what a client may connect to: public addresses that are not this machine's own,
// and the addresses of some networks.
type Addresses struct{ networks []netip.Prefix }

// ParseAddresses returns the public addresses of other machines and the addresses of networks,
// such as "10.1.0.0/16".
func ParseAddresses(networks []string) (Addresses, error) {
	var a Addresses
	for _, text := range networks {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return a, fmt.Errorf("%.100q is not a network: want 10.1.0.0/16", text)
		}
		a.networks = append(a.networks, prefix)
	}
	return a, nil
}

// Control is the Control of a [net.Dialer]: it refuses other addresses. The error wraps
// [ErrForbidden], and does not say which address a name has.
func (a Addresses) Control(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return ErrForbidden
	}
	addr := to.Addr().Unmap().WithZone("")
	inNetworks := slices.ContainsFunc(a.networks, func(n netip.Prefix) bool { return n.Contains(addr) })
	if inNetworks || Public(addr) && !isOwn(addr) {
		return nil
	}
	return fmt.Errorf("its address is %w: it is not a public address of another machine, and in none of the networks that are allowed",
		ErrForbidden)
}

// interfaceAddrs returns the addresses of this machine.
var interfaceAddrs = net.InterfaceAddrs

// isOwn reports whether an interface of this machine has the address. A service that listens on
// every address may trust those that reach it by a public one.
func isOwn(addr netip.Addr) bool {
	own, err := interfaceAddrs()
	if err != nil {
		return true
	}
	return slices.ContainsFunc(own, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		if !ok {
			return false
		}
		ip, ok := netip.AddrFromSlice(n.IP)
		return ok && ip.Unmap() == addr
	})
}

// special lists the networks that the IANA registries of special-purpose
// addresses (RFC 6890) call not globally reachable and that package netip has no
// method for. It also lists those whose IPv6 addresses contain an IPv4 address.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"),    // shared, RFC 6598: some clouds' metadata services
	netip.MustParsePrefix("192.0.0.0/24"),     // IETF protocol assignments
	netip.MustParsePrefix("192.0.2.0/24"),     // documentation
	netip.MustParsePrefix("192.88.99.0/24"),   // 6to4 relays, deprecated
	netip.MustParsePrefix("168.63.129.16/32"), // Azure's agent, which every virtual machine reaches
	netip.MustParsePrefix("198.18.0.0/15"),    // benchmarking
	netip.MustParsePrefix("198.51.100.0/24"),  // documentation
	netip.MustParsePrefix("203.0.113.0/24"),   // documentation
	netip.MustParsePrefix("240.0.0.0/4"),      // reserved, and broadcast
	netip.MustParsePrefix("::/96"),            // IPv4-compatible, deprecated
	netip.MustParsePrefix("::ffff:0:0:0/96"),  // IPv4-translated, RFC 2765
	netip.MustParsePrefix("64:ff9b::/96"),     // NAT64
	netip.MustParsePrefix("64:ff9b:1::/48"),   // local NAT64
	netip.MustParsePrefix("100::/64"),         // discard
	netip.MustParsePrefix("100:0:0:1::/64"),   // dummy, RFC 9780
	netip.MustParsePrefix("2001::/23"),        // IETF protocol assignments, Teredo
	netip.MustParsePrefix("2001:db8::/32"),    // documentation
	netip.MustParsePrefix("2002::/16"),        // 6to4
	netip.MustParsePrefix("3fff::/20"),        // documentation, RFC 9637
	netip.MustParsePrefix("5f00::/16"),        // segment routing, RFC 9602
	netip.MustParsePrefix("fec0::/10"),        // site-local, deprecated
}

// Public reports whether addr is globally reachable, and not in a special-purpose
// range.
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
