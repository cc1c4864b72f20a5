// Package client is a client of an operator server: the four services of the contract
// over one connection. It reads credentials when it needs them.
//
//	c, err := client.New(client.Config{Server: "https://ops.example.com", TokenFile: "/var/run/token"})
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	page, err := c.Workflows.ListEntities(ctx, &operatorv1.ListEntitiesRequest{Type: "drone-survey", Active: true})
//
// Errors come from package connect; [Reason] and [Fields] read their details.
//
// Begin with [New]. It uses the generated clients of package operatorv1connect.
package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1/operatorv1connect"
)

// Config says which server to call, and with which credentials.
type Config struct {
	// Server is the URL of the server. Defaults to "http://127.0.0.1:8090".
	Server string

	// Token is a bearer token. TokenFile is a file with one; the client reads it
	// before every call, because such tokens are renewed in place. Set at most one of
	// the two. Neither is sent over plain HTTP to another machine, unless Insecure.
	Token, TokenFile string

	// TokenSource returns a bearer token before every call, such as one that it renews.
	// It may be called concurrently. Its error is the error of the call. It takes
	// precedence over Token and TokenFile, with the same rule for plain HTTP.
	TokenSource func(ctx context.Context) (string, error)

	// CAFile has the certificates, in PEM, that may sign the server's. Defaults to
	// the system's.
	CAFile string

	// CertFile and KeyFile are this client's own certificate and key, in PEM.
	CertFile, KeyFile string

	// Insecure allows credentials over plain HTTP, for a network that is encrypted by
	// other means. It never disables the verification of certificates.
	Insecure bool

	// AsOf is called with each answer of the server: from when its content is. That is
	// older than the answer while a service behind the server, such as NATS, is away. It
	// may be called concurrently, and must not block. With nil the client calls none. away has
	// the names of those services.
	AsOf func(at time.Time, away []string)

	// Timeout bounds connecting, and waiting for the beginning of an answer. Defaults
	// to 30 s. The whole call is bounded by its context.
	Timeout time.Duration
}

// Client is a connection to a server. Its services may be used concurrently.
type Client struct {
	Workflows operatorv1connect.WorkflowServiceClient
	Workers   operatorv1connect.WorkerServiceClient
	Processes operatorv1connect.ProcessServiceClient
	Access    operatorv1connect.AccessServiceClient

	http *http.Client
	base string
}

// New returns a Client; the caller must close it. It connects on the first call.
func New(cfg Config) (*Client, error) {
	cfg.Server = cmp.Or(cfg.Server, "http://127.0.0.1:8090")
	cfg.Timeout = cmp.Or(cfg.Timeout, 30*time.Second)
	u, err := url.Parse(cfg.Server)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("server %q: want a URL such as https://ops.example.com", cfg.Server)
	}
	hasToken := cfg.Token != "" || cfg.TokenFile != "" || cfg.TokenSource != nil
	switch {
	case cfg.Token != "" && cfg.TokenFile != "":
		return nil, errors.New("both a token and a token file are given: want one of the two")
	case (cfg.CertFile == "") != (cfg.KeyFile == ""):
		return nil, errors.New("a client certificate needs both its certificate file and its key file")
	case u.Scheme == "http" && (cfg.CertFile != "" || cfg.CAFile != ""):
		return nil, fmt.Errorf("server %s is not TLS: certificates have no effect; want https://", cfg.Server)
	case u.Scheme == "http" && hasToken && !cfg.Insecure && !IsLoopback(u.Hostname()):
		return nil, fmt.Errorf("server %s is not TLS: a token would cross the network in the clear; "+
			"want https://, or Insecure", cfg.Server)
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("CA file: %w", err)
		}
		secure.RootCAs = x509.NewCertPool()
		if !secure.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA file %s has no certificate in PEM", cfg.CAFile)
		}
	}
	if cfg.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		secure.Certificates = []tls.Certificate{pair}
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP2(u.Scheme == "https")
	protocols.SetHTTP1(true)
	tr := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: secure, Protocols: protocols,
		DialContext:         (&net.Dialer{Timeout: cfg.Timeout}).DialContext,
		TLSHandshakeTimeout: cfg.Timeout, ResponseHeaderTimeout: cfg.Timeout, IdleConnTimeout: time.Minute,
	}
	hc := &http.Client{
		Transport: &credentials{tr, cfg},
		// The contract has no redirects. Credentials must not follow one from a proxy.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	base, most := strings.TrimRight(cfg.Server, "/"), connect.WithReadMaxBytes(maxAnswer)
	return &Client{
		Workflows: operatorv1connect.NewWorkflowServiceClient(hc, base, most),
		Workers:   operatorv1connect.NewWorkerServiceClient(hc, base, most),
		Processes: operatorv1connect.NewProcessServiceClient(hc, base, most),
		Access:    operatorv1connect.NewAccessServiceClient(hc, base, most),
		http:      hc,
		base:      base,
	}, nil
}

