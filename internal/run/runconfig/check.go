package runconfig

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"time"
)

// Check is a check like the kubelet's probes:
//
//	http://HOST[:PORT]/PATH, https://…  a GET whose answer is 200 to 399; redirects are not followed
//	tcp://HOST:PORT                     a connection can be made
//	exec:PROGRAM ARG…                   the program exits with 0; words are split at blanks, and there is no shell
//
// Like the kubelet, it does not verify the certificate of an https server.
type Check struct {
	text string
	kind string // http, tcp, exec
	addr string
	args []string
}

// ParseCheck parses a Check. The error says what is wrong and what would be
// right.
func ParseCheck(text string) (Check, error) {
	if rest, ok := strings.CutPrefix(text, "exec:"); ok {
		args := strings.Fields(rest)
		if len(args) == 0 {
			return Check{}, fmt.Errorf("%q names no program: want exec:PROGRAM ARG…", text)
		}
		return Check{text: text, kind: "exec", args: args}, nil
	}
	if !strings.Contains(text, "://") { // url.Parse would speak of a colon in a path
		return Check{}, fmt.Errorf("%q is not a check: want http://…, https://…, tcp://HOST:PORT or exec:PROGRAM ARG…", text)
	}
	u, err := url.Parse(text)
	if err != nil {
		return Check{}, fmt.Errorf("%q: %w", text, errors.Unwrap(err))
	}
	switch u.Scheme {
	case "http", "https":
		if u.Hostname() == "" {
			return Check{}, fmt.Errorf("%q has no host: want %s://127.0.0.1:PORT/PATH", text, u.Scheme)
		}
		return Check{text: text, kind: "http"}, nil
	case "tcp":
		if u.Hostname() == "" || u.Port() == "" || (u.Path != "" && u.Path != "/") {
			return Check{}, fmt.Errorf("%q is not tcp://HOST:PORT", text)
		}
		return Check{text: text, kind: "tcp", addr: u.Host}, nil
	}
	return Check{}, fmt.Errorf("%q is not a check: want http://…, https://…, tcp://HOST:PORT or exec:PROGRAM ARG…", text)
}

// Name is the check's name on a health plane.
func (c Check) Name() string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("-._~:@", r):
			return r
		}
		return '-'
	}, c.text)
	return name[:min(len(name), 120)]
}

// Port returns the TCP port that the check asks, or 0 for a program.
func (c Check) Port() int {
	addr := c.addr
	if u, err := url.Parse(c.text); err == nil && c.kind == "http" {
		addr = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), u.Scheme))
	}
	_, service, _ := net.SplitHostPort(addr) // none for a program
	port, _ := net.LookupPort("tcp", service)
	return port
}

// Dial makes a connection, as [net.Dialer.DialContext].
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Ask makes the check, and returns nil when it succeeds. ctx bounds it.
func (c Check) Ask(ctx context.Context) error { return c.AskBy(ctx, new(net.Dialer).DialContext) }

// AskBy is Ask with connections that dial makes.
func (c Check) AskBy(ctx context.Context, dial Dial) error { return c.ask(ctx, http.MethodGet, dial) }

// Tell is Ask with a POST.
func (c Check) Tell(ctx context.Context) error {
	return c.ask(ctx, http.MethodPost, new(net.Dialer).DialContext)
}

func (c Check) ask(ctx context.Context, method string, dial Dial) error {
	switch c.kind {
	case "http":
		return c.askHTTP(ctx, method, dial)
	case "tcp":
		conn, err := dial(ctx, "tcp", c.addr)
		if err != nil {
			return err
		}
		return conn.Close()
	default:
		return c.askProgram(ctx)
	}
}

func (c Check) askHTTP(ctx context.Context, method string, dial Dial) error {
	req, err := http.NewRequestWithContext(ctx, method, c.text, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "lifecycle-run")
	client := http.Client{
		Transport:     transport(dial),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 200)) // has the reason of a failure
	if resp.StatusCode < 200 || resp.StatusCode > 399 {
		return fmt.Errorf("%s %s: %s: %s", method, c.text, resp.Status, strings.TrimSpace(string(body)))
	}
	return nil
}

func (c Check) askProgram(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...) //nolint:gosec // the operator configured the program
	cmd.WaitDelay = time.Second
	out := &head{left: 200}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("%s: %w: %s", c.args[0], err, strings.TrimSpace(out.String()))
	}
	return nil
}

// head keeps the first bytes that are written to it.
type head struct {
	strings.Builder
	left int
}

func (h *head) Write(p []byte) (int, error) {
	n := min(h.left, len(p))
	h.left -= n
	h.Builder.Write(p[:n])
	return len(p), nil
}

// transport opens a connection for each check, so that no check keeps one
// open during the program's drain. It uses no proxy.
func transport(dial Dial) *http.Transport {
	return &http.Transport{
		DialContext:       dial,
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a health check of a neighbour in the same pod, as the kubelet's
	}
}
