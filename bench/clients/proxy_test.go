package clients

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
	"time"
)

// Proxy is a program in front of the servers.
type Proxy struct {
	Name    string
	Program string
	// Config is a template in testdata/proxies. In Command and Check, CONFIG is the file that is
	// made of it, and DIR a folder for the proxy alone.
	Config  string
	Command []string
	Checks  bool // with health checks, or what the proxy has of them
	H2      bool // HTTP/2 to the servers
	GRPC    bool
	// Errors matches the lines of its log about requests that failed, with the reason as
	// the first submatch. Refused matches the reasons that are refused connections.
	Errors, Refused *regexp.Regexp
}

// Proxies returns the proxies, each with health checks and without.
func Proxies() []Proxy {
	nginx := Proxy{
		Name: "nginx", Program: "/usr/sbin/nginx", Config: "nginx.conf",
		Command: []string{"/usr/sbin/nginx", "-p", "DIR", "-c", "CONFIG", "-g", "daemon off;"},
		Errors:  regexp.MustCompile(`\[error\] [^:]*: \*\d+ (.*?)(?: while |, client)`),
		Refused: regexp.MustCompile(`Connection refused|no live upstreams`),
	}
	haproxy := Proxy{
		Name: "HAProxy", Program: "/usr/sbin/haproxy", Config: "haproxy.cfg",
		Command: []string{"/usr/sbin/haproxy", "-db", "-f", "CONFIG"},
		// Status and state at the end, such as 503 and SC--.
		Errors:  regexp.MustCompile(` (50\d) \d+ - - ([A-Za-z-]{4}) `),
		Refused: regexp.MustCompile(`503 SC--`),
	}
	apache := Proxy{
		Name: "Apache", Program: "/usr/sbin/apache2", Config: "apache.conf",
		Command: []string{"/usr/sbin/apache2", "-f", "CONFIG", "-DFOREGROUND"},
		Errors:  regexp.MustCompile(`:error\].*?((?:\(\d+\)[^:]*: )?AH\d+: [^0-9]*)`),
		Refused: regexp.MustCompile(`Connection refused: AH\d+: (http|H)`),
	}
	caddy := Proxy{
		Name: "Caddy", Program: "caddy", Config: "Caddyfile",
		Command: []string{"caddy", "run", "--config", "CONFIG", "--adapter", "caddyfile"},
		Errors:  regexp.MustCompile(`"logger":"http\.log\.error[^"]*","msg":"([^"]*)"`),
		Refused: regexp.MustCompile(`connection refused`),
	}
	nginxGRPC := nginx
	nginxGRPC.Name, nginxGRPC.GRPC = "nginx gRPC", true
	haproxyH2 := haproxy
	haproxyH2.Name, haproxyH2.H2 = "HAProxy h2", true
	apacheH2 := apache
	apacheH2.Name, apacheH2.H2 = "Apache h2", true
	caddyH2 := caddy
	caddyH2.Name, caddyH2.H2 = "Caddy h2", true
	var all []Proxy
	for _, p := range []Proxy{nginx, nginxGRPC, haproxy, haproxyH2, apache, apacheH2, caddy, caddyH2} {
		with := p
		with.Checks = true
		all = append(all, with, p)
	}
	return all
}

// Scenario returns the scenario of old and new server behind the proxy.
func (p Proxy) Scenario() Scenario {
	name := p.Name + " without checks"
	if p.Checks {
		name = p.Name + " with checks"
	}
	return Scenario{Name: name, Proxy: &p}
}

// clients reports whether a client sends requests through the proxy.
func (p Proxy) clients(c Client) bool {
	switch {
	case p.GRPC:
		return c.Name == "gRPC Go clear"
	case p.H2:
		return c.Name == "Go h1" // h2load does not understand all that HAProxy answers then
	}
	return c.Name == "Go h1" || c.Name == "h2load h1"
}

// apacheModules is what Apache needs to be a balancer.
var apacheModules = []string{
	"mpm_event", "authz_core", "slotmem_shm", "proxy", "proxy_http", "http2", "proxy_http2",
	"proxy_balancer", "lbmethod_byrequests", "proxy_hcheck",
}

// proxy is a Proxy that runs.
type proxy struct {
	Proxy
	addr string
	log  string // file
	cmd  *exec.Cmd
}

// startProxy starts a proxy in front of both servers. name names its folder.
func (b *bench) startProxy(ctx context.Context, p Proxy, name string, old, next *server) (*proxy, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(b.output, name)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return nil, err
	}
	run := &proxy{Proxy: p, addr: addr, log: filepath.Join(dir, "proxy.log")}
	config := filepath.Join(dir, p.Config)
	if err := run.configure(filepath.Join(b.testdata, "proxies", p.Config), config, dir, old, next); err != nil {
		return nil, err
	}
	args := make([]string, len(p.Command))
	for i, arg := range p.Command {
		args[i] = strings.NewReplacer("CONFIG", config, "DIR", dir).Replace(arg)
	}
	out, err := os.OpenFile(run.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the proxy has its own
	run.cmd = exec.CommandContext(ctx, args[0], args[1:]...)
	run.cmd.Stdout, run.cmd.Stderr = out, out
	run.cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	group(run.cmd)
	if err := run.cmd.Start(); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
			return run, nil
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(run.log)
			return nil, errors.Join(fmt.Errorf("start %s: %w: %s", name, err, tail(string(text))), run.close())
		}
	}
}

// configure writes the configuration.
func (p *proxy) configure(from, to, dir string, old, next *server) error {
	t, err := template.ParseFiles(from)
	if err != nil {
		return err
	}
	_, oldHealth, err := net.SplitHostPort(old.Health)
	if err != nil {
		return err
	}
	_, newHealth, err := net.SplitHostPort(next.Health)
	if err != nil {
		return err
	}
	scheme := "http"
	if p.H2 {
		scheme = "h2c"
	}
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	err = t.Execute(f, map[string]any{
		"Addr":          p.addr,
		"Dir":           dir,
		"Old":           old.Addr,
		"New":           next.Addr,
		"OldHealthPort": oldHealth,
		"NewHealthPort": newHealth,
		"Scheme":        scheme,
		"Checks":        p.Checks,
		"H2":            p.H2,
		"GRPC":          p.GRPC,
		"Modules":       apacheModules,
	})
	return errors.Join(err, f.Close())
}

func (p *proxy) close() error {
	_ = killGroup(p.cmd)
	_ = p.cmd.Wait() // killed
	return nil
}

// logSize returns the size of the log, a moment later.
func (p *proxy) logSize() int64 {
	time.Sleep(20 * time.Millisecond)
	info, err := os.Stat(p.log)
	if err != nil {
		return 0
	}
	return info.Size()
}

// reasons returns why requests failed, as the first bytes of the proxy's log have it, and
// how many of them were refused by a server.
func (p *proxy) reasons(size int64) (reasons map[string]int, refused int, err error) {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return nil, 0, err
	}
	text = text[:min(size, int64(len(text)))]
	reasons = make(map[string]int)
	for _, m := range p.Errors.FindAllStringSubmatch(string(text), -1) {
		reason := numbers.ReplaceAllString(strings.Join(m[1:], " "), "ADDR")
		if p.Refused.MatchString(reason) {
			refused++
		}
		reasons[reason]++
	}
	return reasons, refused, nil
}

var numbers = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// freeAddr returns an address that nothing uses.
func freeAddr() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

// Missing returns why the proxy cannot run here, or "".
func (p Proxy) Missing() string {
	if _, err := exec.LookPath(p.Program); err != nil {
		return fmt.Sprintf("there is no %s here", p.Program)
	}
	return ""
}
