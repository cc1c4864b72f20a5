package workflows

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// user makes an nkey, and returns its public part and the file with its seed.
func user(t *testing.T) (public, file string) {
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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func may(subjects ...string) *server.Permissions {
	return &server.Permissions{Publish: &server.SubjectPermission{Allow: subjects}, Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}}}
}

// TestPermissions backs up and restores with the permissions that the help names, and is
// told at once when one is missing.
func TestPermissions(t *testing.T) {
	admin, adminFile := user(t)
	saver, saverFile := user(t)
	restorer, restorerFile := user(t)
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
		Nkeys: []*server.NkeyUser{
			{Nkey: admin},
			{Nkey: saver, Permissions: may("$JS.API.STREAM.INFO.*", "$JS.API.STREAM.SNAPSHOT.*", "$JS.SNAPSHOT.ACK.>")},
			{Nkey: restorer, Permissions: may("$JS.API.STREAM.INFO.*", "$JS.API.STREAM.RESTORE.*", "$JS.SNAPSHOT.RESTORE.>")},
		},
	})
	must(t, err)
	srv.Start()
	defer srv.WaitForShutdown()
	defer srv.Shutdown()
	if !srv.ReadyForConnections(time.Minute) {
		t.Fatal("the server takes no connections")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	key, err := nats.NkeyOptionFromSeed(adminFile)
	must(t, err)
	nc, err := nats.Connect(srv.ClientURL(), key)
	must(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	must(t, err)
	kv, err := js.CreateKeyValue(ctx, workflow.Bucket("B"))
	must(t, err)
	for range 100 {
		_, err = kv.Put(ctx, "k", make([]byte, 8<<10))
		must(t, err)
	}

	dir := filepath.Join(t.TempDir(), "backup")
	as := func(file string) *natsServer { return &natsServer{url: srv.ClientURL(), nkey: file} }
	status, err := as(saverFile).backUp(ctx, "B", dir)
	must(t, err)
	if len(status.Streams) != 1 || status.Streams[0].Messages != 64 || status.Streams[0].Last != 100 {
		t.Errorf("%+v", status)
	}
	if _, err := as(restorerFile).backUp(ctx, "B", dir+"2"); cli.StatusOf(err) != cli.ExitDenied {
		t.Errorf("without the permission to back up: %v", err)
	}
	must(t, js.DeleteKeyValue(ctx, "B"))
	if _, err := as(saverFile).restore(ctx, dir); cli.StatusOf(err) != cli.ExitDenied {
		t.Errorf("without the permission to restore: %v", err)
	}
	_, stranger := user(t)
	if _, err := as(stranger).backUp(ctx, "B", dir+"3"); cli.StatusOf(err) != cli.ExitDenied {
		t.Errorf("of an unknown user: %v", err)
	}
	brokertest.Await(t, "the restore", func() bool { // the server removes files a moment later
		_, err = as(restorerFile).restore(ctx, dir)
		return err == nil
	})
	again, err := js.KeyValue(ctx, "B")
	must(t, err)
	if e, err := again.Get(ctx, "k"); err != nil || e.Revision() != 100 {
		t.Errorf("restored: %+v, %v", e, err)
	}
	if _, err := as(restorerFile).restore(ctx, dir); err != nil {
		t.Errorf("what is restored already: %v", err)
	}
	_, err = again.Put(ctx, "k", []byte("newer"))
	must(t, err)
	if _, err := as(restorerFile).restore(ctx, dir); cli.StatusOf(err) != cli.ExitConflict {
		t.Errorf("over a bucket that exists: %v", err)
	}
}
