package broker_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

const patience = 60 * time.Second

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestEmbeddedOpensNoPortAndSyncsAlways(t *testing.T) {
	b := brokertest.Connect(t, broker.Config{StoreDir: t.TempDir()})
	if url := b.ClientURL(); url != "" || !b.Embedded() {
		t.Errorf("the server is reached at %q", url)
	}
	if sync, _ := broker.SyncOf(b); !sync {
		t.Error("the running server does not sync each write")
	}
	fast := brokertest.Connect(t, broker.Config{StoreDir: t.TempDir(), Sync: broker.SyncInterval, SyncEvery: 7 * time.Second})
	if sync, every := broker.SyncOf(fast); sync || every != 7*time.Second {
		t.Errorf("sync %v, every %v", sync, every)
	}
}

func TestStoredDataSurvivesARestart(t *testing.T) {
	cfg := broker.Config{StoreDir: t.TempDir(), Buckets: []jetstream.KeyValueConfig{{Bucket: "B"}}, Logger: brokertest.Quiet()}
	ctx := testContext(t)
	for i := range 3 {
		b, err := broker.Connect(ctx, cfg)
		must(t, err)
		kv, err := b.JetStream().KeyValue(ctx, "B")
		must(t, err)
		rev, err := kv.PutString(ctx, "k", "v")
		must(t, err)
		if rev != uint64(i+1) {
			t.Errorf("revision %d after %d restarts", rev, i)
		}
		must(t, b.Close(ctx))
		must(t, b.Close(ctx))
	}
}

func TestOneProcessForAStore(t *testing.T) {
	dir := t.TempDir()
	b := brokertest.Connect(t, broker.Config{StoreDir: dir})
	_, err := broker.Connect(testContext(t), broker.Config{StoreDir: dir, Logger: brokertest.Quiet()})
	if err == nil || !strings.Contains(err.Error(), "another server has the folder") {
		t.Errorf("got %v", err)
	}
	must(t, b.Close(testContext(t)))
	brokertest.Connect(t, broker.Config{StoreDir: dir})
}

func TestConfigurationIsChecked(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, []byte("x"), 0o600))
	for says, cfg := range map[string]broker.Config{
		"store_dir is empty":            {},
		"credentials_file is set":       {StoreDir: dir, CredentialsFile: file},
		`sync is "never"`:               {StoreDir: dir, Sync: "never"},
		"sync_every is -1s":             {StoreDir: dir, SyncEvery: -time.Second},
		"max_store is -1":               {StoreDir: dir, MaxStore: -1},
		"want one of them":              {URL: "nats://x", CredentialsFile: file, NKeyFile: file},
		"want both or neither":          {URL: "nats://x", CertFile: file},
		"want either tls or the files":  {URL: "nats://x", TLS: &tls.Config{MinVersion: tls.VersionTLS13}, CAFile: file},
		"failed to parse root":          {URL: "nats://x", CAFile: file},
		"read nkey_file":                {URL: "nats://x", NKeyFile: file},
		`inbox_prefix is "a.>"`:         {URL: "nats://x", InboxPrefix: "a.>"},
		"no such file":                  {URL: "nats://x", CredentialsFile: filepath.Join(dir, "none")},
		`listen is "nowhere"`:           {StoreDir: filepath.Join(dir, "a"), Listen: "nowhere"},
		"want host:port":                {StoreDir: filepath.Join(dir, "d"), Listen: "127.0.0.1:"},
		"invalid port":                  {StoreDir: filepath.Join(dir, "b"), Listen: "127.0.0.1:70000"},
		"address already in use":        {StoreDir: filepath.Join(dir, "c"), Listen: l.Addr().String()},
		"not a directory":               {StoreDir: filepath.Join(file, "d")},
		"connect to nats://127.0.0.1:1": {URL: "nats://127.0.0.1:1"},
		"want letters, digits, - and _": {StoreDir: filepath.Join(dir, "e"), Buckets: []jetstream.KeyValueConfig{{Bucket: "a b"}}},
		"want 1 to 64":                  {StoreDir: filepath.Join(dir, "f"), Buckets: []jetstream.KeyValueConfig{{Bucket: "B", History: 65}}},
		"three need a cluster of three": {StoreDir: filepath.Join(dir, "g"), Buckets: []jetstream.KeyValueConfig{{Bucket: "B", Replicas: 3}}},
	} {
		cfg.Logger = brokertest.Quiet()
		b, err := broker.Connect(testContext(t), cfg)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
		if b != nil {
			t.Errorf("%s: Connect returned a Broker together with an error", says)
		}
	}
}

