package workflow_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// nkey makes an identity, and the file of its seed.
func nkey(t *testing.T) (public, file string) {
	t.Helper()
	pair, err := nkeys.CreateUser()
	must(t, err)
	public, err = pair.PublicKey()
	must(t, err)
	seed, err := pair.Seed()
	must(t, err)
	file = filepath.Join(t.TempDir(), "seed")
	must(t, os.WriteFile(file, seed, 0o600))
	return public, file
}

// TestAccountWithoutRights has accounts that may not write, not read, or nothing. Each error names
// the permission that is missing, and comes before the caller's time is over.
func TestAccountWithoutRights(t *testing.T) {
	admin, adminFile := nkey(t)
	reader, readerFile := nkey(t)
	writer, writerFile := nkey(t)
	none, noneFile := nkey(t)
	may := func(subjects ...string) *server.Permissions {
		return &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: subjects},
			Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
		}
	}
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
		Nkeys: []*server.NkeyUser{
			{Nkey: admin},
			{Nkey: none, Permissions: may("other.>")},
			{Nkey: reader, Permissions: may("$JS.API.>")},
			{Nkey: writer, Permissions: may("$KV.MISSIONS.>", "$JS.API.INFO")},
		},
	})
	must(t, err)
	srv.Start()
	defer srv.WaitForShutdown()
	defer srv.Shutdown()
	if !srv.ReadyForConnections(time.Minute) {
		t.Fatal("the server takes no connections")
	}
	open := func(file string) *rig {
		return rigOn(t, brokertest.Connect(t, broker.Config{URL: srv.ClientURL(), NKeyFile: file}))
	}
	ctx := testContext(t)
	first, err := broker.Connect(ctx, broker.Config{URL: srv.ClientURL(), NKeyFile: adminFile, Buckets: buckets(), Logger: brokertest.Quiet()})
	must(t, err)
	defer first.Close(context.WithoutCancel(ctx))
	rigOn(t, first).create(t, "m1", "planning")

	_, err = broker.Connect(ctx, broker.Config{URL: srv.ClientURL(), NKeyFile: noneFile, Logger: brokertest.Quiet()})
	if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), "$JS.API.INFO") {
		t.Errorf("connect without any right: %v", err)
	}
	r := open(readerFile)
	must(t, r.Ready(ctx))
	for name, err := range map[string]error{
		"create":     r.missions.Create(ctx, &Mission{ID: "m2", State: "planning"}),
		"transition": r.missions.Transition(ctx, "m1", "flying", "rule", ""),
	} {
		if !(errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), "no permission for $KV.MISSIONS.mission.m")) {
			t.Errorf("%s without the right to write: %v", name, err)
		}
	}
	late, cancel := context.WithDeadline(ctx, time.Now())
	defer cancel()
	if _, err := r.record(late, "m1"); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrPermissionViolation) {
		t.Errorf("a get that is late, after a write that was refused: %v", err)
	}
	list, err := r.missions.List(ctx, workflow.ListOptions{})
	if err != nil || len(list) != 1 || list[0].State != "planning" {
		t.Errorf("it lists %v, %v", list, err)
	}

	w := open(writerFile)
	_, err = w.missions.Get(ctx, "m1")
	if !(errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), "$JS.API.")) {
		t.Errorf("get without the right to read: %v", err)
	}
	brokertest.Await(t, "a list to say that the right to read is missing", func() bool {
		short, cancel := context.WithTimeout(ctx, 4*time.Second)
		defer cancel()
		_, err := w.missions.List(short, workflow.ListOptions{})
		return err != nil && strings.Contains(strings.ToLower(err.Error()), "permissions violation")
	})
}
