package presence_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/worker"
)

// events returns the events of a process, oldest first, as "kind name from>to".
func events(t *testing.T, f *presence.Fleet, q presence.EventQuery) (list []presence.Event) {
	t.Helper()
	q.Limit = 1000
	list, _, err := f.Events(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(list)
	return list
}

// commands waits until the journal has so many commands of a process, and returns them, the
// newest first.
func commands(t *testing.T, f *presence.Fleet, id string, n int) (list []presence.Event) {
	t.Helper()
	brokertest.Await(t, "the commands in the journal", func() bool {
		list = events(t, f, presence.EventQuery{Process: id, Kinds: []string{"command"}})
		return len(list) >= n
	})
	slices.Reverse(list)
	return list
}

func has(list []presence.Event, kind, name, to, cause string) bool {
	return slices.ContainsFunc(list, func(e presence.Event) bool {
		return e.Kind == kind && e.Name == name && (to == "" || e.To == to) && strings.Contains(e.Cause, cause)
	})
}

func show(list []presence.Event) string {
	var b strings.Builder
	for _, e := range list {
		fmt.Fprintf(&b, "%s %s %s>%s %q\n", e.Kind, e.Name, e.From, e.To, e.Cause)
	}
	return b.String()
}

// The journal has what happened in a process, also after its end: phases, restarts,
// probes, suspensions, commands, and the end.
func TestJournalKeepsALife(t *testing.T) {
	js := nats(t)
	crash := make(chan struct{})
	_, id, stop := start(t, js, presence.Config{Version: "1.2.3"}, func(app *lifecycle.App) {
		app.Supervise("poller", func(ctx context.Context) error {
			select {
			case <-crash:
				return errors.New("connection refused")
			case <-ctx.Done():
				return nil
			}
		}, worker.Backoff{Min: time.Millisecond, Max: time.Millisecond})
	})
	f := open(t, js, presence.Config{})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	for i := range 3 {
		crash <- struct{}{}
		p := await(t, f, id, "the restart", func(p presence.Process) bool { return len(p.Restarts) > i })
		if r := p.Restarts[0]; r.Unit != "poller" || r.Cause != "connection refused" {
			t.Errorf("the restart is %+v", r)
		}
	}
	if _, err := f.Suspend(t.Context(), id, "new disk", "ada"); err != nil {
		t.Fatal(err)
	}
	await(t, f, id, "the suspension", func(p presence.Process) bool { return p.Suspended != "" })
	if err := stop(); err != nil {
		t.Error(err)
	}
	list := events(t, f, presence.EventQuery{Process: id})
	for _, want := range [][4]string{
		{"joined", "", "1.2.3", ""}, {"phase", "", "running", ""}, {"restart", "poller", "", "connection refused"},
		{"command", "suspend", "done", "new disk"}, {"suspended", "", "", "new disk (asked by ada)"}, {"phase", "", "draining", ""},
		{"phase", "", "stopping", ""}, {"exit", "", presence.EndClean, ""},
	} {
		if !has(list, want[0], want[1], want[2], want[3]) {
			t.Errorf("the journal has no %q in\n%s", want, show(list))
		}
	}
	if last := list[len(list)-1]; last.Kind != "exit" || last.Host == "" || last.Version != "1.2.3" || time.Since(last.At) > time.Hour || last.Seq == 0 {
		t.Errorf("the last event is %+v", last)
	}
	if n := len(events(t, f, presence.EventQuery{Kinds: []string{"command"}, Contains: "NEW disk"})); n != 1 {
		t.Errorf("%d events for the filter", n)
	}
	page, next, err := f.Events(t.Context(), presence.EventQuery{Process: id, Limit: 2})
	if err != nil || len(page) != 2 || next == 0 || page[0].Kind != "exit" {
		t.Fatalf("the first page: %d, next %d, %v", len(page), next, err)
	}
	page2, _, err := f.Events(t.Context(), presence.EventQuery{Process: id, Limit: 2, Before: next})
	if err != nil || len(page2) != 2 || page2[0].Seq >= page[1].Seq {
		t.Errorf("the second page: %+v, %v", page2, err)
	}
}

// A process is in the fleet until its last hook: an operator sees a hook that hangs, and
// the journal has the end that follows.
func TestProcessIsSeenUntilItsEnd(t *testing.T) {
	js := nats(t)
	hanging, let := make(chan struct{}), make(chan struct{})
	app, id, stop := start(t, js, presence.Config{}, func(app *lifecycle.App) {
		app.OnShutdown("flush", func(context.Context) error { close(hanging); <-let; return errors.New("disk full") })
	})
	f := open(t, js, presence.Config{})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	app.Stop(nil)
	<-hanging
	await(t, f, id, "the hook that it waits for", func(p presence.Process) bool {
		return p.Status.Report.Phase == lifecycle.PhaseStopping && strings.Contains(p.Status.Waiting, "flush")
	})
	close(let)
	_ = stop()
	if _, err := f.Get(t.Context(), id); !errors.Is(err, presence.ErrNotFound) {
		t.Errorf("after its end: %v", err)
	}
	if list := events(t, f, presence.EventQuery{Process: id}); !has(list, "exit", "", presence.EndFailed, "hook flush failed") {
		t.Errorf("the journal has no such end:\n%s", show(list))
	}
}

// attend runs Attend until the test ends, or stop is called.
func attend(t *testing.T, f *presence.Fleet, l *log) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Attend(ctx, l.tell) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	brokertest.Await(t, "the sync", l.is(func() bool { return l.synced }))
	return stop
}

