package outbound

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/fetch"
)

// Policy bounds requests. A field that is zero has its default.
type Policy struct {
	// Timeout bounds a request, from the resolution of the name to the last byte.
	// Defaults to 10 s.
	Timeout time.Duration `koanf:"timeout"`
	// MaxRequest is the largest body of a request, and MaxResponse that of an answer
	// after it is decompressed, in bytes. They default to 1 MiB.
	MaxRequest  int `koanf:"max_request"`
	MaxResponse int `koanf:"max_response"`
	// MaxRequests is how many requests the handling of one message may send. Defaults
	// to 16.
	MaxRequests int `koanf:"max_requests"`
	// MaxConcurrent is how many requests of a tenant a host sends at once. Others wait.
	// Defaults to 16.
	MaxConcurrent int `koanf:"max_concurrent"`
}

// WithDefaults returns a copy in which no field is zero.
func (p Policy) WithDefaults() Policy {
	p.Timeout = cmp.Or(p.Timeout, 10*time.Second)
	p.MaxRequest = cmp.Or(p.MaxRequest, 1<<20)
	p.MaxResponse = cmp.Or(p.MaxResponse, 1<<20)
	p.MaxRequests = cmp.Or(p.MaxRequests, 16)
	p.MaxConcurrent = cmp.Or(p.MaxConcurrent, 16)
	return p
}

// Validate returns an error when a field is negative.
func (p Policy) Validate() error {
	if p.Timeout < 0 || p.MaxRequest < 0 || p.MaxResponse < 0 || p.MaxRequests < 0 || p.MaxConcurrent < 0 {
		return errors.New("http: timeout, max_request, max_response, max_requests and max_concurrent must not be negative")
	}
	return nil
}

// maxRedirects is how many redirects a request follows.
const maxRedirects = 3

// Client sends requests of one tenant. It may be used concurrently.
type Client struct {
	policy Policy
	http   *http.Client
	places chan struct{}
}

// New returns a client that reaches public addresses, and those of the networks, such as
// "10.1.0.0/16". The error names a network that is none.
func New(p Policy, networks []string) (*Client, error) {
	p = p.WithDefaults()
	c := &Client{policy: p, places: make(chan struct{}, p.MaxConcurrent)}
	addresses, err := fetch.ParseAddresses(networks)
	if err != nil {
		return nil, err
	}
	c.http = &http.Client{
		Transport: &http.Transport{
			// No proxy: it would resolve the name, and the client could not check the address.
			DialContext:            (&net.Dialer{Timeout: p.Timeout, Control: addresses.Control}).DialContext,
			ForceAttemptHTTP2:      true,
			TLSHandshakeTimeout:    p.Timeout,
			MaxIdleConnsPerHost:    2,
			MaxIdleConns:           16,
			IdleConnTimeout:        30 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: redirect,
	}
	return c, nil
}

// Close closes the connections that are idle.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Scope says what one worker may ask for.
type Scope struct {
	Allow []Pattern
	// Secrets replace ${NAME} in the headers of requests.
	Secrets map[string]Secret
}

// Secret is a value that the code may send and not see.
type Secret struct {
	Value  string
	Header string    // the only header that may have it; "" for every header
	URLs   []Pattern // the only URLs that may get it
}

func (s *Secret) goesTo(u *url.URL) bool {
	return slices.ContainsFunc(s.URLs, func(p Pattern) bool { return p.Matches(u) })
}

// asked is a request that is under way.
type asked struct {
	scope *Scope
	used  []Secret // in its headers
}

func (s *Scope) allowed(u *url.URL) error {
	if u.User != nil {
		return fmt.Errorf("%s: %w: it has a user name", u.Redacted(), fetch.ErrForbidden)
	}
	if err := plain(u); err != nil {
		return fmt.Errorf("%.200s: %w: %w", u.Redacted(), fetch.ErrForbidden, err)
	}
	if !slices.ContainsFunc(s.Allow, func(p Pattern) bool { return p.Matches(u) }) {
		return fmt.Errorf("%.200s: %w by the worker's spec", u.Redacted(), fetch.ErrForbidden)
	}
	return nil
}

type askedKey struct{}

func redirect(req *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return fmt.Errorf("%w: more than %d redirects", fetch.ErrForbidden, maxRedirects)
	}
	a, ok := req.Context().Value(askedKey{}).(*asked)
	if !ok {
		return fetch.ErrForbidden
	}
	req.Header.Del("Referer")
	first := via[0].URL
	otherServer := first.Scheme != req.URL.Scheme || first.Host != req.URL.Host
	beyondSecret := slices.ContainsFunc(a.used, func(s Secret) bool { return !s.goesTo(req.URL) })
	if otherServer || beyondSecret {
		clear(req.Header)
	}
	return a.scope.allowed(req.URL)
}

// Do sends a request. It waits for a place when the tenant sends too many at once.
func (c *Client) Do(ctx context.Context, scope *Scope, r *engine.Request) (*engine.Response, error) {
	late := fmt.Errorf("it took longer than %v", c.policy.Timeout)
	a := &asked{scope: scope}
	ctx, cancel := context.WithTimeoutCause(context.WithValue(ctx, askedKey{}, a), c.policy.Timeout, late)
	defer cancel()
	answer, err := c.do(ctx, a, r)
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err // its text has the URL, and the code knows which one
	}
	var network net.Error
	switch {
	case err == nil:
		return answer, nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.As(err, &network) && network.Timeout(): // the dialer has the same limit
		err = late
	}
	return nil, fmt.Errorf("fetch: %w", err)
}

