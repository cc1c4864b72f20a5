package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
)

const defaultServer = "http://127.0.0.1:8090"

// remote is how to reach an operator server: the flags of every command that
// calls one, each with an environment variable.
type remote struct {
	context                   string
	server, tokenFile         string
	caFile, certFile, keyFile string
	plaintextToken            bool
	timeout                   time.Duration
	anonymous                 bool // without the login at the server

	flags *pflag.FlagSet
}

// variables are the flags of a connection and the environment variable of
// each.
var variables = map[string]string{
	"context":         "LIFECYCLECTL_CONTEXT",
	"server":          "LIFECYCLECTL_SERVER",
	"token-file":      "LIFECYCLECTL_TOKEN_FILE",
	"ca-file":         "LIFECYCLECTL_CA_FILE",
	"cert-file":       "LIFECYCLECTL_CERT_FILE",
	"key-file":        "LIFECYCLECTL_KEY_FILE",
	"plaintext-token": "LIFECYCLECTL_PLAINTEXT_TOKEN",
	"timeout":         "LIFECYCLECTL_TIMEOUT",
}

// register adds the flags to cmd and the commands below it.
func (r *remote) register(cmd *cobra.Command) {
	f := pflag.NewFlagSet("connection", pflag.ContinueOnError)
	f.StringVar(&r.context, "context", "", "`name` of a context of the configuration file; see contexts")
	f.StringVar(&r.server, "server", defaultServer, "`URL` of the operator server")
	f.StringVar(&r.tokenFile, "token-file", "", "`file` with only the bearer token")
	f.StringVar(&r.caFile, "ca-file", "", "`file` with the certificates (PEM) that may sign the server's; default: the system's")
	f.StringVar(&r.certFile, "cert-file", "", "`file` with the client's certificate (PEM)")
	f.StringVar(&r.keyFile, "key-file", "", "`file` with the client's key (PEM)")
	f.BoolVar(&r.plaintextToken, "plaintext-token", false, "send the token without TLS to another machine")
	f.DurationVar(&r.timeout, "timeout", 30*time.Second, "the maximum `time` to connect, and until an answer begins")
	cmd.PersistentFlags().AddFlagSet(f)
	r.flags = f
}

// environment sets the flags that were not given and whose variable is set.
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
	*client.Client
	url  string
	asOf atomic.Pointer[time.Time] // from when the last answer is; nil when it is not known

	config client.Config
}

// open prepares the client. It does not connect.
func (r *remote) open() (*api, error) {
	if err := r.environment(); err != nil {
		return nil, err
	}
	if err := r.choose(); err != nil {
		return nil, err
	}
	base, err := parseServer(r.server)
	if err != nil {
		return nil, err
	}
	switch {
	case r.timeout <= 0:
		return nil, fmt.Errorf("--timeout is %v: want more than 0", r.timeout)
	case r.tokenFile != "" && base.Scheme == "http" && !loopback(base.Hostname()) && !r.plaintextToken:
		return nil, fmt.Errorf("the token would go to %s unencrypted: want https, or --plaintext-token", base.Host)
	case base.Scheme == "http" && (r.caFile != "" || r.certFile != "" || r.keyFile != ""):
		return nil, fmt.Errorf("--server is %s and certificates are given: want https", base)
	case (r.certFile == "") != (r.keyFile == ""):
		return nil, errors.New("--cert-file and --key-file belong together: one is missing")
	}
	if r.tokenFile != "" {
		if err := checkToken(r.tokenFile); err != nil {
			return nil, err
		}
	}
	address := strings.TrimSuffix(base.String(), "/")
	a := &api{url: address}
	a.config = client.Config{
		Server: address, TokenFile: r.tokenFile, CAFile: r.caFile, CertFile: r.certFile, KeyFile: r.keyFile,
		Insecure: r.plaintextToken, Timeout: r.timeout, AsOf: func(at time.Time) { a.asOf.Store(&at) },
	}
	safe := base.Scheme == "https" || loopback(base.Hostname()) || r.plaintextToken
	if r.tokenFile == "" && r.certFile == "" && !r.anonymous && safe {
		l, err := readLogin(address)
		if err != nil {
			return nil, err
		}
		if l != nil {
			a.config.TokenSource = l.token
		}
	}
	c, err := client.New(a.config)
	if err != nil {
		return nil, err
	}
	a.Client = c
	return a, nil
}

// parseServer parses a URL. Without a scheme it is http on this machine and
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
		text = u.Redacted()
		return wrong("it has a user's name in it: credentials belong in --token-file")
	case u.RawQuery != "" || u.Fragment != "":
		return wrong("it has more than an address and a path")
	}
	return u, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// checkToken checks a token file before the first call.
func checkToken(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--token-file: %w", err)
	}
	found := strings.Fields(string(text))
	if len(found) != 1 {
		return fmt.Errorf("--token-file: %s has %d words: want only the token", file, len(found))
	}
	if strings.ContainsFunc(found[0], func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return fmt.Errorf("--token-file: the token in %s has characters that are not valid in a token", file)
	}
	return nil
}

// staleAfter is how old an answer may be without a word about it.
const staleAfter = 5 * time.Second

// stale says that the last answer is old, "" when it is not.
func (a *api) stale() string {
	at := a.asOf.Load()
	if at == nil || time.Since(*at) < staleAfter {
		return ""
	}
	return fmt.Sprintf("this is as of %s, %v ago: a service behind the server is away; lifecyclectl doctor names it", at.UTC().Format(time.RFC3339), time.Since(*at).Round(time.Second))
}
