package kube

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// ErrNotInCluster is the error of every request of a client of [New] when the process
// does not run in a pod and [Config] names no API server.
var ErrNotInCluster = errors.New("kube: not in a cluster: KUBERNETES_SERVICE_HOST is not set")

// Config says how to reach the API server, and which pod this process is. The zero
// value is right for a process in a pod.
type Config struct {
	// Host is the URL of the API server, "https://HOST:PORT". Defaults to
	// KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT of the environment, which
	// the kubelet sets. Without them the process is not in a cluster.
	Host string

	// Dir has the files token, ca.crt and namespace of the pod's service account. The
	// client reads the token again for every request and ca.crt for every connection,
	// because the kubelet replaces them. Defaults to where Kubernetes mounts them,
	// /var/run/secrets/kubernetes.io/serviceaccount.
	Dir string

	// Token is a bearer token in place of Dir's.
	Token lifecycle.Secret

	// CA has the certificates in PEM form that the API server's certificate must
	// descend from, in place of Dir's.
	CA []byte

	// Namespace of the pod. Defaults to the namespace that Dir names.
	Namespace string

	// Pod is the name of the pod. Defaults to POD_NAME of the environment, for which a
	// manifest uses the downward API, and else to the host's name. With hostNetwork
	// and with a hostname of its own the pod needs POD_NAME.
	Pod string

	// Timeout bounds each request, and for a watch the time until the answer begins.
	// Defaults to 5 s.
	Timeout time.Duration

	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Client asks the API server. Its methods may be called concurrently.
type Client struct {
	cfg  Config
	http *http.Client
	none error // why there is no API server to ask; nil when there is one
}

const mountedDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// New returns a client. It sends no request. It returns an error for a Config that makes
// no sense. Where the process cannot ask, it returns a client whose requests fail with
// the reason, so that a program runs there too: outside a cluster with
// [ErrNotInCluster], and in a pod without a token with an error that names the file.
func New(cfg Config) (*Client, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Timeout < 0 {
		return nil, fmt.Errorf("kube: Timeout is %v, want 0 (its default) or more", cfg.Timeout)
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, 5*time.Second)
	cfg.Dir = cmp.Or(cfg.Dir, mountedDir)
	if cfg.Pod = cmp.Or(cfg.Pod, os.Getenv("POD_NAME")); cfg.Pod == "" {
		cfg.Pod, _ = os.Hostname() // without a name the requests for the pod say so
	}
	if cfg.Host == "" {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || port == "" {
			return &Client{cfg: cfg, none: ErrNotInCluster}, nil
		}
		cfg.Host = "https://" + net.JoinHostPort(host, port)
	}
	u, err := url.Parse(cfg.Host)
	isHTTP := err == nil && (u.Scheme == "https" || u.Scheme == "http")
	if !isHTTP || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("kube: Host is %q, want https://HOST:PORT", cfg.Host)
	}
	cfg.Host = strings.TrimRight(cfg.Host, "/")
	c := &Client{cfg: cfg}
	if cfg.CA != nil {
		if _, err := c.roots(); err != nil {
			return nil, err
		}
	}
	c.none = c.readAccount(strings.HasPrefix(cfg.Host, "https://"))
	c.http = &http.Client{
		Transport: c.transport(),
		// The token goes to the API server and nowhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// unmounted is why a file of the service account may be missing.
const unmounted = " (is automountServiceAccountToken false?)"

// readAccount reads what the Config does not give from the files of the service account.
func (c *Client) readAccount(secure bool) error {
	if c.cfg.Namespace == "" {
		name, err := os.ReadFile(filepath.Join(c.cfg.Dir, "namespace"))
		if err != nil {
			return fmt.Errorf("kube: the pod's namespace: %w"+unmounted, err)
		}
		c.cfg.Namespace = strings.TrimSpace(string(name))
	}
	if secure {
		if _, err := c.roots(); err != nil {
			return err
		}
	}
	_, err := c.token()
	return err
}

// roots returns the authorities of the API server, which the kubelet may have replaced.
func (c *Client) roots() (*x509.CertPool, error) {
	pem, from := c.cfg.CA, "CA"
	if pem == nil {
		from = filepath.Join(c.cfg.Dir, "ca.crt")
		var err error
		if pem, err = os.ReadFile(from); err != nil {
			return nil, fmt.Errorf("kube: the API server's authority: %w"+unmounted, err)
		}
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("kube: the API server's authority: %s has no certificate in PEM form", from)
	}
	return roots, nil
}

// transport speaks HTTP/1.1: a request that times out takes its connection with it.
// On HTTP/2 the next request would wait on the same dead connection.
func (c *Client) transport() *http.Transport {
	// A dial goes on when its request has ended, and has a limit of its own, which is
	// longer so that the request says why it failed.
	dialer := &net.Dialer{Timeout: 2 * c.cfg.Timeout}
	t := &http.Transport{
		Protocols:           new(http.Protocols), // each request has its own timeout
		IdleConnTimeout:     30 * time.Second,
		MaxIdleConnsPerHost: 2,
		DialContext:         dialer.DialContext,
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			roots, err := c.roots()
			if err != nil {
				return nil, err
			}
			secure := tls.Dialer{NetDialer: dialer, Config: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
			return secure.DialContext(ctx, network, addr) // the limit is for the handshake too
		},
	}
	t.Protocols.SetHTTP1(true)
	return t
}

// Close closes idle connections. The client can be used further.
func (c *Client) Close() {
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
}

// Namespace returns the namespace of the pod, or "" outside a cluster.
func (c *Client) Namespace() string { return c.cfg.Namespace }

// Pod returns the name of the pod, or the host's name outside a cluster.
func (c *Client) Pod() string { return c.cfg.Pod }

// token returns the bearer token, which the kubelet may have replaced.
func (c *Client) token() (string, error) {
	if c.cfg.Token != "" {
		return string(c.cfg.Token), nil
	}
	file := filepath.Join(c.cfg.Dir, "token")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("kube: the service account's token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("kube: the service account's token: %s is empty", file)
	}
	return token, nil
}

// object is what a request is about.
type object struct {
	group, version, resource string // group is "" for the core API
	namespace, name          string // name is "" for a collection
	sub                      string // a subresource, such as "status"
}

func (o object) path() string {
	base := "/apis/" + o.group
	if o.group == "" {
		base = "/api"
	}
	path := base + "/" + o.version + "/namespaces/" + url.PathEscape(o.namespace) + "/" + o.resource
	if o.name != "" {
		path += "/" + url.PathEscape(o.name)
	}
	if o.sub != "" {
		path += "/" + o.sub
	}
	return path
}

// rule is the resource in a Role: "leases" or "evictions/status".
func (o object) rule() string {
	if o.sub == "" {
		return o.resource
	}
	return o.resource + "/" + o.sub
}

// String names the object for people: "leases.coordination.k8s.io demo/sync".
func (o object) String() string {
	s := o.rule()
	if o.group != "" {
		s += "." + o.group
	}
	if s += " " + o.namespace; o.name != "" {
		s += "/" + o.name
	}
	return s
}

// Error is an answer of the API server that is not a success. Its text names the
// object, and for a refusal the rule that the pod's Role lacks.
type Error struct {
	Verb    string // of the Role's rule: get, list, watch, create, update, patch
	Object  string // "leases.coordination.k8s.io demo/sync"
	Status  int    // of HTTP; 0 when a watch has reported an error without one
	Reason  string // the API's: "Conflict", "Expired" …
	Message string // the API's
	rule    string
}

// Error names the verb, the object, the status and the missing rule.
func (e *Error) Error() string {
	s := fmt.Sprintf("kube: %s %s: %d %s", e.Verb, e.Object, e.Status, http.StatusText(e.Status))
	if e.Status == 0 {
		s = fmt.Sprintf("kube: %s %s: the API server reports an error without a code", e.Verb, e.Object)
	}
	if e.Message != "" {
		s += ": " + e.Message
	}
	switch e.Status {
	case http.StatusForbidden:
		s += "; the Role of the pod's service account lacks the rule " + e.rule
	case http.StatusUnauthorized:
		s += "; the API server does not accept the service account's token"
	}
	return s
}

// status returns the HTTP status of the API server's answer, or 0 when err is not such
// an answer.
func status(err error) int {
	var e *Error
	if errors.As(err, &e) {
		return e.Status
	}
	return 0
}

// do sends one request and decodes the answer into out.
func (c *Client) do(ctx context.Context, method, verb string, o object, query url.Values, body, out any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.Timeout, fmt.Errorf("no answer in %v", c.cfg.Timeout))
	defer cancel()
	resp, err := c.send(ctx, method, verb, o, query, body)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("kube: %s %s: read the answer: %w", verb, o, because(ctx, err))
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("kube: %s %s: the answer is not what the API describes: %w", verb, o, err)
	}
	return nil
}