// A process that disappears gets one tombstone, with its last words, however many
// attend. One that returns has it withdrawn.
func TestTombstone(t *testing.T) {
	js := nats(t)
	cfg := presence.Config{TTL: time.Second}
	f := open(t, js, cfg)
	l := &log{seen: map[string]int{}, gone: map[string]int{}}
	attend(t, f, l)
	attend(t, f, &log{seen: map[string]int{}, gone: map[string]int{}})
	say := func(id, rest string) {
		t.Helper()
		announce(t, js, l, id, string(presence.Entry(id, []byte(`{"id":"`+id+`","service":"s",`+rest+`}`))))
	}
	say("s.plain", `"status":{"report":{"phase":"running"}}`)
	say("s.full", `"status":{"report":{"phase":"running"}},"memory":{"used":99614720,"limit":104857600}`)
	say("s.halted", `"status":{"waiting":"hook flush","report":{"phase":"stopping","budget":30000000000,"requested":"2026-01-02T03:04:05Z"}}`)
	lost := func() []presence.Event { return events(t, f, presence.EventQuery{Kinds: []string{"lost"}}) }
	brokertest.Await(t, "three tombstones", func() bool { return len(lost()) >= 3 })
	say("s.plain", `"status":{"report":{"phase":"running"}}`)
	brokertest.Await(t, "the return", func() bool {
		return has(events(t, f, presence.EventQuery{Process: "s.plain"}), "returned", "", "", "not dead")
	})
	list := lost()
	for id, want := range map[string][2]string{
		"s.plain":  {presence.EndLost, "it was running"},
		"s.full":   {presence.EndOOM, "95 of 100 MiB"},
		"s.halted": {presence.EndForced, "waited for hook flush"},
	} {
		n := 0
		for _, e := range list {
			if e.Process == id {
				n++
				if e.To != want[0] || !strings.Contains(e.Cause, want[1]) {
					t.Errorf("%s: %s %q, want %q", id, e.To, e.Cause, want)
				}
			}
		}
		if n != 1 && !(n > 1 && id == "s.plain") { // that one dies again a TTL after its return
			t.Errorf("%s has %d tombstones", id, n)
		}
	}
}

