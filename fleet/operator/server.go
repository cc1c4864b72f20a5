package operator

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/pleme-io/lifecycle-go/fleet/internal/eventlog"
	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/dashboard"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/feed"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Config configures a Server. An area that is nil is not served: its methods are
// Unimplemented, and the dashboard leaves it out.
type Config struct {
	// Addr is where [Server.HTTPServer] listens. Defaults to 127.0.0.1:8090. An
	// address that other machines can reach needs Auth.
	Addr string `koanf:"addr"`

	Workflows Workflows `koanf:"-"`
	Workers   Workers   `koanf:"-"`
	Processes Processes `koanf:"-"`

	// Dependencies are the services behind the areas: NATS. The server checks them, and
	// says in its answers which one is away, and since when.
	Dependencies []Dependency `koanf:"-"`

	// Auth identifies callers. Without it the server serves only the loopback.
	Auth Authenticator `koanf:"-"`

	// LoopbackRole is the role of every user of this machine when there is no Auth.
	// Defaults to RoleOperator.
	LoopbackRole Role `koanf:"loopback_role"`

	// TLS of [Server.HTTPServer]. Nil is plain HTTP: for the loopback, or behind a
	// proxy that terminates TLS.
	TLS *tls.Config `koanf:"-"`

	// Hosts are the host names of the server, in addition to the loopback's.
	// The server refuses a request whose Host header has another name. When Hosts is
	// empty it accepts any, except on connections of the loopback.
	Hosts []string `koanf:"hosts"`

	// TrustedProxies are the addresses of proxies in front of the server, such as 10.0.0.0/8:
	// the address of a client is then the last one in X-Forwarded-For that is not theirs. The
	// audit has it. By default it is the address of the connection.
	TrustedProxies []string `koanf:"trusted_proxies"`

	// AuditLog keeps every attempt to write, for the audit's list. By default the
	// server remembers the latest 1000; [OpenAuditLog] keeps them in a stream. The server
	// also logs each attempt.
	AuditLog AuditLog `koanf:"-"`

	// SessionKey encrypts the sessions of the dashboard, at least 32 bytes. Replicas
	// with the same key know each other's sessions. Defaults to a random one.
	SessionKey []byte `koanf:"-"`

	// SessionEnds tells the replicas which sessions have ended. By default only the replica
	// knows where a caller has signed out; [OpenSessionEnds] tells all.
	SessionEnds SessionEnds `koanf:"-"`

	// Timeout bounds one call that is not a watch. Defaults to 15 s.
	Timeout time.Duration `koanf:"timeout"`

	// MaxBody is the largest request, in bytes. Defaults to 9 MiB, which is enough for the
	// largest code of a worker; at most 1 GiB. A request of a viewer or an inspector may have
	// 64 KiB. The server refuses a compressed request.
	MaxBody int64 `koanf:"max_body"`

	// Rate is how many requests per second one caller may send, with a burst of five
	// times as many. Defaults to 100.
	Rate float64 `koanf:"rate"`

	// MaxStreams bounds the open watches, and MaxStreamsEach the open watches of one caller.
	// They default to 4000 and 2000.
	MaxStreams     int `koanf:"max_streams"`
	MaxStreamsEach int `koanf:"max_streams_each"`

	// MaxStreamAge is how long a watch may last. Then the client must watch again. Defaults to
	// 15 min. A watch whose caller may no longer call, or has another role, ends within seconds.
	MaxStreamAge time.Duration `koanf:"max_stream_age"`

	// StuckAfter is how long an entity may be in a phase that is not terminal before a
	// diagnosis names it. Defaults to 24 h. HotWrites is how many writes of one entity
	// within a minute it names; defaults to 60.
	StuckAfter time.Duration `koanf:"stuck_after"`
	HotWrites  int           `koanf:"hot_writes"`

	// Links lead from the page of a process to other systems.
	Links []Link `koanf:"links"`

	// Name of the fleet, in the dashboard. Defaults to "fleet".
	Name string `koanf:"name"`

	// Logger defaults to slog.Default().
	Logger *slog.Logger `koanf:"-"`
}

// Server serves the operators' API and the dashboard. All methods may be called
// concurrently.
type Server struct {
	cfg      Config
	log      *slog.Logger
	audit    *audit
	rates    *limiters
	refused  repeatLog
	proxies  []netip.Prefix
	streams  *places
	deps     *dependencies
	sessions *sessions
	readings eventlog.Readings // of logs
	signIn   *oidcAuth         // nil when people do not sign in with OpenID Connect
	handler  http.Handler
	ui       *dashboard.Dashboard

	processes *feed.Feed[*operatorv1.Process] // nil without Processes
	flows     *flows
	store     *store
	diagnosed diagnosed

	stop context.CancelFunc // ends work
	work sync.WaitGroup
}

