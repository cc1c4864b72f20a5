package main

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
)

var natsFolder = filepath.Join("..", "..", "..", "deploy", "nats")

// TestBusIsTheShippedOne makes the accounts of the shipped grants again.
func TestBusIsTheShippedOne(t *testing.T) {
	code, got := ctl(t, "", "workers", "bus", "--config", filepath.Join(natsFolder, "grants.yaml"))
	want, err := os.ReadFile(filepath.Join(natsFolder, "tenants.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if code != cli.ExitOK || got != string(want) {
		t.Errorf("status %d:\n%s\nand the file is\n%s", code, got, want)
	}
}

// TestBusIsRefused gives grants that no account can have.
func TestBusIsRefused(t *testing.T) {
	for config, want := range map[string]string{
		"a: 1":                          "0 mappings with the name grants",
		"grants: {shop: {env: {A: b}}}": "no tenant has topics",
		"grants: {'*': {topics: [a]}}":  "no tenant has topics",
		"grants: {a-b: {topics: [x]}, a_b: {topics: [y]}}":         "both have the account TENANT_A_B",
		"grants: {shop: {topics: ['>']}}":                          "begins with a name",
		"grants: {shop: {topics: ['*.state.>']}}":                  "begins with a name",
		"grants: {shop: {topics: ['$KV.HOST_WORKERS.x']}}":         "begins with a name",
		"grants: {shop: {outputs: ['x\"}]}, {stream: \"host.>']}}": "without quotes",
		"x: {grants: {shop: {topics: ['$host.state.>']}}}":         "begins with a name",
		"{x: {grants: {a: {topics: [a]}}}, y: {grants: {b: {}}}}":  "2 mappings",
		"grants: {'shop {}': {topics: ['orders.>']}}":              "want 1 to 100 letters",
	} {
		file := filepath.Join(t.TempDir(), "grants.yaml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, out := ctl(t, "", "workers", "bus", "--config", file); code == cli.ExitOK || !strings.Contains(out, want) {
			t.Errorf("%s: status %d: %s", config, code, out)
		}
	}
}

// tenantBus is a server with the shipped configuration of hosted workers.
type tenantBus struct {
	t     *testing.T
	url   string
	users map[string]nkeys.KeyPair
}

func startTenantBus(t *testing.T) *tenantBus {
	b := &tenantBus{t: t, users: make(map[string]nkeys.KeyPair)}
	for _, name := range []string{"HOSTS", "TENANT_SHOP", "TENANT_MAIL"} {
		user, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		public, err := user.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		b.users[name] = user
		t.Setenv(name+"_NKEY", public)
	}
	opts, err := server.ProcessConfigFile(filepath.Join(natsFolder, "hosted.conf"))
	if err != nil {
		t.Fatal(err)
	}
	opts.Host, opts.Port, opts.StoreDir, opts.NoSigs, opts.NoLog = "127.0.0.1", server.RANDOM_PORT, t.TempDir(), true, true
	srv, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	if !srv.ReadyForConnections(time.Minute) {
		t.Fatal("the server is not ready")
	}
	b.url = "nats://" + srv.Addr().(*net.TCPAddr).String()
	return b
}

func (b *tenantBus) connect(name string) (*natsgo.Conn, jetstream.JetStream) {
	b.t.Helper()
	public, err := b.users[name].PublicKey()
	if err != nil {
		b.t.Fatal(err)
	}
	nc, err := natsgo.Connect(b.url, natsgo.Nkey(public, b.users[name].Sign))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	if err != nil {
		b.t.Fatal(err)
	}
	return nc, js
}

// TestATenantsClientReachesItsOwnSubjects runs a host on a server with the accounts that
// lifecyclectl makes. A tenant's own client feeds its workers and gets their outputs. It reaches
// no stream of the hosts and no subject of another tenant.
func TestATenantsClientReachesItsOwnSubjects(t *testing.T) {
	b := startTenantBus(t)
	hosts, js := b.connect("HOSTS")
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "WORK", Subjects: []string{"orders.>", "letters.>", "sent.>", "counted.>"}})
	if err != nil {
		t.Fatal(err)
	}
	engines, err := engine.NewRegistry(starlark.New())
	if err != nil {
		t.Fatal(err)
	}
	h, err := host.New(js, host.Config{Engines: engines, Logger: brokertest.Quiet()})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for _, s := range []host.Spec{
		{ID: "count", Tenant: "shop", Topic: "orders.shop.>", OutputTopic: "counted.shop.a"},
		{ID: "send", Tenant: "mail", Topic: "letters.*", OutputTopic: "sent.mail.a"},
	} {
		s.MIMEType, s.Code = "text/x-starlark", []byte("def handle(m): return 'did ' + m.text")
		if _, err := h.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}

	shop, shopJS := b.connect("TENANT_SHOP")
	mail, mailJS := b.connect("TENANT_MAIL")
	everything, err := shop.SubscribeSync(">") // of the tenant's account
	if err != nil {
		t.Fatal(err)
	}
	sent, err := mail.SubscribeSync("sent.mail.>")
	if err != nil {
		t.Fatal(err)
	}
	for _, nc := range []*natsgo.Conn{shop, mail} {
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
	}

	// What the tenant of the shop must not reach.
	seen, err := hosts.SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	if err := hosts.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{
		"letters.a", "sent.mail.a", "counted.shop.a", "orders.other", "orders.shop",
		"$host.state.w-send.fence", "$host.log.w-send", "$host.code.send", "$host.dead.send", "$host.lines.send", "$host.ask.activity",
		"$KV.HOST_WORKERS.send", "$KV.HOST_MEMBERS.x", "$JS.API.STREAM.PURGE.WORK", "$JS.API.STREAM.DELETE.HOST_STATE",
		"$JS.API.STREAM.MSG.GET.HOST_DEAD", "$JS.API.CONSUMER.CREATE.WORK", "$JS.API.CONSUMER.MSG.NEXT.WORK.HOST_w-send", "$SYS.REQ.SERVER.PING",
	} {
		if err := shop.Publish(subject, []byte("stolen")); err != nil {
			t.Fatal(err)
		}
	}
	for _, stream := range []string{"WORK", "HOST_STATE", "HOST_DEAD", "KV_HOST_WORKERS"} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := shopJS.Stream(ctx, stream); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the tenant asks for the stream %s: %v", stream, err)
		}
		cancel()
	}

	// What both must reach: a stored message, and the output.
	if _, err := shopJS.Publish(t.Context(), "orders.shop.a", []byte("an order")); err != nil {
		t.Fatal(err)
	}
	if _, err := mailJS.Publish(t.Context(), "letters.a", []byte("a letter")); err != nil {
		t.Fatal(err)
	}
	m, err := sent.NextMsg(time.Minute)
	if err != nil || string(m.Data) != "did a letter" {
		t.Fatalf("the other tenant gets %v, %v", m, err)
	}
	for {
		m, err := everything.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if string(m.Data) == "did an order" {
			break
		}
		its := string(m.Data) == "stolen" || m.Subject == "orders.shop.a" ||
			strings.HasPrefix(m.Subject, "_INBOX.") || strings.HasPrefix(m.Subject, "$JS.API.") ||
			m.Subject == "$JS.EVENT.ADVISORY.API" && strings.Contains(string(m.Data), `"acc":"TENANT_SHOP"`)
		if !its {
			t.Errorf("the tenant of the shop sees %s: %s", m.Subject, m.Data)
		}
	}
	for {
		m, err := seen.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if string(m.Data) == "stolen" {
			t.Errorf("the tenant of the shop has reached %s", m.Subject)
		}
		if m.Subject == "counted.shop.a" {
			break
		}
	}
}