// A process that is killed and started again under its id disappears once in each life. A life
// that says its end has no tombstone, also when the next one has announced itself before, and
// neither has a life that comes back.
func TestEachLifeOfAnIDHasItsTombstone(t *testing.T) {
	js := nats(t)
	cfg := presence.Config{TTL: 4 * time.Second, Every: 200 * time.Millisecond, ID: "same"}
	f := open(t, js, cfg)
	l := &log{seen: map[string]int{}, gone: map[string]int{}}
	attend(t, f, l)
	attend(t, f, &log{seen: map[string]int{}, gone: map[string]int{}})
	const killed = "s.killed"
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	entry := func(life int) string {
		began := begin.Add(time.Duration(life) * time.Minute).Format(time.RFC3339)
		return string(presence.Entry(killed, []byte(`{"id":"s.killed","service":"s","startedAt":"`+began+
			`","status":{"report":{"phase":"running","phases":[{"entered":"`+began+`"}]}}}`)))
	}
	for life := range 3 {
		announce(t, js, l, killed, entry(life))
	}
	_, id, stopOld := start(t, js, cfg, nil)
	brokertest.Await(t, "the old life", l.is(func() bool { return l.seen[id] > 0 }))
	start(t, js, cfg, nil)
	brokertest.Await(t, "the begin of the new life", func() bool {
		return len(events(t, f, presence.EventQuery{Process: id, Kinds: []string{"joined"}})) == 2
	})
	if err := stopOld(); err != nil {
		t.Error(err)
	}
	lost := func() (lives []int) {
		for _, e := range events(t, f, presence.EventQuery{Kinds: []string{"lost"}}) {
			if e.Process != killed {
				t.Errorf("%s has a tombstone: %s", e.Process, e.Cause)
			}
			lives = append(lives, int(e.Life.Sub(begin)/time.Minute))
		}
		slices.Sort(lives)
		return lives
	}
	brokertest.Await(t, "the tombstones", func() bool { return len(lost()) >= 3 })
	time.Sleep(cfg.TTL * 4 / 3) // by then a tombstone of another life would be there
	if lives := lost(); !slices.Equal(lives, []int{0, 1, 2}) {
		t.Errorf("the lives %v have tombstones", lives)
	}
	if !l.is(func() bool { return l.gone[killed] == 1 })() {
		t.Error("the watch does not see one end of the id")
	}
}

// While NATS is away no process ends. The only server restarts and loses the bucket:
// after that no process that lives has a tombstone, and none has left the list.
func TestOutageBuriesNoProcess(t *testing.T) {
	srv := brokertest.StartCluster(t, 1)
	js := connect(t, srv.URL())
	cfg := presence.Config{TTL: 4 * time.Second, Every: 200 * time.Millisecond, Journal: "J2"}
	f := open(t, js, cfg)
	_, id, _ := start(t, js, cfg, nil)
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	l := &log{seen: map[string]int{}, gone: map[string]int{}}
	attend(t, f, l)
	brokertest.Await(t, "the process", l.is(func() bool { return l.seen[id] > 0 }))
	srv.StopAll()
	time.Sleep(5 * time.Second) // longer than the TTL
	srv.StartAll()
	before := 0
	l.is(func() bool { before = l.seen[id]; return true })()
	brokertest.Await(t, "the process after the restart", l.is(func() bool { return l.seen[id] > before+3 }))
	if l.is(func() bool { return l.gone[id] > 0 })() {
		t.Error("the process left the list")
	}
	if list := events(t, f, presence.EventQuery{Kinds: []string{"lost"}}); len(list) > 0 {
		t.Errorf("the journal has a tombstone:\n%s", show(list))
	}
}

// network dials, and may be cut.
type network struct {
	mu    sync.Mutex
	isCut bool
	conns []net.Conn
}

func (n *network) Dial(kind, address string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isCut {
		return nil, errors.New("the network is cut")
	}
	conn, err := net.Dial(kind, address)
	if err == nil {
		n.conns = append(n.conns, conn)
	}
	return conn, err
}

func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.isCut = true
	for _, conn := range n.conns {
		_ = conn.Close()
	}
	n.conns = nil
}