func (c *Client) do(ctx context.Context, a *asked, r *engine.Request) (*engine.Response, error) {
	req, err := c.request(ctx, a, r)
	if err != nil {
		return nil, err
	}
	select {
	case c.places <- struct{}{}:
		defer func() { <-c.places }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := fetch.ReadBody(ctx, resp, int64(c.policy.MaxResponse))
	if err != nil {
		return nil, err
	}
	if len(body) > c.policy.MaxResponse {
		return nil, fmt.Errorf("the answer has more than %d bytes", c.policy.MaxResponse)
	}
	answer := &engine.Response{Status: resp.StatusCode, URL: resp.Request.URL.String(), Header: resp.Header, Body: body}
	if len(a.used) > 0 {
		a.scope.cover(answer)
	}
	return answer, nil
}

// minCovered is the length of the shortest value that cover replaces. A shorter one occurs in
// ordinary words.
const minCovered = 4

// cover replaces the secrets in an answer by as many asterisks: a server may send back what it got.
func (s *Scope) cover(r *engine.Response) {
	var values []string
	for _, secret := range s.Secrets {
		if len(secret.Value) >= minCovered {
			values = append(values, secret.Value)
		}
	}
	// The longest first: a secret may begin with another one.
	slices.SortFunc(values, func(a, b string) int { return len(b) - len(a) })
	hide := func(text string) string {
		for _, value := range values { // one after the other: they may overlap
			text = strings.ReplaceAll(text, value, strings.Repeat("*", len(value)))
		}
		return text
	}
	r.URL, r.Body = hide(r.URL), []byte(hide(string(r.Body)))
	for _, texts := range r.Header {
		for i := range texts {
			texts[i] = hide(texts[i])
		}
	}
}

// methods are the methods that code may use.
var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodOptions,
	http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
}

// request checks a request and makes it.
func (c *Client) request(ctx context.Context, a *asked, r *engine.Request) (*http.Request, error) {
	method := strings.ToUpper(r.Method)
	method = cmp.Or(method, http.MethodGet)
	if !slices.Contains(methods, method) {
		return nil, fmt.Errorf("the method %.20q is %w: want one of %s", r.Method, fetch.ErrForbidden, strings.Join(methods, ", "))
	}
	if len(r.URL) > 8<<10 {
		return nil, errors.New("the URL has more than 8 KiB")
	}
	u, err := url.Parse(r.URL)
	if err != nil {
		return nil, errors.New("the URL is not valid")
	}
	if err := a.scope.allowed(u); err != nil {
		return nil, err
	}
	if len(r.Body) > c.policy.MaxRequest {
		return nil, fmt.Errorf("the body has more than %d bytes", c.policy.MaxRequest)
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "lifecycle-host")
	size := 0
	for name, values := range r.Header {
		if err := checkHeader(name); err != nil {
			return nil, err
		}
		req.Header.Del(name)
		for _, v := range values {
			size += len(name)
			if v, err = a.reveal(u, name, v, maxHeaders-size); err != nil {
				return nil, err
			}
			size += len(v)
			req.Header.Add(name, v)
		}
	}
	return req, nil
}

// hops are headers that belong to the connection, which the host keeps.
var hops = []string{
	"Host", "Connection", "Content-Length", "Expect", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// checkHeader refuses a header that the host sets. The transport refuses a name or a value
// that is not valid, and its error does not have the value.
func checkHeader(name string) error {
	canonical := http.CanonicalHeaderKey(name)
	if slices.Contains(hops, canonical) || strings.HasPrefix(canonical, "Proxy-") {
		return fmt.Errorf("the header %s is %w: the host sets it", canonical, fetch.ErrForbidden)
	}
	return nil
}

// maxHeaders bounds the names and values of all headers of a request, with their secrets.
const maxHeaders = 32 << 10

// reveal replaces ${NAME} by a secret, and stops as soon as the value has more than room
// bytes. The error does not have the value.
func (a *asked) reveal(u *url.URL, header, v string, room int) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(v, "${")
		if out.Len()+len(before) > room {
			return "", fmt.Errorf("the headers have more than %d KiB", maxHeaders>>10)
		}
		out.WriteString(before)
		if !found {
			break
		}
		name, after, closed := strings.Cut(rest, "}")
		secret, known := a.scope.Secrets[name]
		if !closed || !known {
			return "", fmt.Errorf("the header %s has ${%.50s}, which is %w: the spec's http.secrets does not have it",
				header, name, fetch.ErrForbidden)
		}
		otherHeader := secret.Header != "" && http.CanonicalHeaderKey(header) != http.CanonicalHeaderKey(secret.Header)
		if otherHeader || !secret.goesTo(u) {
			return "", fmt.Errorf("the header %s has ${%.50s}, which is %w there: the grant is for one header, %s, and some URLs",
				header, name, fetch.ErrForbidden, secret.Header)
		}
		a.used = append(a.used, secret)
		out.WriteString(secret.Value)
		v = after
	}
	return out.String(), nil
}
