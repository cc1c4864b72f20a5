package presence_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/worker"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

func nats(t *testing.T) jetstream.JetStream {
	return brokertest.Embedded(t, broker.Config{}).JetStream()
}

// start runs a process that announces itself. stop ends it and returns what Run
// did.
func start(t *testing.T, js jetstream.JetStream, cfg presence.Config, add func(*lifecycle.App)) (app *lifecycle.App, id string, stop func() error) {
	t.Helper()
	own := lifecycle.Config{Name: "missions", HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off}
	app, err := lifecycle.New(own, lifecycle.WithLogger(brokertest.Quiet()))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Logger = brokertest.Quiet()
	id = presence.Announce(app, js, cfg)
	if add != nil {
		add(app)
	}
	done := make(chan error, 1)
	go func() { done <- app.Run(context.Background()) }()
	stop = sync.OnceValue(func() error { app.Stop(nil); return <-done })
	t.Cleanup(func() { stop() })
	return app, id, stop
}

func open(t *testing.T, js jetstream.JetStream, cfg presence.Config) *presence.Fleet {
	t.Helper()
	if cfg.CommandTimeout == 0 {
		cfg.CommandTimeout = time.Minute // on a busy machine a process takes long to answer
	}
	f, err := presence.Open(t.Context(), js, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func await(t *testing.T, f *presence.Fleet, id, what string, is func(presence.Process) bool) (p presence.Process) {
	t.Helper()
	brokertest.Await(t, what, func() bool {
		var err error
		p, err = f.Get(t.Context(), id)
		return err == nil && is(p)
	})
	return p
}

func TestProcessAnnouncesItselfWithItsUnits(t *testing.T) {
	js := nats(t)
	tree := worker.NewSupervisor("pool", worker.SupervisorConfig{})
	if err := tree.Add(worker.FuncSpec("w1", func(ctx context.Context) error { <-ctx.Done(); return nil })); err != nil {
		t.Fatal(err)
	}
	_, id, stop := start(t, js, presence.Config{Version: "1.2.3"}, func(app *lifecycle.App) { app.Add(tree) })
	f := open(t, js, presence.Config{})
	p := await(t, f, id, "the running process", func(p presence.Process) bool { return p.Ready && len(p.Status.Units) == 2 })
	if p.Service != "missions" || p.Version != "1.2.3" || p.PID == 0 || p.Host == "" || p.SeenAt.IsZero() || !strings.Contains(id, "-") {
		t.Errorf("announced as %+v", p)
	}
	var children []worker.State
	for _, u := range p.Status.Units {
		children = append(children, u.Children...)
	}
	if len(children) != 1 || children[0].Name != "w1" {
		t.Errorf("its units are %+v", p.Status.Units)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := f.Get(t.Context(), id); !errors.Is(err, presence.ErrNotFound) {
		t.Errorf("after its end: %v, want ErrNotFound", err)
	}
}

func TestOperatorSuspendsResumesAndDrains(t *testing.T) {
	js := nats(t)
	app, id, stop := start(t, js, presence.Config{}, nil)
	f := open(t, js, presence.Config{})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })

	if phase, err := f.Suspend(t.Context(), id, "new disk", "ada"); err != nil || phase != "running" {
		t.Fatalf("suspend: %q, %v", phase, err)
	}
	p := await(t, f, id, "the suspension", func(p presence.Process) bool { return !p.Ready })
	if p.Suspended != "new disk (asked by ada)" {
		t.Errorf("suspended because of %q", p.Suspended)
	}
	if code := readyz(app); code != http.StatusServiceUnavailable {
		t.Errorf("suspended, /readyz answers %d", code)
	}
	if _, err := f.Suspend(t.Context(), id, "", "ada"); !errors.Is(err, presence.ErrRefused) || !strings.Contains(err.Error(), "needs a reason") {
		t.Errorf("without a reason: %v", err)
	}
	if _, err := f.Suspend(t.Context(), id, strings.Repeat("x", 300), ""); !errors.Is(err, presence.ErrRefused) {
		t.Errorf("with an endless reason: %v", err)
	}
	if _, err := f.Suspend(t.Context(), id, "new disk", "ada"); err != nil {
		t.Errorf("the same once more: %v", err)
	}
	if _, err := f.Suspend(t.Context(), id, "deploy", "bob"); !errors.Is(err, presence.ErrRefused) || !strings.Contains(err.Error(), "new disk (asked by ada); resume it first") {
		t.Errorf("another operator's suspension: %v", err)
	}
	if by, _ := app.Suspended(); by.Reason != "new disk (asked by ada)" {
		t.Errorf("after another operator's suspension the reason is %q", by.Reason)
	}
	if _, err := f.Resume(t.Context(), id, "ada"); err != nil {
		t.Fatal(err)
	}
	await(t, f, id, "readiness again", func(p presence.Process) bool { return p.Ready })
	if _, err := f.Drain(t.Context(), id, "new node", "ada"); err != nil {
		t.Fatal(err)
	}
	<-app.Reached(lifecycle.PhaseStopped)
	if err := stop(); err != nil {
		t.Errorf("after a requested drain Run returns %v", err)
	}
	if _, err := f.Drain(t.Context(), id, "", ""); !errors.Is(err, presence.ErrNotFound) {
		t.Errorf("a command to a process that has ended: %v, want ErrNotFound", err)
	}
}

func TestRequesterOfADrainIsShownWhileItLasts(t *testing.T) {
	js := nats(t)
	own := lifecycle.Config{
		Name:          "missions",
		HealthAddr:    lifecycle.HealthOff,
		DrainInterval: 2 * time.Minute,
		DrainMin:      lifecycle.Off,
	}
	app, err := lifecycle.New(own, lifecycle.WithLogger(brokertest.Quiet()))
	if err != nil {
		t.Fatal(err)
	}
	held := make(chan struct{})
	app.OnDrain("held", lifecycle.DrainFunc(func(context.Context) error { <-held; return nil }))
	id := presence.Announce(app, js, presence.Config{Logger: brokertest.Quiet()})
	done := make(chan error, 1)
	go func() { done <- app.Run(context.Background()) }()
	f := open(t, js, presence.Config{})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	if _, err := f.Drain(t.Context(), id, "new node", "ada"); err != nil {
		t.Error(err)
	}
	await(t, f, id, "the drain and why", func(p presence.Process) bool {
		return p.Status.Report.Phase == lifecycle.PhaseDraining && p.Status.Report.Reason == "drain: new node (asked by ada)"
	})
	close(held)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if reason := app.Report().Reason; reason != "drain: new node (asked by ada)" {
		t.Errorf("the App's own report says %q", reason)
	}
}

// readyz asks the readiness plane without a server.
func readyz(app *lifecycle.App) int {
	w := &response{header: http.Header{}}
	r, _ := http.NewRequest(http.MethodGet, "/readyz", nil)
	app.Handler().ServeHTTP(w, r)
	return w.code
}

type response struct {
	header http.Header
	code   int
}

func (r *response) Header() http.Header { return r.header }
func (r *response) WriteHeader(c int)   { r.code = c }
func (r *response) Write(b []byte) (int, error) {
	if r.code == 0 {
		r.code = http.StatusOK
	}
	return len(b), nil
}

// log keeps the changes of a watch.
type log struct {
	mu     sync.Mutex
	seen   map[string]int
	gone   map[string]int
	synced bool
}

func (l *log) tell(c presence.Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch c.Kind {
	case "put":
		if c.Key == c.Value.ID {
			l.seen[c.Key]++
		}
	case "deleted":
		l.gone[c.Key]++
	case "synced":
		l.synced = true
	}
}

func (l *log) is(f func() bool) func() bool {
	return func() bool { l.mu.Lock(); defer l.mu.Unlock(); return f() }
}

// announce puts an entry until the watch has it: on a busy machine it may expire before.
func announce(t *testing.T, js jetstream.JetStream, l *log, key, entry string) {
	t.Helper()
	before := 0
	l.is(func() bool { before = l.seen[key]; return true })()
	brokertest.Await(t, "the entry of "+key, func() bool {
		seen := l.is(func() bool { return l.seen[key] > before })
		if !seen() {
			put(t, js, key, entry)
		}
		return seen()
	})
}

func TestWatchSeesComingAndGoing(t *testing.T) {
	js := nats(t)
	cfg := presence.Config{TTL: 4 * time.Second, Every: 100 * time.Millisecond} // its process may stand still for seconds
	f := open(t, js, cfg)
	l := &log{seen: map[string]int{}, gone: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.Attend(ctx, l.tell) }()
	defer func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the watch ends with %v", err)
		}
	}()
	brokertest.Await(t, "the sync", l.is(func() bool { return l.synced }))
	_, id, stop := start(t, js, cfg, nil)
	brokertest.Await(t, "several announcements", l.is(func() bool { return l.seen[id] > 4 }))

	// A process that was killed: its announcement exists, and no other follows.
	announce(t, js, l, "ghost", `{"service":"missions"}`)
	announce(t, js, l, "riddle", `not json`)
	brokertest.Await(t, "the end of the ghosts", l.is(func() bool { return l.gone["ghost"] == 1 && l.gone["riddle"] == 1 }))
	if l.is(func() bool { return l.gone[id] > 0 })() {
		t.Error("a running process is reported as gone")
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	brokertest.Await(t, "the end of the process", l.is(func() bool { return l.gone[id] == 1 }))
	brokertest.Await(t, "an empty list", func() bool { // the server expires entries in its own time
		list, err := f.List(t.Context())
		return err == nil && len(list) == 0
	})
}

