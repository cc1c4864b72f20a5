package main

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// survey is an example of an application's workflow: the mission of a drone.
type survey struct {
	ID       string `json:"id" lifecycle:"id"`
	State    string `json:"phase" lifecycle:"phase"`
	Org      string `json:"org" lifecycle:"indexable"`
	Priority uint32 `json:"priority" lifecycle:"operator_writable"`
	Comment  string `json:"comment" lifecycle:"operator_writable"`
	Armed    bool   `json:"armed" lifecycle:"operator_writable"`
}

func (s *survey) EntityID() string       { return s.ID }
func (s *survey) Workflow() string       { return "drone-survey" }
func (s *survey) Phase() string          { return s.State }
func (s *survey) IsTerminal() bool       { return surveys.IsTerminal(s.State) }
func (s *survey) KVBucket() string       { return "MISSIONS" }
func (s *survey) KVKey(id string) string { return id }
func (s *survey) ParentEntityID() string { return "" }

var surveys = workflow.Transitions{
	"planning": {"flying", "aborted"}, "flying": {"landing", "aborted"},
	"landing": {"completed", "failed"}, "completed": {}, "failed": {}, "aborted": {},
}

// site is what operators work with: workflows on a real NATS,
// processes that announce themselves, hosted workers, and a server over them
// that can be stopped and started again.
type site struct {
	js      jetstream.JetStream
	nats    string // its URL
	secret  string // the file of the secret TOKEN of the tenant shop
	mgr     *workflow.Manager
	fleet   *presence.Fleet
	workers *faulty
	free    func() string // returns an address that was free a moment ago

	mu   sync.Mutex              // guards the fields below
	ends map[string]presence.End // what the platform knows of ended processes, by id
	addr string
	stop func() // the server; nil when there is none
	apps []func()
}

// siteBroker declares what a site stores.
func siteBroker() broker.Config {
	return broker.Config{
		Buckets: []jetstream.KeyValueConfig{workflow.Bucket("MISSIONS")},
		Streams: []jetstream.StreamConfig{{Name: "ORDERS", Subjects: []string{"orders.>"}}},
	}
}

// newSite starts all of it except the server. It ends with the test.
func newSite(tb testing.TB) *site {
	tb.Helper()
	cfg := siteBroker()
	cfg.Listen = "127.0.0.1:0"
	b := brokertest.Embedded(tb, cfg)
	return newSiteOn(tb, b, b.ClientURL())
}

// newSiteOn is newSite on a NATS that the test has started.
func newSiteOn(tb testing.TB, b *broker.Broker, url string) *site {
	tb.Helper()
	s := &site{js: b.JetStream(), nats: url, secret: filepath.Join(tb.TempDir(), "token"), ends: map[string]presence.End{}}
	s.workers = &faulty{Workers: operator.FromHost(startHost(tb, s.js, s.secret))}
	s.free = func() string { return brokertest.FreeAddr(tb) }
	s.mgr = workflow.NewManager(s.js, brokertest.Quiet())
	tb.Cleanup(func() { s.mgr.Close() })
	if err := s.mgr.Register("drone-survey", func() workflow.Participant { return new(survey) }, surveys); err != nil {
		tb.Fatal(err)
	}
	var err error
	if s.fleet, err = presence.Open(tb.Context(), s.js, presence.Config{Logger: brokertest.Quiet(), Ended: s.ended}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.close)
	return s
}

// ended is what the platform says of the end of a process.
func (s *site) ended(_ context.Context, p presence.Process) (presence.End, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.ends[p.ID]; ok {
		return e, nil
	}
	return presence.End{}, errors.New("the platform does not know")
}

// config configures a server over the site.
func (s *site) config() operator.Config {
	return operator.Config{
		Workflows: operator.FromManager(s.mgr), Processes: operator.FromPresence(s.fleet), Workers: s.workers,
		Logger: brokertest.Quiet(), Rate: 10_000,
	}
}

