package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1/operatorv1connect"
)

const defaultServer = "http://127.0.0.1:8090"

// remote is how to reach an operator server: the flags of every command that
// asks one, each with a variable of the environment.
type remote struct {
	server, tokenFile         string
	caFile, certFile, keyFile string
	plaintextToken            bool
	timeout                   time.Duration

	flags *pflag.FlagSet
}

// variables are the flags of a connection and what each is called in the
// environment.
var variables = map[string]string{
	"server":          "LIFECYCLECTL_SERVER",
	"token-file":      "LIFECYCLECTL_TOKEN_FILE",
	"ca-file":         "LIFECYCLECTL_CA_FILE",
	"cert-file":       "LIFECYCLECTL_CERT_FILE",
	"key-file":        "LIFECYCLECTL_KEY_FILE",
	"plaintext-token": "LIFECYCLECTL_PLAINTEXT_TOKEN",
	"timeout":         "LIFECYCLECTL_TIMEOUT",
}

// register gives cmd, and the commands below it, the flags.
func (r *remote) register(cmd *cobra.Command) {
	f := pflag.NewFlagSet("connection", pflag.ContinueOnError)
	f.StringVar(&r.server, "server", defaultServer, "`URL` of the operator server")
	f.StringVar(&r.tokenFile, "token-file", "", "`file` with the bearer token, and nothing else")
	f.StringVar(&r.caFile, "ca-file", "", "`file` with the certificates (PEM) that vouch for the server; those of the system when there is none")
	f.StringVar(&r.certFile, "cert-file", "", "`file` with the client's certificate (PEM)")
	f.StringVar(&r.keyFile, "key-file", "", "`file` with the client's key (PEM)")
	f.BoolVar(&r.plaintextToken, "plaintext-token", false, "send the token without TLS to another machine")
	f.DurationVar(&r.timeout, "timeout", 30*time.Second, "the longest `time` that one call may take")
	cmd.PersistentFlags().AddFlagSet(f)
	r.flags = f
}

// environment sets the flags that were not given and have a variable.
func (r *remote) environment() error {
	var fault error
	r.flags.VisitAll(func(f *pflag.Flag) {
		value, ok := os.LookupEnv(variables[f.Name])
		if !ok || value == "" || f.Changed || fault != nil {
			return
		}
		if err := r.flags.Set(f.Name, value); err != nil {
			fault = fmt.Errorf("%s is %q: %w", variables[f.Name], value, err)
		}
	})
	return fault
}

// api is an operator server.
type api struct {
	url       string
	http      *http.Client
	workflows operatorv1connect.WorkflowServiceClient
	workers   operatorv1connect.WorkerServiceClient
	processes operatorv1connect.ProcessServiceClient
	access    operatorv1connect.AccessServiceClient
}

// close closes the idle connections; the calls have returned by then.
func (a *api) close() { a.http.CloseIdleConnections() }

// open prepares the clients. It connects to nothing.
func (r *remote) open() (*api, error) {
	if err := r.environment(); err != nil {
		return nil, err
	}
	base, err := parseServer(r.server)
	if err != nil {
		return nil, err
	}
	if r.timeout <= 0 {
		return nil, fmt.Errorf("--timeout is %v: want more than 0", r.timeout)
	}
	tlsConfig, err := r.tls(base)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: time.Minute,
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // a token follows no redirect
	}}
	if r.tokenFile != "" {
		if base.Scheme == "http" && !loopback(base.Hostname()) && !r.plaintextToken {
			return nil, fmt.Errorf("the token would go to %s unencrypted: want https, or --plaintext-token", base.Host)
		}
		if _, err := readToken(r.tokenFile); err != nil { // now, not with the first call
			return nil, err
		}
		client.Transport = bearer{r.tokenFile, transport}
	}
	limit := connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			ctx, cancel := context.WithTimeout(ctx, r.timeout)
			defer cancel()
			return next(ctx, req)
		}
	}))
	address := strings.TrimSuffix(base.String(), "/")
	return &api{
		url: address, http: client,
		workflows: operatorv1connect.NewWorkflowServiceClient(client, address, limit),
		workers:   operatorv1connect.NewWorkerServiceClient(client, address, limit),
		processes: operatorv1connect.NewProcessServiceClient(client, address, limit),
		access:    operatorv1connect.NewAccessServiceClient(client, address, limit),
	}, nil
}

// parseServer reads a URL. One without a scheme is http on this machine and
// https elsewhere.
func parseServer(text string) (*url.URL, error) {
	wrong := func(why string) (*url.URL, error) {
		return nil, fmt.Errorf("--server is %q: %s; want a URL such as %s", text, why, defaultServer)
	}
	full := text
	if !strings.Contains(text, "://") {
		full = "https://" + text
		if u, err := url.Parse(full); err == nil && loopback(u.Hostname()) {
			full = "http://" + text
		}
	}
	u, err := url.Parse(full)
	switch {
	case err != nil:
		return wrong("it cannot be read")
	case u.Scheme != "http" && u.Scheme != "https":
		return wrong("it is neither http nor https")
	case u.Hostname() == "":
		return wrong("it has no host")
	case u.User != nil:
		return wrong("it has a user's name in it, and credentials belong into --token-file")
	case u.RawQuery != "" || u.Fragment != "":
		return wrong("it has more than an address and a path")
	}
	return u, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

func (r *remote) tls(base *url.URL) (*tls.Config, error) {
	if base.Scheme != "https" {
		if r.caFile != "" || r.certFile != "" || r.keyFile != "" {
			return nil, fmt.Errorf("--server is %s and certificates are given: want https", base)
		}
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if r.caFile != "" {
		text, err := os.ReadFile(r.caFile)
		if err != nil {
			return nil, fmt.Errorf("--ca-file: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--ca-file: %s has no certificate in PEM", r.caFile)
		}
	}
	switch {
	case r.certFile != "" && r.keyFile != "":
		pair, err := tls.LoadX509KeyPair(r.certFile, r.keyFile)
		if err != nil {
			return nil, fmt.Errorf("--cert-file and --key-file: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	case r.certFile != "" || r.keyFile != "":
		return nil, errors.New("--cert-file and --key-file belong together: one is missing")
	}
	return c, nil
}

// bearer adds the token to every request. The file is read each time, so that a
// watch that lasts goes on with a token that was replaced.
type bearer struct {
	file string
	next *http.Transport
}

func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	token, err := readToken(b.file)
	if err != nil {
		return nil, &failure{status: exitUsage, err: err}
	}
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+token)
	return b.next.RoundTrip(req)
}

func (b bearer) CloseIdleConnections() { b.next.CloseIdleConnections() }

func readToken(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	found := strings.Fields(string(text))
	if len(found) != 1 {
		return "", fmt.Errorf("--token-file: %s has %d words: want the token and nothing else", file, len(found))
	}
	if strings.ContainsFunc(found[0], func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "", fmt.Errorf("--token-file: the token in %s has characters that no token has", file)
	}
	return found[0], nil
}