// maxAnswer is the largest message that a server may send, in bytes after decompression.
// A page of 1000 processes has a few megabytes.
var maxAnswer = 128 << 20 // a test has a smaller one

// SignIn is how people sign in at a server with OpenID Connect.
type SignIn struct {
	Issuer   string   `json:"issuer"`
	ClientID string   `json:"clientId"` // of a public client
	Scopes   []string `json:"scopes"`
}

// SignIn asks the server how people sign in. It needs no credentials. When they cannot, it
// returns an error with the code Unimplemented.
func (c *Client) SignIn(ctx context.Context) (*SignIn, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/ui/login/settings", nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	defer func() { _ = resp.Body.Close() }()
	s := new(SignIn)
	err = json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(s)
	if resp.StatusCode != http.StatusOK || err != nil || s.Issuer == "" || s.ClientID == "" {
		return nil, connect.NewError(connect.CodeUnimplemented,
			fmt.Errorf("people do not sign in at %s with OpenID Connect", c.base))
	}
	return s, nil
}

// Close closes idle connections. Running calls go on.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// IsLoopback reports whether a host is this machine. It does not ask DNS: 127.example.com is a name that
// may lead anywhere.
func IsLoopback(host string) bool {
	return strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
}

// credentials adds the token to every request.
type credentials struct {
	*http.Transport
	cfg Config
}

func (c *credentials) RoundTrip(r *http.Request) (*http.Response, error) {
	token := c.cfg.Token
	switch {
	case c.cfg.TokenSource != nil:
		var err error
		if token, err = c.cfg.TokenSource(r.Context()); err != nil {
			return nil, err
		}
	case c.cfg.TokenFile != "":
		text, err := os.ReadFile(c.cfg.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("token file: %w", err)
		}
		token = strings.TrimSpace(string(text))
	}
	if token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Transport.RoundTrip(r)
	if err == nil && c.cfg.AsOf != nil {
		if at, wrong := time.Parse(time.RFC3339Nano, resp.Header.Get(HeaderAsOf)); wrong == nil {
			c.cfg.AsOf(at, resp.Header.Values(HeaderAway))
		}
	}
	return resp, err
}

// Headers of answers.
const (
	// HeaderAsOf is the header of every answer with the time of its content, in the form of
	// RFC 3339. That time is before the answer while a dependency is away.
	HeaderAsOf = "Lifecycle-As-Of"

	// HeaderAway is a header of every answer while a dependency is away: its name. It comes once
	// for each.
	HeaderAway = "Lifecycle-Away"
)

// Reason returns the reason of an error of the server, one of package operator's Reason
// constants, or "" for any other error.
func Reason(err error) string {
	for d := range details(err) {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

// Fields returns the invalid fields of the request in an error of the server: a
// description by field name. It returns nil for any other error.
func Fields(err error) map[string]string {
	var fields map[string]string
	for d := range details(err) {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, f := range bad.GetFieldViolations() {
				if fields == nil {
					fields = map[string]string{}
				}
				fields[f.GetField()] = f.GetDescription()
			}
		}
	}
	return fields
}

// Message returns the text of an error without its code.
func Message(err error) string {
	var ce *connect.Error
	if errors.As(err, &ce) {
		return ce.Message()
	}
	return err.Error()
}

func details(err error) iter.Seq[any] {
	return func(yield func(any) bool) {
		var ce *connect.Error
		if !errors.As(err, &ce) {
			return
		}
		for _, d := range ce.Details() {
			if v, err := d.Value(); err == nil && !yield(v) {
				return
			}
		}
	}
}
