package main

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/health"
)

// doctor judges one process by its /statusz, without an operator server.
func TestDoctorOfOneProcess(t *testing.T) {
	app, err := lifecycle.New(lifecycle.Config{Name: "shop", HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off}, lifecycle.WithLogger(brokertest.Quiet()))
	if err != nil {
		t.Fatal(err)
	}
	app.Probe("db", lifecycle.ProbeFunc(func(context.Context) error { return errors.New("connection refused") }), lifecycle.WithPeriodic(50*time.Millisecond), health.WithTimeout(time.Second))
	done := make(chan error, 1)
	go func() { done <- app.Run(context.Background()) }()
	defer func() { app.Stop(nil); <-done }()
	srv := httptest.NewServer(app.Handler())
	defer srv.Close()
	var code int
	var out string
	brokertest.Await(t, "the finding", func() bool {
		code, out = ctl(t, "http://127.0.0.1:1", "doctor", "--statusz", srv.URL+"/statusz")
		return code == cli.ExitFindings && strings.Contains(out, "probe db is down: connection refused: /readyz fails")
	})
	if code, out := ctl(t, "http://127.0.0.1:1", "doctor", "--statusz", "http://127.0.0.1:1/statusz"); code != cli.ExitUnreachable {
		t.Errorf("a process that is away: %d %s", code, out)
	}
	if code, out := ctl(t, "http://127.0.0.1:1", "doctor", "--statusz", srv.URL+"/readyz"); code == cli.ExitOK {
		t.Errorf("another page: %d %s", code, out)
	}
}

// away is hosted workers whose NATS is away.
type away struct{ operator.Workers }

func (away) List(context.Context) ([]*operatorv1.Worker, error) { return nil, nats.ErrConnectionClosed }

// While a service behind the server is away, a command that needs it exits with the
// status for "try again", and any other says how old its answer is.
func TestOldAnswersSaySo(t *testing.T) {
	s := newSite(t)
	cfg := s.config()
	cfg.Workers = away{}
	cfg.Dependencies = []operator.Dependency{{Name: "NATS", Check: func(context.Context) error { return errors.New("no route to host") }}}
	url, err := s.serve(cfg)
	if err != nil {
		t.Fatal(err)
	}
	brokertest.Await(t, "the word of old answers", func() bool {
		code, out := ctl(t, url, "definitions")
		return code == cli.ExitOK && strings.Contains(out, "NATS is away: this is as of 20")
	})
	if code, out := ctl(t, url, "workers", "list"); code != cli.ExitUnreachable || !strings.Contains(out, "NATS is away since 20") {
		t.Errorf("workers list: %d %s", code, out)
	}
}

// While NATS is away a process is described as it was when it was last heard, with the
// outage and without its events.
func TestProcessIsDescribedWhileNATSIsAway(t *testing.T) {
	s := newSite(t)
	if err := s.process("web", "web-1", func(*lifecycle.App) {}); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(s.nats)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := presence.Open(t.Context(), js, presence.Config{Logger: brokertest.Quiet()})
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.config()
	cfg.Processes = operator.FromPresence(fleet)
	cfg.Dependencies = []operator.Dependency{{Name: "NATS", Check: func(context.Context) error {
		if nc.IsClosed() {
			return errors.New("no route to host")
		}
		return nil
	}}}
	url, err := s.serve(cfg)
	if err != nil {
		t.Fatal(err)
	}
	brokertest.Await(t, "the process in the list", func() bool {
		_, out := ctl(t, url, "processes", "list")
		return strings.Contains(out, "web.web-1")
	})
	nc.Close()
	for _, id := range []string{"web.web-1", "web-1"} {
		brokertest.Await(t, "the description of "+id, func() bool {
			code, out := ctl(t, url, "describe", id)
			return code == cli.ExitOK && strings.Contains(out, "web.web-1") && strings.Contains(out, "this is as of 20") && strings.Contains(out, "cannot be read now: NATS is away since 20")
		})
	}
	if code, out := ctl(t, url, "processes", "get", "web-1", "-o", "json"); code != cli.ExitOK || !strings.Contains(out, `"phase": "running"`) {
		t.Errorf("processes get: %d %s", code, out)
	}
	if code, out := ctl(t, url, "describe", "web.web-2"); code != cli.ExitUnreachable || !strings.Contains(out, "NATS is away since 20") {
		t.Errorf("a process that is not known: %d %s", code, out)
	}
}