func TestProcessThatDoesNotAnswer(t *testing.T) {
	js := nats(t)
	f := open(t, js, presence.Config{CommandTimeout: 5 * time.Second})
	kv, err := js.KeyValue(t.Context(), "FLEET")
	if err != nil {
		t.Fatal(err)
	}
	_, id, stop := start(t, js, presence.Config{}, nil)
	await(t, f, id, "the process", func(presence.Process) bool { return true })
	e, err := kv.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), id, e.Value()); err != nil { // as if it had been killed
		t.Fatal(err)
	}
	if _, err := f.Drain(t.Context(), id, "", ""); !errors.Is(err, presence.ErrUnreachable) {
		t.Errorf("a command to a dead process: %v, want ErrUnreachable", err)
	}
	if _, err := kv.Put(t.Context(), "missions.ghost", []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Drain(t.Context(), "missions.ghost", "", ""); !errors.Is(err, presence.ErrNotFound) || !strings.Contains(err.Error(), "no signature") {
		t.Errorf("a command to an entry that no process has signed: %v, want ErrNotFound", err)
	}
	for _, id := range []string{"", "a b", "a.>", "*", "a.b", "a.b.c", "*.b", "unknown", strings.Repeat("x", 300), strings.Repeat("x", 10_000)} {
		if _, err := f.Get(t.Context(), id); !errors.Is(err, presence.ErrNotFound) {
			t.Errorf("id %q: %v, want ErrNotFound", id, err)
		}
	}
}

func TestConfigsThatCannotWork(t *testing.T) {
	js := nats(t)
	for text, cfg := range map[string]presence.Config{
		"TTL is 1ms":       {TTL: time.Millisecond},
		"third":            {TTL: 3 * time.Second, Every: 2 * time.Second},
		"Bucket is":        {Bucket: "a b"},
		"Prefix is":        {Prefix: "a..b"},
		"ID is":            {ID: "a.b"},
		"CommandTimeout":   {CommandTimeout: -1},
		"use the same TTL": {TTL: time.Minute},
	} {
		if text == "use the same TTL" {
			open(t, js, presence.Config{})
		}
		if _, err := presence.Open(t.Context(), js, cfg); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%+v: %v, want one that says %q", cfg, err, text)
		}
		if text == "CommandTimeout" {
			continue // only operators use it
		}
		app, _, stop := start(t, js, cfg, nil)
		<-app.Draining()
		if err := stop(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("announced with %+v: %v, want one that says %q", cfg, err, text)
		}
	}
}