// New returns a Server; the caller must close it. It returns an error when an
// address that other machines can reach would be served without authentication.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	signIn, err := signInOf(cfg.Auth)
	if err != nil {
		return nil, err
	}
	sessions, err := newSessions(cfg, signIn)
	if err != nil {
		return nil, err
	}
	proxies, err := parseProxies(cfg.TrustedProxies)
	if err != nil {
		return nil, err
	}
	s := &Server{
		diagnosed: diagnosed{sem: make(chan struct{}, 1)},

		cfg:      cfg,
		log:      cfg.Logger,
		audit:    &audit{log: cfg.Logger, store: cfg.AuditLog},
		rates:    &limiters{rate: rate.Limit(cfg.Rate), burst: max(1, int(5*cfg.Rate)), by: map[string]*rate.Limiter{}},
		proxies:  proxies,
		streams:  &places{all: cfg.MaxStreams, each: cfg.MaxStreamsEach, by: map[string]int{}},
		sessions: sessions,
		signIn:   signIn,
	}
	s.ui, err = dashboard.New(dashboard.Config{
		Name:         cfg.Name,
		Workflows:    workflowService{s},
		Workers:      workerService{s},
		Processes:    processService{s},
		Access:       accessService{s},
		HasWorkflows: cfg.Workflows != nil,
		HasWorkers:   cfg.Workers != nil,
		HasProcesses: cfg.Processes != nil,
		Sessions:     cfg.Auth != nil,
		SignIn:       signIn.name(),
		SignsOutAt:   signIn.signsOutAt,
		Away:         s.away,
		Preview:      preview,
		May:          s.may,
		Links:        s.linksOf,
		Ages:         s.ages,
	})
	if err != nil {
		return nil, fmt.Errorf("operator: dashboard: %w", err)
	}
	inner, err := s.transcoder(s.pages(s.ui))
	if err != nil {
		return nil, fmt.Errorf("operator: %w", err)
	}
	s.handler = s.guard(inner)
	s.deps = &dependencies{list: cfg.Dependencies, log: cfg.Logger, away: map[string]outage{}}
	s.flows = &flows{s: s, types: map[string]*flow{}}
	s.store = newStore(cfg.Processes, func() bool { return len(s.deps.outages()) > 0 })
	if cfg.Processes != nil {
		s.processes = s.newProcessFeed(cfg.Processes)
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	for _, run := range []func(context.Context){s.deps.run, s.store.run} {
		s.work.Go(func() { run(ctx) })
	}
	return s, nil
}

// withDefaults returns the configuration with its defaults, or an error that names the field.
func (c Config) withDefaults() (Config, error) {
	c.Addr = cmp.Or(c.Addr, "127.0.0.1:8090")
	c.LoopbackRole = cmp.Or(c.LoopbackRole, RoleOperator)
	c.Timeout = cmp.Or(c.Timeout, 15*time.Second)
	c.MaxBody = cmp.Or(c.MaxBody, maxCode+1<<20)
	c.Rate = cmp.Or(c.Rate, 100)
	c.MaxStreams = cmp.Or(c.MaxStreams, 4000)
	c.MaxStreamsEach = cmp.Or(c.MaxStreamsEach, min(2000, c.MaxStreams))
	c.MaxStreamAge = cmp.Or(c.MaxStreamAge, 15*time.Minute)
	c.StuckAfter = cmp.Or(c.StuckAfter, 24*time.Hour)
	c.HotWrites = cmp.Or(c.HotWrites, 60)
	c.Name = cmp.Or(c.Name, "fleet")
	if c.AuditLog == nil {
		c.AuditLog = new(auditMemory)
	}
	c.Logger = cmp.Or(c.Logger, slog.Default())
	local := client.IsLoopback(hostname(c.Addr))
	if c.Auth == nil && !local {
		return c, fmt.Errorf("operator: %s can be reached from other machines and there is no Auth: "+
			"set Auth (TokenFile, Certificates, Kubernetes, OIDC), or listen on 127.0.0.1", c.Addr)
	}
	if err := c.Validate(); err != nil {
		return c, fmt.Errorf("operator: %w", err)
	}
	if c.Auth != nil && c.TLS == nil && !local {
		c.Logger.Warn("operator: credentials cross the network unencrypted unless a proxy in front terminates TLS",
			"addr", c.Addr)
	}
	return c, nil
}

