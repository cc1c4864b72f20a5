package operator_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// lines is a log that a test reads.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// While NATS is away, calls are unavailable with its name and since when, every answer
// says from when it is, pages say it too, and the log has few lines.
func TestDependencyIsAway(t *testing.T) {
	var down atomic.Bool
	m := newMemory(1)
	log := new(lines)
	url, _ := serve(t, operator.Config{
		Workflows: m, Workers: broken{}, Logger: slog.New(slog.NewTextHandler(log, nil)),
		Dependencies: []operator.Dependency{{Name: "NATS", Check: func(context.Context) error {
			if down.Load() {
				return errors.New("connection refused")
			}
			return nil
		}}},
	})
	_, header, _ := request(t, "GET", url+"/workflows/drone-survey", "")
	if at, err := time.Parse(time.RFC3339Nano, header.Get(client.HeaderAsOf)); err != nil || time.Since(at) > time.Minute {
		t.Errorf("the answer is as of %q", header.Get(client.HeaderAsOf))
	}
	code, _, text := request(t, "GET", url+"/workers", "")
	if code != 503 || !strings.Contains(text, "NATS does not answer") || !strings.Contains(text, operator.ReasonUnavailable) {
		t.Errorf("before the check: %d %s", code, text)
	}
	down.Store(true)
	brokertest.Await(t, "the outage", func() bool {
		code, _, text = request(t, "GET", url+"/workers", "")
		return strings.Contains(text, "NATS is away since 20")
	})
	if code != 503 || !strings.Contains(text, "connection refused") {
		t.Errorf("%d %s", code, text)
	}
	_, header, _ = request(t, "GET", url+"/workflows/drone-survey", "")
	first := header.Get(client.HeaderAsOf)
	_, header, _ = request(t, "GET", url+"/workflows/drone-survey", "")
	if first == "" || header.Get(client.HeaderAsOf) != first {
		t.Errorf("answers in an outage are as of %q and %q", first, header.Get(client.HeaderAsOf))
	}
	if _, _, page := request(t, "GET", url+"/ui/workflows", "", "Accept", "text/html"); !strings.Contains(page, "NATS has been away since") {
		t.Errorf("the page does not say it:\n%s", page)
	}
	down.Store(false)
	brokertest.Await(t, "the end of the outage", func() bool {
		_, _, page := request(t, "GET", url+"/ui/workflows", "", "Accept", "text/html")
		return !strings.Contains(page, "away since")
	})
	if n := strings.Count(log.String(), "a dependency is away"); n != 1 || !strings.Contains(log.String(), "the dependency is back") {
		t.Errorf("the log tells of the outage %d times:\n%s", n, log.String())
	}
	if strings.Contains(log.String(), "incident") {
		t.Errorf("an outage is an internal error:\n%s", log.String())
	}
}

// broken is hosted workers whose NATS is away.
type broken struct{ operator.Workers }

func (broken) List(context.Context) ([]*operatorv1.Worker, error) {
	return nil, nats.ErrConnectionClosed
}