// A program with a StoreDir by default uses the URL that its environment has.
func TestURLReplacesTheEmbeddedServer(t *testing.T) {
	srv := brokertest.Embedded(t, broker.Config{Listen: "127.0.0.1:0"})
	dir := filepath.Join(t.TempDir(), "unused")
	b := brokertest.Connect(t, broker.Config{URL: srv.ClientURL(), StoreDir: dir, Listen: "127.0.0.1:0", MaxStore: 1 << 20})
	if got := b.ClientURL(); got != srv.ClientURL() {
		t.Errorf("it is connected to %s, want %s", got, srv.ClientURL())
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the unused folder: %v", err)
	}
}

// The credentials in a URL are not in the error.
func TestConnectDoesNotShowTheCredentialsOfAURL(t *testing.T) {
	for _, cfg := range []broker.Config{
		{URL: "nats://me:hunter2@127.0.0.1:1,nats://hunter2@127.0.0.1:1"},
		{URL: "nats://me:hunter2@127.0.0.1:port"},
		{URL: "nats://me:hunter2@127.0.0.1:1", CredentialsFile: "/none"},
	} {
		_, err := broker.Connect(testContext(t), cfg)
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("the error is %v", err)
		}
	}
}

func TestSpecsAreCreatedOrCompared(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{})
	ctx := testContext(t)
	bucket := jetstream.KeyValueConfig{Bucket: "B", History: 5, TTL: time.Hour}
	stream := jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}}
	for range 2 { // created, and found to be as declared
		must(t, broker.Ensure(ctx, b.JetStream(), []jetstream.KeyValueConfig{bucket}, []jetstream.StreamConfig{stream}))
	}
	bucket.History, bucket.TTL, bucket.Storage, bucket.MaxBytes, bucket.MaxValueSize, bucket.Compression = 6, 0, jetstream.MemoryStorage, 100, 10, true
	stream.Subjects, stream.MaxMsgs, stream.Retention = []string{"t.>"}, 7, jetstream.WorkQueuePolicy
	err := broker.Ensure(ctx, b.JetStream(), []jetstream.KeyValueConfig{bucket}, []jetstream.StreamConfig{stream})
	var spec *broker.SpecError
	if !errors.As(err, &spec) || spec.Name != "B" || len(spec.Differences) != 6 {
		t.Fatalf("got %v", err)
	}
	for _, says := range []string{
		"bucket B is not what was declared", "history is 5, want 6", "TTL is 1h0m0s, want 0s", "storage is File, want Memory", "max bytes is unlimited, want 100",
		"stream S is not what was declared", "subjects is s.>, want t.>", "max messages is unlimited, want 7", "retention is Limits, want WorkQueue",
	} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("the error does not say %q: %v", says, err)
		}
	}
}

func TestManyProcessesCreateAtOnce(t *testing.T) {
	srv := brokertest.Embedded(t, broker.Config{Listen: "127.0.0.1:0"})
	ctx := testContext(t)
	done := make(chan error, 8)
	for range cap(done) {
		go func() {
			b, err := broker.Connect(ctx, broker.Config{URL: srv.ClientURL(), Logger: brokertest.Quiet(), Buckets: []jetstream.KeyValueConfig{{Bucket: "B", History: 3}}})
			if err == nil {
				err = b.Close(ctx)
			}
			done <- err
		}()
	}
	for range cap(done) {
		must(t, <-done)
	}
}