// send sends one request. The caller closes the body of an answer that is a success.
func (c *Client) send(ctx context.Context, method, verb string, o object, query url.Values, body any) (*http.Response, error) {
	if c.none != nil {
		return nil, c.none
	}
	var in io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("kube: %s %s: %w", verb, o, err)
		}
		in = bytes.NewReader(text)
	}
	target := c.cfg.Host + o.path()
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, in)
	if err != nil {
		return nil, fmt.Errorf("kube: %s %s: %w", verb, o, err)
	}
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "lifecycle-go")
	switch {
	case method == http.MethodPatch:
		req.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	case body != nil:
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("kube: %s %s: %w", verb, o, because(ctx, err))
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer func() { _ = resp.Body.Close() }()
		return nil, refused(resp, verb, o)
	}
	return resp, nil
}

// refused makes an error of an answer that is not a success.
func refused(resp *http.Response, verb string, o object) error {
	var answer struct{ Reason, Message string }
	text, _ := io.ReadAll(resp.Body) // what can be read says more than nothing
	if json.Unmarshal(text, &answer) != nil {
		answer.Message = string(text[:min(len(text), 256)]) // a proxy's page, for example
	}
	return newError(verb, o, resp.StatusCode, answer.Reason, answer.Message)
}

func newError(verb string, o object, status int, reason, message string) *Error {
	return &Error{
		Verb:    verb,
		Object:  o.String(),
		Status:  status,
		Reason:  reason,
		Message: message,
		rule:    fmt.Sprintf("{apiGroups: [%q], resources: [%q], verbs: [%q]} in the namespace %s", o.group, o.rule(), verb, o.namespace),
	}
}

// because returns the reason of a failed request: the cause of a context that has
// ended, or err without the URL, which the caller names in words, and without the port
// of this side, which differs for each connection: a log has the same reason once.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Source != nil {
		same := *op
		same.Source = nil
		return &same
	}
	return err
}

// once returns a function that logs why a feature does nothing, and the same reason
// only once.
func (c *Client) once(text string) func(error) {
	said := ""
	return func(err error) {
		if reason := err.Error(); reason != said {
			said = reason
			c.cfg.Logger.Warn(text, "because", reason)
		}
	}
}
