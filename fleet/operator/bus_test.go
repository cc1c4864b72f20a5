package operator_test

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// A command has a record at both ends, also when the process refuses it; and what another
// client has written into the bucket is shown as that.
func TestCommandsAreAuditedAtBothEnds(t *testing.T) {
	js := brokertest.Embedded(t, broker.Config{}).JetStream()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	file := func(kind string, der []byte, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(t.TempDir(), "key.pem")
		if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	key := file("PRIVATE KEY", der, err)
	der, err = x509.MarshalPKIXPublicKey(public)
	operators := file("PUBLIC KEY", der, err)

	app, err := lifecycle.New(lifecycle.Config{Name: "missions", HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off}, lifecycle.WithLogger(quiet))
	if err != nil {
		t.Fatal(err)
	}
	id := presence.Announce(app, js, presence.Config{OperatorsFile: operators, Logger: quiet})
	done := make(chan error, 1)
	go func() { done <- app.Run(context.Background()) }()
	defer func() {
		app.Stop(nil)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	with := func(cfg presence.Config) (base string, f *presence.Fleet) {
		t.Helper()
		f, err := presence.Open(t.Context(), js, cfg)
		if err != nil {
			t.Fatal(err)
		}
		base, _ = serve(t, operator.Config{Processes: operator.FromPresence(f)})
		return base, f
	}
	good, f := with(presence.Config{KeyFile: key})
	bad, _ := with(presence.Config{})
	record := func(what string, is func(presence.Process) bool) {
		t.Helper()
		brokertest.Await(t, what, func() bool {
			p, err := f.Get(t.Context(), id)
			return err == nil && is(p)
		})
	}
	record("the process", func(p presence.Process) bool { return p.Ready })

	if code, _, text := request(t, "POST", good+"/processes/"+id+"/suspend", `{"reason":"new disk"}`); code != 200 {
		t.Errorf("suspend: %d %s", code, text)
	}
	noted := func(what string, is func(presence.Event) bool) {
		t.Helper()
		brokertest.Await(t, what, func() bool {
			list, _, err := f.Events(t.Context(), presence.EventQuery{Process: id, Kinds: []string{"command"}, Limit: 10})
			return err == nil && len(list) > 0 && is(list[0])
		})
	}
	noted("the command in the journal", func(e presence.Event) bool {
		return e.Name == "suspend" && e.Who == "loopback" && e.Cause == "new disk" && e.To == "done"
	})
	if code, _, text := request(t, "POST", bad+"/processes/"+id+"/resume", ``); code != 400 || !strings.Contains(text, "OperatorsFile") || !strings.Contains(text, operator.ReasonRefused) {
		t.Errorf("with another key: %d %s", code, text)
	}
	noted("the refusal in the journal", func(e presence.Event) bool {
		return e.Name == "resume" && e.Who == "loopback" && strings.Contains(e.To, "OperatorsFile")
	})
	for base, want := range map[string]string{good: `"outcome":"ok"`, bad: `OperatorsFile`} {
		if _, _, text := request(t, "GET", base+"/audit", ""); !strings.Contains(text, want) || !strings.Contains(text, id) {
			t.Errorf("the audit has no %s: %s", want, text)
		}
	}

	kv, err := js.KeyValue(t.Context(), "FLEET")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), "missions.ghost", []byte(`{"id":"missions.ghost","service":"missions","ready":true,"status":{}}`)); err != nil {
		t.Fatal(err)
	}
	brokertest.Await(t, "the operator to see the entry", func() bool {
		code, _, _ := request(t, "GET", good+"/processes/missions.ghost", "")
		return code == 200
	})
	if _, _, text := request(t, "GET", good+"/processes/missions.ghost", ""); !strings.Contains(text, "another client has written its entry") || strings.Contains(text, `"ready":true`) {
		t.Errorf("a process that is not there: %s", text)
	}
	if code, _, text := request(t, "POST", good+"/processes/missions.ghost/drain", `{"reason":"x"}`); code != 404 || !strings.Contains(text, "no signature") {
		t.Errorf("a drain of it: %d %s", code, text)
	}
}
