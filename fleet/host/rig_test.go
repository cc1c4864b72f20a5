package host_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/js"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/native"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
)

// bound is how long a test waits for a condition, on a busy machine.
const bound = 60 * time.Second

// rig is one NATS with a stream "WORK" of the subjects work.> and out.>.
type rig struct {
	t        *testing.T
	js       jetstream.JetStream
	replicas int
	funcs    map[string]native.Func
	tune     func(*host.Config)
}

// newRig returns a rig on an embedded server of its own. While [TestOnThreeServers]
// runs, and always with HOST_TEST_SERVERS=3, the rig is on three servers.
func newRig(t *testing.T) *rig {
	t.Helper()
	cluster := threeServers
	if cluster == nil && os.Getenv("HOST_TEST_SERVERS") == "3" {
		cluster = brokertest.StartCluster(t, 3)
	}
	if cluster == nil {
		return rigOn(t, brokertest.Embedded(t, broker.Config{}), 1)
	}
	b := brokertest.Connect(t, broker.Config{URL: cluster.URL()})
	for names := b.JetStream().StreamNames(t.Context()); ; { // of the test before
		name, ok := <-names.Name()
		if !ok {
			must(t, names.Err())
			break
		}
		must(t, b.JetStream().DeleteStream(t.Context(), name))
	}
	return rigOn(t, b, 3)
}

func rigOn(t *testing.T, b *broker.Broker, replicas int) *rig {
	js, err := jetstream.New(b.Conn(), jetstream.WithDefaultTimeout(bound)) // servers are slow on a busy machine
	must(t, err)
	r := &rig{t: t, js: js, replicas: replicas, funcs: make(map[string]native.Func), tune: func(*host.Config) {}}
	r.eventually("the stream is there", func() bool { // a cluster that has just begun may lack peers
		err = broker.Ensure(t.Context(), r.js, nil, []jetstream.StreamConfig{{Name: "WORK", Subjects: []string{"work.>", "out.>"}, Replicas: replicas}})
		return err == nil || replicas == 1
	})
	must(t, err)
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// host returns a host that was not started. Its LeaseTTL and AckWait are far longer than
// a busy machine delays a goroutine. A test in which a host should lose its lease or a
// message sets shorter ones.
func (r *rig) host(id string) *host.Host {
	r.t.Helper()
	engines, err := engine.NewRegistry(native.New(r.funcs), starlark.New(), js.New())
	must(r.t, err)
	cfg := host.Config{HostID: id, Engines: engines, Replicas: r.replicas, LeaseTTL: bound, RetryBase: 10 * time.Millisecond, RetryMax: 50 * time.Millisecond,
		AckWait: bound, Logger: slog.New(slog.DiscardHandler), Isolation: isolate.Config{Program: os.Getenv(programEnv)}}
	r.tune(&cfg)
	h, err := host.New(r.js, cfg)
	must(r.t, err)
	r.t.Cleanup(func() { r.stop(h) })
	return h
}

// start returns a running host that has recovered its workers.
func (r *rig) start(id string) *host.Host {
	r.t.Helper()
	h := r.host(id)
	must(r.t, h.Start(context.Background()))
	r.eventually("host "+id+" is ready", func() bool { return h.Check(r.t.Context()) == nil })
	return h
}

func (r *rig) stop(h *host.Host) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	if err := h.Stop(ctx); err != nil {
		r.t.Errorf("stop: %v", err)
	}
}

func (r *rig) eventually(what string, cond func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(bound)
	for !cond() {
		if time.Now().After(deadline) {
			r.t.Fatalf("this did not happen in time: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (r *rig) publish(topic string, data ...string) {
	r.t.Helper()
	for _, d := range data {
		_, err := r.js.Publish(r.t.Context(), topic, []byte(d))
		must(r.t, err)
	}
}

// outputs returns the data of the messages on a subject of WORK, in order.
func (r *rig) outputs(subject string) []string {
	r.t.Helper()
	stream, err := r.js.Stream(r.t.Context(), "WORK")
	must(r.t, err)
	var all []string
	for seq := uint64(1); ; {
		m, err := stream.GetMsg(r.t.Context(), seq, jetstream.WithGetMsgSubject(subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return all
		}
		must(r.t, err)
		all = append(all, string(m.Data))
		seq = m.Sequence + 1
	}
}

func (r *rig) wantOutputs(subject string, want ...string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%s has %q", subject, want), func() bool { return len(r.outputs(subject)) >= len(want) })
	if got := r.outputs(subject); !slices.Equal(got, want) {
		r.t.Errorf("%s has %q, want %q", subject, got, want)
	}
}

func create(t *testing.T, h *host.Host, req host.Spec) string {
	t.Helper()
	if req.MIMEType == "" {
		req.MIMEType = "text/x-starlark"
	}
	id, err := h.Create(t.Context(), req)
	must(t, err)
	return id
}

// prefix returns code that puts a text before each message.
func prefix(text string) []byte {
	return []byte("def handle(message): return " + fmt.Sprintf("%q", text) + " + message.text")
}

// leftovers returns everything that hosts have stored.
func (r *rig) leftovers() []string {
	r.t.Helper()
	var found []string
	for _, name := range []string{"WORK", "HOST_STATE", "KV_HOST_WORKERS", "HOST_CODE"} {
		stream, err := r.js.Stream(r.t.Context(), name)
		must(r.t, err)
		consumers := stream.ConsumerNames(r.t.Context())
		for c := range consumers.Name() {
			if name == "WORK" {
				found = append(found, "consumer "+c)
			}
		}
		if name == "WORK" {
			continue
		}
		info, err := stream.Info(r.t.Context(), jetstream.WithSubjectFilter(">"))
		must(r.t, err)
		for subject := range info.State.Subjects {
			m, err := stream.GetLastMsgForSubject(r.t.Context(), subject)
			if err == nil && (m.Header.Get("KV-Operation") != "" || strings.HasSuffix(subject, ".fence")) {
				continue // a mark of what is no longer there
			}
			found = append(found, subject)
		}
	}
	return found
}

func sorted(s []string) []string { slices.Sort(s); return s }
