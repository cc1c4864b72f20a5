package presence_test

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// bus is a real server with the shipped configuration.
type bus struct {
	t     *testing.T
	conf  string
	srv   *server.Server
	url   string
	seeds map[string]string // by service: the files of the nkey seeds
}

// startBus starts a server with a file of deploy/nats. It takes a free port, and keeps
// its streams in a temporary folder.
func startBus(t *testing.T, conf string) *bus {
	t.Helper()
	b := &bus{t: t, conf: conf, seeds: map[string]string{}}
	for _, name := range []string{"operator", "orders", "billing"} {
		user, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		public, err := user.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		seed, err := user.Seed()
		if err != nil {
			t.Fatal(err)
		}
		b.seeds[name] = filepath.Join(t.TempDir(), name+".nk")
		if err := os.WriteFile(b.seeds[name], seed, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv(strings.ToUpper(name)+"_NKEY", public)
	}
	_, port, err := net.SplitHostPort(brokertest.FreeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	b.run(number)
	t.Cleanup(func() { b.stop() })
	return b
}

// run starts the server. What it had in memory is lost.
func (b *bus) run(port int) {
	b.t.Helper()
	opts, err := server.ProcessConfigFile(b.conf)
	if err != nil {
		b.t.Fatal(err)
	}
	opts.Host, opts.Port, opts.StoreDir, opts.NoSigs, opts.NoLog = "127.0.0.1", port, b.t.TempDir(), true, true
	if b.srv, err = server.NewServer(opts); err != nil {
		b.t.Fatal(err)
	}
	b.srv.Start()
	if !b.srv.ReadyForConnections(time.Minute) {
		b.t.Fatal("the server is not ready")
	}
	b.url = b.srv.ClientURL()
}

// stop stops the server and returns its port.
func (b *bus) stop() (port int) {
	port = b.srv.Addr().(*net.TCPAddr).Port
	b.srv.Shutdown()
	b.srv.WaitForShutdown()
	return port
}

// connect connects as the user of a service does.
func (b *bus) connect(service string) jetstream.JetStream {
	return brokertest.Connect(b.t, broker.Config{URL: b.url, NKeyFile: b.seeds[service], InboxPrefix: "_INBOX_" + service}).JetStream()
}

// keyPair writes an operator's key to files.
func keyPair(t *testing.T) (private, public string) {
	t.Helper()
	open, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		name = filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	private = write("operator.key", "PRIVATE KEY", der, err)
	der, err = x509.MarshalPKIXPublicKey(open)
	return private, write("operators.pem", "PUBLIC KEY", der, err)
}

// service runs a process of a service until the test ends.
func service(t *testing.T, js jetstream.JetStream, name, id, operators string) (app *lifecycle.App, full string) {
	t.Helper()
	app, err := lifecycle.New(lifecycle.Config{Name: name, HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off}, lifecycle.WithLogger(brokertest.Quiet()))
	if err != nil {
		t.Fatal(err)
	}
	full = presence.Announce(app, js, presence.Config{ID: id, OperatorsFile: operators, Logger: brokertest.Quiet()})
	done := make(chan error, 1)
	go func() { done <- app.Run(context.Background()) }()
	t.Cleanup(func() {
		app.Stop(nil)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return app, full
}

// The shipped accounts: a service announces itself and nothing else, and the operator
// commands. The processes are on a server whose users have no more permissions than the
// files give them.
func TestShippedAccounts(t *testing.T) {
	b := startBus(t, shipped)
	private, operators := keyPair(t)
	f, err := presence.Open(t.Context(), b.connect("operator"), presence.Config{KeyFile: private})
	if err != nil {
		t.Fatal(err)
	}
	orders, ordersID := service(t, b.connect("orders"), "orders", "a", operators)
	_, billingID := service(t, b.connect("billing"), "billing", "a", operators)
	for _, id := range []string{ordersID, billingID} {
		await(t, f, id, id, func(p presence.Process) bool { return p.Ready && p.Suspect == "" })
	}

	t.Run("the operator commands", func(t *testing.T) {
		if _, err := f.Suspend(t.Context(), ordersID, "new disk", "ada"); err != nil {
			t.Fatal(err)
		}
		if _, suspended := orders.Suspended(); !suspended {
			t.Error("it is not suspended")
		}
		if c := commands(t, f, ordersID, 1)[0]; c.Who != "ada" || c.Name != "suspend" || c.To != "done" {
			t.Errorf("the process has noted %+v", c)
		}
		if _, err := f.Resume(t.Context(), ordersID, "ada"); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("a key that is no operator's", func(t *testing.T) {
		other, otherPublic := keyPair(t)
		eve, err := presence.Open(t.Context(), b.connect("operator"), presence.Config{KeyFile: other})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := eve.Drain(t.Context(), ordersID, "", "ada"); !errors.Is(err, presence.ErrRefused) || !strings.Contains(err.Error(), "OperatorsFile") {
			t.Errorf("%v, want ErrRefused", err)
		}
		if c := commands(t, f, ordersID, 3)[0]; c.Name != "drain" || !strings.Contains(c.To, "OperatorsFile") {
			t.Errorf("the process has noted %+v", c)
		}
		// A rotation: both keys for a while, then only the new one.
		old, err := os.ReadFile(operators)
		if err != nil {
			t.Fatal(err)
		}
		added, err := os.ReadFile(otherPublic)
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			file      []byte
			old, both bool
		}{{append(append([]byte{}, old...), added...), true, true}, {added, false, true}, {[]byte("garbage"), false, false}, {old, true, false}} {
			if err := os.WriteFile(operators, step.file, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Resume(t.Context(), ordersID, "ada"); (err == nil) != step.old {
				t.Errorf("the old key: %v", err)
			}
			if _, err := eve.Resume(t.Context(), ordersID, "ada"); (err == nil) != step.both {
				t.Errorf("the new key: %v", err)
			}
		}
	})
	t.Run("what each user may do", func(t *testing.T) { b.permissions(t) })
	t.Run("a service forges its sibling", func(t *testing.T) {
		nc := b.connect("orders").Conn()
		p := await(t, f, ordersID, "the suspicion", func(p presence.Process) bool {
			if p.Suspect == "" { // its own next announcement may be stored before a look
				if err := nc.Publish("$KV.FLEET."+ordersID, []byte(`{"id":"orders.a","service":"orders","ready":true}`)); err != nil {
					t.Error(err)
				}
			}
			return p.Suspect != ""
		})
		if !strings.Contains(p.Suspect, "signature") || p.PID != os.Getpid() {
			t.Errorf("it is shown as %q, with the pid %d", p.Suspect, p.PID)
		}
		if _, err := f.Resume(t.Context(), ordersID, "ada"); err != nil {
			t.Errorf("the operator still reaches it: %v", err)
		}
	})
}

// A process that starts before the operators' server waits for it, because a service may
// not create the bucket. When the server restarts and has lost the bucket, the watch of the
// operators' server creates it again.
func TestOperatorCreatesTheBucket(t *testing.T) {
	b := startBus(t, shipped)
	private, operators := keyPair(t)
	_, id := service(t, b.connect("orders"), "orders", "a", operators)
	f, err := presence.Open(t.Context(), b.connect("operator"), presence.Config{KeyFile: private})
	if err != nil {
		t.Fatal(err)
	}
	await(t, f, id, "the process", func(p presence.Process) bool { return p.Ready })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil { // as a feed does
			_ = f.Attend(ctx, func(presence.Change) {})
			time.Sleep(50 * time.Millisecond)
		}
	}()
	defer func() { cancel(); <-done }()
	b.run(b.stop())
	before := time.Now()
	await(t, f, id, "the process after the restart", func(p presence.Process) bool { return p.SeenAt.After(before) && p.Suspect == "" })
	if _, err := f.Resume(t.Context(), id, "ada"); err != nil {
		t.Error(err)
	}
	brokertest.Await(t, "the command in the journal", func() bool {
		list, _, err := f.Events(t.Context(), presence.EventQuery{Process: id, Kinds: []string{"command"}, Limit: 10})
		return err == nil && len(list) == 1 && list[0].Who == "ada" && list[0].Name == "resume" && list[0].To == "done"
	})
}

var shipped = filepath.Join("..", "..", "deploy", "nats", "nats.conf")

// permissions checks what the server lets each user publish and subscribe to.
func (b *bus) permissions(t *testing.T) {
	for user, subjects := range map[string]struct{ publish, not, subscribe, notSubscribe []string }{
		"orders": {
			publish: []string{"$KV.FLEET.orders.a"},
			not: []string{
				"$KV.FLEET.billing.a", "$KV.FLEET.a", "$KV.FLEET.operator.x", "$KV.FLEET", "lifecycle.fleet.command.orders.a", "lifecycle.fleet.command.billing.a",
				"_INBOX_operator.x", "_INBOX_billing.x", "_INBOX.x", "lifecycle.fleet.event.billing.a", "lifecycle.audit.FLEET_AUDIT", "$JS.API.STREAM.CREATE.FLEET_JOURNAL",
				"$JS.API.STREAM.CREATE.KV_FLEET", "$JS.API.STREAM.UPDATE.KV_FLEET", "$JS.API.STREAM.DELETE.KV_FLEET", "$JS.API.STREAM.PURGE.KV_FLEET",
				"$JS.API.STREAM.MSG.DELETE.KV_FLEET", "$JS.API.CONSUMER.CREATE.KV_FLEET.x", "$JS.API.STREAM.CREATE.MINE", "$JS.API.DIRECT.GET.KV_FLEET.$KV.FLEET.billing.a", "$SYS.REQ.SERVER.PING",
			},
			subscribe:    []string{"lifecycle.fleet.command.orders.a", "_INBOX_orders.x"},
			notSubscribe: []string{"lifecycle.fleet.command.>", "lifecycle.fleet.command.billing.a", "$KV.FLEET.>", "_INBOX.>", "_INBOX_operator.>", ">", "lifecycle.>"},
		},
		"operator": {
			publish:      []string{"lifecycle.fleet.command.billing.none", "lifecycle.fleet.event.billing.x", "lifecycle.audit.FLEET_AUDIT"},
			not:          []string{"$KV.FLEET.orders.a", "$KV.FLEET.a", "$JS.API.STREAM.DELETE.KV_FLEET", "$JS.API.STREAM.PURGE.KV_FLEET", "$JS.API.STREAM.PURGE.FLEET_AUDIT", "$JS.API.STREAM.MSG.DELETE.FLEET_JOURNAL", "_INBOX_orders.x"},
			subscribe:    []string{"_INBOX_operator.x"},
			notSubscribe: []string{"lifecycle.fleet.command.>", "_INBOX_orders.>", ">"},
		},
	} {
		check := func(what, subject string, allowed bool, do func(*natsgo.Conn) error) {
			t.Helper()
			option, err := natsgo.NkeyOptionFromSeed(b.seeds[user])
			if err != nil {
				t.Fatal(err)
			}
			nc, err := natsgo.Connect(b.url, option, natsgo.ErrorHandler(func(*natsgo.Conn, *natsgo.Subscription, error) {}))
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			if err := do(nc); err != nil {
				t.Fatal(err)
			}
			if err := nc.Flush(); err != nil { // the server's refusal comes before its answer
				t.Fatal(err)
			}
			err = nc.LastError()
			if denied := err != nil && strings.Contains(strings.ToLower(err.Error()), "permissions violation"); denied == allowed {
				t.Errorf("%s %s %q: %v", user, what, subject, err)
			}
		}
		for allowed, list := range map[bool][]string{true: subjects.publish, false: subjects.not} {
			for _, s := range list {
				check("publishes", s, allowed, func(nc *natsgo.Conn) error { return nc.Publish(s, []byte("x")) })
			}
		}
		for allowed, list := range map[bool][]string{true: subjects.subscribe, false: subjects.notSubscribe} {
			for _, s := range list {
				check("subscribes to", s, allowed, func(nc *natsgo.Conn) error {
					_, err := nc.SubscribeSync(s)
					return err
				})
			}
		}
	}
	if nc, err := natsgo.Connect(b.url); err == nil {
		nc.Close()
		t.Error("a client without a user connects")
	}
}