func TestProbeAndReconnect(t *testing.T) {
	ctx := testContext(t)
	cfg := broker.Config{StoreDir: t.TempDir(), Listen: "127.0.0.1:0", Logger: brokertest.Quiet()}
	srv, err := broker.Connect(ctx, cfg)
	must(t, err)
	cfg.Listen = strings.TrimPrefix(srv.ClientURL(), "nats://")
	b := brokertest.Connect(t, broker.Config{URL: srv.ClientURL(), ReconnectWait: 10 * time.Millisecond})
	must(t, b.Check(ctx))
	must(t, srv.Close(ctx))
	brokertest.Await(t, "the probe to fail", func() bool { return b.Check(ctx) != nil })
	if err := b.Check(ctx); !errors.Is(err, broker.ErrNotConnected) {
		t.Errorf("probe: %v", err)
	}
	if _, err := b.JetStream().Publish(ctx, "x", nil); !errors.Is(err, nats.ErrReconnectBufExceeded) {
		t.Errorf("a write while there is no server waits for it: %v", err)
	}
	srv, err = broker.Connect(ctx, cfg)
	must(t, err)
	t.Cleanup(func() { _ = srv.Close(context.Background()) })
	brokertest.Await(t, "the probe to pass", func() bool { return b.Check(ctx) == nil })
	if err := b.Check(ctx); err != nil {
		t.Errorf("probe: %v", err)
	}
}

// A server that comes back with an empty disk gets what the configuration declares again, and the
// log says what was lost.
func TestDeclaredIsMadeAgain(t *testing.T) {
	var log bytes.Buffer // the test reads it after the Broker has closed
	site := brokertest.NewSite(t)
	ctx := testContext(t)
	b, err := broker.Connect(ctx, broker.Config{
		URL: site.URL, ReconnectWait: 10 * time.Millisecond,
		Logger:  slog.New(slog.NewTextHandler(&log, nil)),
		Buckets: []jetstream.KeyValueConfig{{Bucket: "B"}},
		Streams: []jetstream.StreamConfig{{Name: "S", Subjects: []string{"s.>"}}},
	})
	must(t, err)
	kv, err := b.JetStream().KeyValue(ctx, "B")
	must(t, err)
	_, err = kv.PutString(ctx, "k", "v")
	must(t, err)
	site.Stop()
	entries, err := os.ReadDir(site.Dir)
	must(t, err)
	for _, e := range entries {
		must(t, os.RemoveAll(filepath.Join(site.Dir, e.Name())))
	}
	site.Start()
	brokertest.Await(t, "the declared bucket and stream", func() bool {
		if b.Check(ctx) != nil {
			return false
		}
		_, noBucket := b.JetStream().KeyValue(ctx, "B")
		_, noStream := b.JetStream().Stream(ctx, "S")
		return noBucket == nil && noStream == nil
	})
	must(t, b.Close(ctx))
	if text := log.String(); !strings.Contains(text, "bucket B") || !strings.Contains(text, "stream S") {
		t.Errorf("the log does not say what was lost:\n%s", text)
	}
}

func TestDrainHandlesWhatWasReceived(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{})
	handled := 0
	began := make(chan struct{})
	_, err := b.Conn().Subscribe("s", func(*nats.Msg) {
		if handled++; handled == 1 {
			<-began
		}
	})
	must(t, err)
	for range 100 {
		must(t, b.Conn().Publish("s", nil))
	}
	must(t, b.Check(testContext(t)))
	short, cancel := context.WithTimeout(testContext(t), 20*time.Millisecond)
	defer cancel()
	if err := b.Drain(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("drained while a handler was running: %v", err)
	}
	close(began)
	must(t, b.Drain(testContext(t)))
	if handled != 100 {
		t.Errorf("%d of 100 were handled", handled)
	}
	must(t, b.Drain(testContext(t)))
}

func TestConnectGivesUpWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and sends nothing
	must(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(testContext(t), 100*time.Millisecond)
	defer cancel()
	if _, err := broker.Connect(ctx, broker.Config{URL: "nats://" + l.Addr().String(), Logger: brokertest.Quiet()}); err == nil {
		t.Error("connected without a server")
	}
}

// A process that connected in little time has the usual time for each reconnect.
func TestReconnectsHaveTheirTime(t *testing.T) {
	srv := brokertest.Embedded(t, broker.Config{Listen: "127.0.0.1:0"})
	brokertest.Await(t, "a connection", func() bool {
		ctx, cancel := context.WithTimeout(testContext(t), time.Second)
		defer cancel()
		b, err := broker.Connect(ctx, broker.Config{URL: srv.ClientURL(), Logger: brokertest.Quiet()})
		if err != nil {
			return false
		}
		if got := b.Conn().Opts.Timeout; got < nats.DefaultTimeout {
			t.Errorf("a reconnect has %v", got)
		}
		must(t, b.Close(testContext(t)))
		return true
	})
}

