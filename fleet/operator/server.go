package operator

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/pleme-io/lifecycle-go/fleet/internal/eventlog"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/dashboard"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/feed"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Config configures a Server. An area that is nil is not served: its methods are
// Unimplemented, and the dashboard leaves it out.
type Config struct {
	// Addr is where [Server.HTTPServer] listens. Defaults to 127.0.0.1:8090. An
	// address that other machines can reach needs Auth.
	Addr string

	Workflows Workflows
	Workers   Workers
	Processes Processes

	// Dependencies are the services behind the areas: NATS. The server checks them, and
	// says in its answers which one is away, and since when.
	Dependencies []Dependency

	// Auth identifies callers. Without it the server serves only the loopback.
	Auth Authenticator

	// LoopbackRole is the role of every user of this machine when there is no Auth.
	// Defaults to RoleOperator; LoopbackNone refuses them.
	LoopbackRole Role

	// TLS of [Server.HTTPServer]. Nil is plain HTTP: for the loopback, or behind a
	// proxy that terminates TLS.
	TLS *tls.Config

	// Hosts are the host names of the server, in addition to those of the loopback.
	// The server refuses a request whose Host header has another name. When Hosts is
	// empty it accepts any, except on connections of the loopback.
	Hosts []string

	// AuditLog keeps every attempt to write, for the audit's list. By default the
	// server remembers the latest 1000; [OpenAuditLog] keeps them in a stream.
	AuditLog AuditLog

	// Audit sinks get every attempt to write too. The server also logs it.
	Audit []AuditSink

	// SessionKey encrypts the sessions of the dashboard, at least 32 bytes. Replicas
	// with the same key know each other's sessions. Defaults to a random one.
	SessionKey []byte

	// SessionEnds tells the replicas which sessions have ended. By default only the replica
	// knows where a caller has signed out; [OpenSessionEnds] tells all.
	SessionEnds SessionEnds

	// Timeout bounds one call that is not a watch. Defaults to 15 s.
	Timeout time.Duration

	// MaxBody is the largest request, in bytes after decompression. Defaults to 9 MiB,
	// which is enough for the largest code of a worker; at most 1 GiB. A request
	// without code may have 2 MiB, and one of a viewer 64 KiB. All requests that are
	// read or handled at one time may have four times MaxBody together, and those of
	// one caller half of that.
	MaxBody int64

	// Rate is how many requests per second one caller may send, with a burst of five
	// times as many. Defaults to 100.
	Rate float64

	// MaxStreams bounds the open watches, and MaxStreamsEach those of one caller.
	// They default to 4000 and 2000.
	MaxStreams, MaxStreamsEach int

	// MaxStreamAge is how long a watch may last. Then the client must watch again,
	// with valid credentials. Defaults to 15 min.
	MaxStreamAge time.Duration

	// StuckAfter is how long an entity may be in a phase that is not terminal before a
	// diagnosis names it. Defaults to 24 h. HotWrites is how many writes of one entity
	// within a minute it names; defaults to 60.
	StuckAfter time.Duration
	HotWrites  int

	// Links lead from the page of a process to other systems.
	Links []Link

	// Name of the fleet, in the dashboard. Defaults to "fleet".
	Name string

	// Log defaults to slog.Default().
	Log *slog.Logger
}

// LoopbackNone is the LoopbackRole of a server that refuses all requests without
// credentials, also from its own machine.
const LoopbackNone Role = "none"

// Server serves the operators' API and the dashboard. All methods may be called
// concurrently.
type Server struct {
	cfg      Config
	log      *slog.Logger
	audit    *audit
	rates    *limiters // by caller
	failures *limiters // by address, for requests with bad credentials
	trusted  *trusted  // credentials that failures do not limit
	streams  *streamLimit
	bodies   *bodies
	deps     *dependencies
	sessions *sessions
	readings eventlog.Readings // of logs
	signIn   *oidcAuth         // nil when people do not sign in with OpenID Connect
	handler  http.Handler
	ui       *dashboard.Dashboard

	processes *feed.Feed[*operatorv1.Process]
	live      live
	index     *index
	flows     *flows
	diagnosed diagnosed

	mu       sync.Mutex // guards the fields below
	entities map[string]*feed.Feed[*operatorv1.Entity]
	briefs   map[string]*feed.Feed[brief]
	closed   bool
}