func (n *network) mend() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.isCut = false
}

// An operators' server that was cut off for longer than the TTL sees neither that a process has left nor
// that another server has noted one as lost. It writes no tombstone of either.
func TestServerThatWasCutOffBuriesNoProcess(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Listen: "127.0.0.1:0"})
	js := b.JetStream()
	// The other tombstone is too old for the server to know its id.
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name:       "FLEET_JOURNAL",
		Subjects:   []string{"lifecycle.fleet.event.>"},
		Duplicates: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	var wire network
	nc, err := natsgo.Connect(b.ClientURL(), natsgo.SetCustomDialer(&wire), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	far, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	cfg := presence.Config{TTL: 3 * time.Second, Every: 200 * time.Millisecond, Logger: brokertest.Quiet()}
	f := open(t, js, cfg)
	cutOff, other := &log{seen: map[string]int{}, gone: map[string]int{}}, &log{seen: map[string]int{}, gone: map[string]int{}}
	attend(t, open(t, far, cfg), cutOff)
	stopOther := attend(t, f, other)

	_, clean, stop := start(t, js, cfg, nil)
	await(t, f, clean, "readiness", func(p presence.Process) bool { return p.Ready })
	brokertest.Await(t, "the process", cutOff.is(func() bool { return cutOff.seen[clean] > 0 }))
	const killed = "s.killed"
	entry := string(presence.Entry(killed, []byte(`{"id":"s.killed","service":"s","status":{"report":{"phase":"running"}}}`)))
	announce(t, js, other, killed, entry)
	announce(t, js, cutOff, killed, entry)
	wire.cut()
	if err := stop(); err != nil {
		t.Error(err)
	}
	tombstones := func(id string) int {
		return len(events(t, f, presence.EventQuery{Process: id, Kinds: []string{"lost"}}))
	}
	brokertest.Await(t, "the tombstone of the other server", func() bool { return tombstones(killed) == 1 })
	brokertest.Await(t, "the end of all entries", func() bool {
		s, err := js.Stream(t.Context(), "KV_FLEET")
		return err == nil && s.CachedInfo().State.Msgs == 0
	})
	stopOther()
	wire.mend()
	for _, id := range []string{clean, killed} {
		brokertest.Await(t, "the end of "+id, cutOff.is(func() bool { return cutOff.gone[id] > 0 }))
	}
	// What the server writes about an end comes before what it writes about a return.
	announce(t, js, cutOff, killed, string(presence.Entry(killed, []byte(`{"id":"s.killed","service":"s"}`))))
	brokertest.Await(t, "the return", func() bool {
		return has(events(t, f, presence.EventQuery{Process: killed}), "returned", "", "", "")
	})
	if n := tombstones(clean); n > 0 {
		t.Errorf("a process that has left has %d tombstones:\n%s", n, show(events(t, f, presence.EventQuery{Process: clean})))
	}
	if n := tombstones(killed); n != 1 {
		t.Errorf("a process that was lost once has %d tombstones", n)
	}
}