// TestCredentials connects with TLS, a client's certificate and an nkey.
func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	pair, certFile, keyFile := certificate(t, dir)
	user, err := nkeys.CreateUser()
	must(t, err)
	public, _ := user.PublicKey()
	seed, _ := user.Seed()
	seedFile := filepath.Join(dir, "user.nk")
	must(t, os.WriteFile(seedFile, seed, 0o600))
	pool := x509.NewCertPool()
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	must(t, err)
	pool.AddCert(leaf)
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: filepath.Join(dir, "store"), NoSigs: true, NoLog: true,
		TLSConfig:  &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS12},
		TLSTimeout: 30, AuthTimeout: 30,
		Nkeys: []*server.NkeyUser{{Nkey: public}},
	})
	must(t, err)
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	brokertest.Await(t, "the server", func() bool { return srv.ReadyForConnections(10 * time.Millisecond) })
	url := "tls://" + srv.Addr().String()
	brokertest.Connect(t, broker.Config{URL: url, CAFile: certFile, CertFile: certFile, KeyFile: keyFile, NKeyFile: seedFile})
	for name, cfg := range map[string]broker.Config{
		"no key":               {URL: url, CAFile: certFile, CertFile: certFile, KeyFile: keyFile},
		"no certificate":       {URL: url, CAFile: certFile, NKeyFile: seedFile},
		"an unknown authority": {URL: url, CertFile: certFile, KeyFile: keyFile, NKeyFile: seedFile},
	} {
		cfg.Logger = brokertest.Quiet()
		if _, err := broker.Connect(testContext(t), cfg); err == nil {
			t.Errorf("connected with %s", name)
		}
	}
}

func certificate(t *testing.T, dir string) (pair tls.Certificate, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	must(t, os.WriteFile(certFile, certPEM, 0o600))
	must(t, os.WriteFile(keyFile, keyPEM, 0o600))
	pair, err = tls.X509KeyPair(certPEM, keyPEM)
	must(t, err)
	return pair, certFile, keyFile
}

// A port that other machines can reach is refused without credentials; with them it refuses
// clients that have none.
func TestOpenPortNeedsCredentials(t *testing.T) {
	for _, listen := range []string{":0", "0.0.0.0:0", "[::]:0", "10.0.0.1:4222"} {
		_, err := broker.Connect(t.Context(), broker.Config{StoreDir: t.TempDir(), Listen: listen, Logger: brokertest.Quiet()})
		if err == nil || !strings.Contains(err.Error(), "listen_token_file") {
			t.Errorf("listen on %s: %v", listen, err)
		}
	}
	for _, listen := range []string{"localhost:4222", "LOCALHOST:4222", "127.0.0.2:4222", "[::1]:4222"} {
		if err := (broker.Config{StoreDir: "x", Listen: listen}).Validate(); err != nil {
			t.Errorf("listen on %s: %v", listen, err)
		}
	}
	const token = "0123456789-0123456789"
	file := filepath.Join(t.TempDir(), "token")
	for text, want := range map[string]string{"short": "has no token", "": "has no token", token: ""} {
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := broker.Connect(t.Context(), broker.Config{StoreDir: t.TempDir(), Listen: "0.0.0.0:0", ListenTokenFile: file, Logger: brokertest.Quiet()})
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) || text != "" && strings.Contains(err.Error(), text) {
				t.Errorf("the token %q: %v", text, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close(context.WithoutCancel(t.Context()))
		if err := b.Check(t.Context()); err != nil {
			t.Errorf("inside the process: %v", err)
		}
		u, err := url.Parse(b.ClientURL())
		if err != nil {
			t.Fatal(err)
		}
		port := "127.0.0.1:" + u.Port()
		if nc, err := nats.Connect("nats://" + port); err == nil {
			nc.Close()
			t.Error("a client without a token is let in")
		}
		nc, err := nats.Connect("nats://" + token + "@" + port)
		if err != nil {
			t.Fatalf("a client with the token: %v", err)
		}
		nc.Close()
	}
}