// Validate returns an error that names an invalid field. A field that is not set is valid.
// [New] also checks what has no key, such as Auth.
func (c Config) Validate() error {
	switch {
	case !slices.Contains(roles, c.LoopbackRole):
		return fmt.Errorf("LoopbackRole is %q: want viewer, inspector or operator", c.LoopbackRole)
	case c.Timeout < 0:
		return fmt.Errorf("Timeout is %v: want more than 0", c.Timeout)
	case c.MaxStreamAge < 0:
		return fmt.Errorf("MaxStreamAge is %v: want more than 0", c.MaxStreamAge)
	case c.MaxBody < 0 || c.MaxBody > 1<<30:
		return fmt.Errorf("MaxBody is %d: want more than 0, and at most 1 GiB", c.MaxBody)
	case c.Rate < 0 || math.IsNaN(c.Rate) || math.IsInf(c.Rate, 0):
		return fmt.Errorf("Rate is %v: want more than 0", c.Rate)
	case c.MaxStreams < 0 || c.MaxStreamsEach < 0:
		return fmt.Errorf("MaxStreams is %d and MaxStreamsEach %d: want more than 0", c.MaxStreams, c.MaxStreamsEach)
	case c.StuckAfter < 0 || c.HotWrites < 0:
		return fmt.Errorf("StuckAfter is %v and HotWrites %d: want more than 0", c.StuckAfter, c.HotWrites)
	}
	if _, err := parseProxies(c.TrustedProxies); err != nil {
		return err
	}
	for _, l := range c.Links {
		if err := l.check(); err != nil {
			return err
		}
	}
	return nil
}

// Handler returns the handler for everything, with authentication and all limits of
// requests. Use it in your own http.Server. [Server.HTTPServer] has the limits of
// connections too.
func (s *Server) Handler() http.Handler { return s.handler }

// HTTPServer returns a server on Config.Addr, for [lifecycle.App.Serve] or for
// ListenAndServe: HTTP/1.1 and, with TLS or without, HTTP/2, which gRPC needs.
func (s *Server) HTTPServer() *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(s.cfg.TLS == nil)
	return &http.Server{
		Addr:              s.cfg.Addr,
		Handler:           s.handler,
		TLSConfig:         s.cfg.TLS,
		Protocols:         protocols,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 1000,
			// Pings find a peer that has disappeared, and free its watches.
			SendPingTimeout:  30 * time.Second,
			PingTimeout:      15 * time.Second,
			WriteByteTimeout: writeTime,
		},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
}

// Close ends every watch and waits for their sources, and up to 2 s for a Check of a
// Dependency. It does not use its context, and always returns nil. Use it as a shutdown
// hook. A second call does nothing.
func (s *Server) Close(context.Context) error {
	s.stop()
	s.work.Wait()
	s.flows.close()
	if s.processes != nil {
		s.processes.Close()
	}
	return nil
}

// Link leads from the page of a process to another system, such as Grafana or the traces.
type Link struct {
	// Name is what the page shows.
	Name string `koanf:"name"`
	// URL begins with http:// or https://. It may have {service}, {instance}, {host},
	// {version} and {id}. The instance is the id without the service. On Kubernetes the host
	// is the pod. Each is escaped for a query.
	URL string `koanf:"url"`
}

var linkField = regexp.MustCompile(`\{[^}]*\}`)

// check refuses a link that could lead nowhere, or run a script.
func (l Link) check() error {
	u, err := url.Parse(linkField.ReplaceAllString(l.URL, "x"))
	switch {
	case l.Name == "":
		return fmt.Errorf("Links: the link to %q has no Name", l.URL)
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("Links: %s leads to %q, want http:// or https:// and a host", l.Name, l.URL)
	}
	for _, field := range linkField.FindAllString(l.URL, -1) {
		if _, ok := fieldsOf(nil)[field]; !ok {
			return fmt.Errorf("Links: %s has %s, want {service}, {instance}, {host}, {version} or {id}", l.Name, field)
		}
	}
	return nil
}

func fieldsOf(p *operatorv1.Process) map[string]string {
	_, instance, ok := strings.Cut(p.GetId(), ".")
	if !ok {
		instance = p.GetId()
	}
	return map[string]string{
		"{service}":  p.GetService(),
		"{instance}": instance,
		"{host}":     p.GetHost(),
		"{version}":  p.GetVersion(),
		"{id}":       p.GetId(),
	}
}

func (s *Server) linksOf(p *operatorv1.Process) (list []dashboard.Link) {
	fields := fieldsOf(p)
	escaped := func(field string) string { return url.QueryEscape(fields[field]) }
	for _, l := range s.cfg.Links {
		list = append(list, dashboard.Link{Name: l.Name, URL: linkField.ReplaceAllStringFunc(l.URL, escaped)})
	}
	return list
}