// listenLocked listens at the address of the previous server. The first one has none, and
// tries several: another test may take an address that was free a moment ago.
func (s *site) listenLocked() (ln net.Listener, err error) {
	if s.addr != "" {
		return net.Listen("tcp", s.addr)
	}
	for range 100 {
		addr := s.free()
		if ln, err = net.Listen("tcp", addr); err == nil {
			s.addr = addr
			break
		}
	}
	return ln, err
}

// serve starts a server, at the same address as the previous one.
func (s *site) serve(cfg operator.Config) (url string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ln, err := s.listenLocked()
	if err != nil {
		return "", err
	}
	cfg.Addr = s.addr
	op, err := operator.New(cfg)
	if err != nil {
		return "", errors.Join(err, ln.Close())
	}
	srv := op.HTTPServer()
	var serving sync.WaitGroup
	scheme := "http://"
	serving.Go(func() {
		if cfg.TLS != nil {
			_ = srv.ServeTLS(ln, "", "")
		} else {
			_ = srv.Serve(ln)
		}
	})
	if cfg.TLS != nil {
		scheme = "https://"
	}
	s.stop = func() {
		_ = op.Close(context.Background())
		_ = srv.Close()
		serving.Wait()
	}
	return scheme + s.addr, nil
}

// halt stops the server.
func (s *site) halt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
}

// get returns the process with this id, which may lack the service.
func (s *site) get(id string) (presence.Process, error) {
	list, err := s.fleet.List(context.Background())
	for _, p := range list {
		if p.ID == id || strings.HasSuffix(p.ID, "."+id) {
			return p, nil
		}
	}
	return presence.Process{}, cmp.Or(err, presence.ErrNotFound)
}

// process runs an App that announces itself as id, and returns when it is ready.
func (s *site) process(name, id string, add func(*lifecycle.App)) error {
	app, err := lifecycle.New(lifecycle.Config{Name: name, HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off}, lifecycle.WithLogger(brokertest.Quiet()))
	if err != nil {
		return err
	}
	lines := new(presence.Lines)
	fmt.Fprintf(lines, "level=INFO msg=hello process=%s\nlevel=ERROR msg=\"disk\x1b[2J full\"\n", id)
	settings := func() []presence.Setting {
		return []presence.Setting{{Key: "addr", Value: `":8080"`, Source: "service.yaml:3", Lost: []string{"service.yaml:2: hunter"}}, {Key: "db.dsn", Value: `"postgres://ada:hunter2@db/missions"`, Source: "environment SERVICE_DB_DSN"}, {Key: "poll", Value: "1s", Source: "default"}}
	}
	presence.Announce(app, s.js, presence.Config{ID: id, Version: "1.2.3", Lines: lines, Settings: settings, Logger: brokertest.Quiet()})
	if add != nil {
		add(app)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = app.Run(context.Background()) }()
	s.mu.Lock()
	s.apps = append(s.apps, func() { app.Stop(nil); <-done })
	s.mu.Unlock()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		p, err := s.get(id)
		if err == nil && p.Ready {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("after a minute process %s is not ready: %v, %w", id, p, err)
		}
	}
}

func (s *site) close() {
	s.halt()
	s.mu.Lock()
	apps := s.apps
	s.apps = nil
	s.mu.Unlock()
	for _, stop := range apps {
		stop()
	}
}

// certificates is an authority that issues certificates for a server and its clients.
type certificates struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newCertificates() (*certificates, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &certificates{key, cert, pool}, nil
}

// pem returns a certificate for name and its key, both in PEM.
func (c *certificates) pem(name string) (cert, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, c.cert, &k.PublicKey, c.key)
	if err != nil {
		return nil, nil, err
	}
	text, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text}), nil
}

// server returns the configuration of a server that trusts this authority's clients.
func (c *certificates) server() (*tls.Config, error) {
	cert, key, err := c.pem("server")
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: c.pool, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS13}, err
}