// New returns a Server; the caller must close it. It returns an error when an
// address that other machines can reach would be served without authentication.
func New(cfg Config) (*Server, error) {
	if cfg.Addr == "" {
		cfg.Addr = "127.0.0.1:8090"
	}
	if cfg.Auth == nil && !loopbackName(hostname(cfg.Addr)) {
		return nil, fmt.Errorf("operator: %s can be reached from other machines and there is no Auth: set Auth (TokenFile, ClientCertificates, Kubernetes, OIDC), or listen on 127.0.0.1", cfg.Addr)
	}
	switch cfg.LoopbackRole {
	case "":
		cfg.LoopbackRole = RoleOperator
	case LoopbackNone:
		cfg.LoopbackRole = RoleNone
	case RoleViewer, RoleInspector, RoleOperator:
	default:
		return nil, fmt.Errorf("operator: LoopbackRole is %q: want viewer, inspector, operator or none", cfg.LoopbackRole)
	}
	if cfg.Auth == nil && cfg.LoopbackRole == RoleNone {
		return nil, errors.New("operator: LoopbackRole is none and there is no Auth: every request would be refused")
	}
	for _, d := range []struct {
		name     string
		value    *time.Duration
		standard time.Duration
	}{{"Timeout", &cfg.Timeout, 15 * time.Second}, {"MaxStreamAge", &cfg.MaxStreamAge, 15 * time.Minute}} {
		if *d.value < 0 {
			return nil, fmt.Errorf("operator: %s is %v: want more than 0", d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	switch {
	case cfg.MaxBody < 0 || cfg.MaxBody > 1<<30:
		return nil, fmt.Errorf("operator: MaxBody is %d: want at most 1 GiB", cfg.MaxBody)
	case cfg.MaxBody == 0:
		cfg.MaxBody = maxCode + 1<<20
	}
	switch {
	case cfg.Rate < 0 || math.IsNaN(cfg.Rate) || math.IsInf(cfg.Rate, 0):
		return nil, fmt.Errorf("operator: Rate is %v: want more than 0", cfg.Rate)
	case cfg.Rate == 0:
		cfg.Rate = 100
	}
	if cfg.MaxStreams < 0 || cfg.MaxStreamsEach < 0 {
		return nil, fmt.Errorf("operator: MaxStreams is %d and MaxStreamsEach %d: want more than 0", cfg.MaxStreams, cfg.MaxStreamsEach)
	}
	if cfg.MaxStreams == 0 {
		cfg.MaxStreams = 4000
	}
	if cfg.MaxStreamsEach == 0 {
		cfg.MaxStreamsEach = min(2000, cfg.MaxStreams)
	}
	if cfg.StuckAfter < 0 || cfg.HotWrites < 0 {
		return nil, fmt.Errorf("operator: StuckAfter is %v and HotWrites %d: want more than 0", cfg.StuckAfter, cfg.HotWrites)
	}
	cfg.StuckAfter, cfg.HotWrites = cmp.Or(cfg.StuckAfter, 24*time.Hour), cmp.Or(cfg.HotWrites, 60)
	if cfg.Name == "" {
		cfg.Name = "fleet"
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Auth != nil && cfg.TLS == nil && !loopbackName(hostname(cfg.Addr)) {
		cfg.Log.Warn("operator: credentials cross the network unencrypted unless a proxy in front terminates TLS", "addr", cfg.Addr)
	}
	if cfg.AuditLog == nil {
		cfg.AuditLog = new(auditMemory)
	}
	sealed, err := newSessions(cfg.SessionKey)
	if err != nil {
		return nil, err
	}
	sealed.ends, sealed.log = cfg.SessionEnds, cfg.Log
	signIn, err := signInOf(cfg.Auth)
	if err != nil {
		return nil, err
	}
	sealed.https = signIn != nil && strings.HasPrefix(signIn.cfg.RedirectURL, "https://")
	s := &Server{
		cfg: cfg, log: cfg.Log,
		audit:    &audit{log: cfg.Log, store: cfg.AuditLog, sinks: cfg.Audit},
		rates:    &limiters{rate: rate.Limit(cfg.Rate), burst: max(1, int(5*cfg.Rate)), names: map[string]*rate.Limiter{}},
		failures: &limiters{rate: 1, burst: 20, names: map[string]*rate.Limiter{}},
		trusted:  &trusted{keys: map[[sha256.Size]byte]time.Time{}},
		streams:  &streamLimit{most: cfg.MaxStreams, mostEach: cfg.MaxStreamsEach, each: map[string]int{}},
		bodies:   &bodies{most: max(4*cfg.MaxBody, 1<<20), each: map[string]int64{}},
		sessions: sealed, signIn: signIn,
		entities: map[string]*feed.Feed[*operatorv1.Entity]{}, briefs: map[string]*feed.Feed[brief]{}, diagnosed: diagnosed{sem: make(chan struct{}, 1)},
	}
	if cfg.Processes != nil {
		s.index = newIndex(cfg.Processes)
		s.processes = feed.New(func(ctx context.Context, to Sink[*operatorv1.Process]) error {
			return cfg.Processes.Watch(ctx, s.index.through(to))
		}, feedRetry, feedLinger, s.restarts("the processes"))
	}
	s.live = s.newLive()
	for _, l := range cfg.Links {
		if err := l.check(); err != nil {
			return nil, err
		}
	}
	s.ui, err = dashboard.New(dashboard.Config{
		Name: cfg.Name, Workflows: workflowService{s}, Workers: workerService{s}, Processes: processService{s}, Access: accessService{s},
		HasWorkflows: cfg.Workflows != nil, HasWorkers: cfg.Workers != nil, HasProcesses: cfg.Processes != nil,
		Sessions: cfg.Auth != nil, Changed: s.changed, Away: s.away, Preview: preview, May: s.may,
		SignIn: signIn.name(), SignsOutAt: signIn.signsOutAt,
		Links: s.linksOf, Flow: func(typ string) dashboard.Flow { return s.flows.flow(typ, cfg.StuckAfter) },
	})
	if err != nil {
		return nil, fmt.Errorf("operator: dashboard: %w", err)
	}
	inner, err := s.transcoder(s.pages(s.ui))
	if err != nil {
		return nil, fmt.Errorf("operator: %w", err)
	}
	s.handler = s.guard(inner)
	s.deps = newDependencies(cfg.Dependencies, cfg.Log)
	s.index.begin(s.processes)
	s.flows = newFlows(s)
	return s, nil
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
		Addr: s.cfg.Addr, Handler: s.handler, TLSConfig: s.cfg.TLS, Protocols: protocols,
		ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 1000,
			// Pings find a peer that has disappeared, and free its watches.
			SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second, WriteByteTimeout: writeTime,
		},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
}

// Close ends every watch and waits for their sources. Use it as a shutdown hook. A
// second call does nothing.
func (s *Server) Close(context.Context) error {
	s.deps.close()
	s.index.close()
	s.flows.close()
	s.mu.Lock()
	s.closed = true
	feeds := make([]*feed.Feed[*operatorv1.Entity], 0, len(s.entities))
	for _, f := range s.entities {
		feeds = append(feeds, f)
	}
	briefs := slices.Collect(maps.Values(s.briefs))
	s.mu.Unlock()
	for _, f := range feeds {
		f.Close()
	}
	for _, f := range briefs {
		f.Close()
	}
	if s.processes != nil {
		s.processes.Close()
	}
	s.live.close()
	return nil
}
