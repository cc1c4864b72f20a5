// Command fleet is a small fleet and its dashboard in one command:
//
//	go run ./examples/fleet
//
// and open http://127.0.0.1:8090 in a browser.
//
// It runs four processes. The first embeds NATS, serves the dashboard and the
// operators' API, and keeps the other three alive: two that fly drone missions,
// which are durable, and one that hosts workers whose code is loaded at run
// time. Drain one in the dashboard and see it come back; abort a mission; stop a
// worker, and redrive its dead letters. Ctrl-C stops everything in order.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
	"github.com/pleme-io/lifecycle-go/worker"
)

// probeEvery is how often the processes of this fleet probe themselves.
const probeEvery = 2 * time.Second

func main() {
	host.EngineMain(languages()...) // the code of hosted workers runs in children of the hosts
	lifecycle.Main(run)
}

func run() error {
	role := flag.String("role", "operator", "what this process is: operator, which starts the others, missions or host")
	nats := flag.String("nats", "", "the URL of NATS, for the roles that the operator starts")
	id := flag.String("id", "", "under which name this process is seen")
	addr := flag.String("addr", "127.0.0.1:8090", "where the dashboard is served")
	dir := flag.String("dir", filepath.Join(os.TempDir(), "lifecycle-fleet"), "where NATS keeps its streams")
	flag.Parse()

	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("process", *role)
	if *id != "" {
		log = log.With("id", *id)
	}
	ctx := context.Background()
	cfg := broker.Config{
		URL: *nats, Logger: log,
		Buckets: []jetstream.KeyValueConfig{workflow.Bucket(bucket)},
		Streams: []jetstream.StreamConfig{{Name: "ORDERS", Subjects: []string{"orders.>"}, MaxMsgs: 10_000}},
	}
	if *nats == "" { // the first process embeds NATS on a free port, for the others
		cfg.StoreDir, cfg.Listen = *dir, "127.0.0.1:0"
	}
	b, err := broker.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	app, err := lifecycle.New(lifecycle.Config{Name: *role, HealthAddr: lifecycle.HealthOff}, lifecycle.WithLogger(log))
	if err != nil {
		return err
	}
	// Periodic: nothing scrapes this process, and the dashboard shows the last result.
	app.Probe("nats", lifecycle.ProbeFunc(b.Check), lifecycle.WithPeriodic(probeEvery)).OnShutdown("nats", b.Close)
	presence.Announce(app, b.JetStream(), presence.Config{ID: cmp.Or(*id, *role), Version: "v1.0.0", Logger: log})

	switch *role {
	case "operator":
		err = operate(ctx, app, b, *addr, log)
	case "missions":
		err = fly(app, b, log)
	case "host":
		err = hostWorkers(app, b, log)
	default:
		err = fmt.Errorf("role %q: want operator, missions or host", *role)
	}
	if err != nil {
		return err
	}
	return app.Run(ctx)
}

// operate serves the dashboard and keeps the others alive.
func operate(ctx context.Context, app *lifecycle.App, b *broker.Broker, addr string, log *slog.Logger) error {
	mgr, err := missions(b, log)
	if err != nil {
		return err
	}
	fleet, err := presence.Open(ctx, b.JetStream(), presence.Config{Logger: log})
	if err != nil {
		return err
	}
	engines, err := engines()
	if err != nil {
		return err
	}
	asks, err := host.New(b.JetStream(), host.Config{Engines: engines, Logger: log}) // never started: it only sends requests
	if err != nil {
		return err
	}
	audit, err := operator.OpenAuditLog(ctx, b.JetStream(), operator.AuditLogConfig{})
	if err != nil {
		return err
	}
	op, err := operator.New(operator.Config{
		Addr: addr, Name: "example fleet", Logger: log,
		Workflows: operator.FromManager(mgr), Processes: operator.FromPresence(fleet), Workers: operator.FromHost(asks),
		Dependencies: []operator.Dependency{{Name: "NATS", Check: b.Check}}, AuditLog: audit,
	})
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	tree := worker.NewSupervisor("processes", worker.SupervisorConfig{})
	for _, child := range []struct{ role, id string }{{"missions", "missions-1"}, {"missions", "missions-2"}, {"host", "host-1"}} {
		spec := worker.CommandSpec(child.id, func() *exec.Cmd {
			cmd := exec.Command(program, "-role", child.role, "-id", child.id, "-nats", b.ClientURL())
			cmd.Stderr = os.Stderr
			return cmd
		})
		spec.Restart = worker.Always // also after a drain from the dashboard
		if err := tree.Add(spec); err != nil {
			return err
		}
	}
	app.Add(tree).
		Serve("dashboard", op.HTTPServer()).
		OnShutdown("missions", func(context.Context) error { return mgr.Close() }).
		OnShutdown("operator", op.Close)
	log.Info("open the dashboard", "url", "http://"+addr)
	return nil
}