// A record whose text claims another process than its subject is shown as forged, and
// one that cannot be read as such.
func TestForgedRecords(t *testing.T) {
	js := nats(t)
	_, id, _ := start(t, js, presence.Config{}, nil)
	f := open(t, js, presence.Config{})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	brokertest.Await(t, "the journal", func() bool { _, err := js.Stream(t.Context(), "FLEET_JOURNAL"); return err == nil })
	for subject, data := range map[string]string{
		"lifecycle.fleet.event.missions.evil.exit":  `{"service":"missions","process":"` + id + `","kind":"exit","to":"failed"}`,
		"lifecycle.fleet.event.missions.evil2.exit": `not json`,
		// What the permissions of the service billing allow:
		"lifecycle.fleet.event.billing." + strings.ReplaceAll(id, ".", "-") + ".exit": `{"service":"billing","process":"` + id + `","kind":"exit","to":"failed"}`,
	} {
		if _, err := js.Publish(t.Context(), subject, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	if has(events(t, f, presence.EventQuery{Process: id}), "exit", "", "", "") {
		t.Error("the forged end counts as the process's own")
	}
	list := events(t, f, presence.EventQuery{Contains: "evil"})
	if !has(list, "forged", "", "", id) || !has(list, "forged", "", "", "cannot be read") {
		t.Errorf("not both forged records in\n%s", show(list))
	}
	if list := events(t, f, presence.EventQuery{Service: "billing"}); !has(list, "forged", "", "", "billing/"+id) {
		t.Errorf("a service that writes about a process of another is not shown as forging:\n%s", show(list))
	}
}

// A process with too many events loses some, and the journal says how many. The
// journal's loss delays nothing.
func TestEventStormIsBounded(t *testing.T) {
	js := nats(t)
	app, id, stop := start(t, js, presence.Config{}, nil)
	f := open(t, js, presence.Config{})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	for range 5000 {
		app.Suspend("storm")
		app.Resume()
	}
	brokertest.Await(t, "the count of the dropped", func() bool {
		return has(events(t, f, presence.EventQuery{Process: id, Kinds: []string{"dropped"}}), "dropped", "", "", "")
	})
	if err := js.DeleteStream(t.Context(), "FLEET_JOURNAL"); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if list := events(t, f, presence.EventQuery{Process: id}); !has(list, "exit", "", presence.EndClean, "") {
		t.Errorf("a journal that was deleted does not have the end:\n%s", show(list))
	}
}

func connect(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	return brokertest.Connect(t, broker.Config{URL: url}).JetStream()
}

// With last_stop_file the event "joined" says how the life before ended.
func TestJoinedSaysHowTheLifeBeforeEnded(t *testing.T) {
	js := nats(t)
	f := open(t, js, presence.Config{Logger: brokertest.Quiet()})
	cfg := lifecycle.Config{
		Name:          "missions",
		HealthAddr:    lifecycle.HealthOff,
		DrainInterval: lifecycle.Off,
		LastStopFile:  filepath.Join(t.TempDir(), "last-stop.json"),
	}
	live := func(end error) {
		app, err := lifecycle.New(cfg, lifecycle.WithLogger(brokertest.Quiet()))
		if err != nil {
			t.Fatal(err)
		}
		presence.Announce(app, js, presence.Config{ID: "one", Logger: brokertest.Quiet()})
		app.Go("poller", func(context.Context) error { return end })
		if end == nil {
			app.Job("once", func(context.Context) error { return nil })
		}
		_ = app.Run(t.Context())
	}
	live(errors.New("no such table"))
	live(nil)
	joined := events(t, f, presence.EventQuery{Kinds: []string{"joined"}, Process: "missions.one"})
	if len(joined) != 2 || joined[0].Cause != "" {
		t.Fatalf("it joined with %s", show(joined))
	}
	for _, says := range []string{"the previous life ended failed, with exit status 1", "no such table"} {
		if !strings.Contains(joined[1].Cause, says) {
			t.Errorf("the second life joined with %q, want %q", joined[1].Cause, says)
		}
	}
}

// A start that fails before the process can announce itself is in the journal, with its cause.
func TestStartThatFails(t *testing.T) {
	js := nats(t)
	f := open(t, js, presence.Config{})
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	app, err := lifecycle.New(lifecycle.Config{Name: "shop", HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off}, lifecycle.WithLogger(brokertest.Quiet()))
	if err != nil {
		t.Fatal(err)
	}
	id := presence.Announce(app, js, presence.Config{ID: "one", Version: "1.2.3", Logger: brokertest.Quiet()})
	app.Serve("http", &http.Server{Addr: taken.Addr().String()})
	if err := app.Run(t.Context()); err == nil {
		t.Fatal("it has started")
	}
	list := events(t, f, presence.EventQuery{Process: id})
	if !has(list, "joined", "", "", "") || !has(list, "exit", "", presence.EndFailed, "address already in use") {
		t.Errorf("the journal has\n%s", show(list))
	}
}
