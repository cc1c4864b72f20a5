package workflow_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// muffler is a TCP proxy between a client and a server that can drop the answers:
// the server carries out a write, and the client gets no answer.
type muffler struct {
	addr  string
	to    string
	mute  atomic.Bool
	after atomic.Value // a request with this text mutes all answers
	mu    sync.Mutex   // guards the fields below
	l     net.Listener // nil while it is closed
	conns []net.Conn
	wg    sync.WaitGroup
}

func muffle(t testing.TB, urls string) *muffler {
	t.Helper()
	first, _, _ := strings.Cut(urls, ",")
	p := &muffler{addr: "127.0.0.1:0", to: strings.TrimPrefix(first, "nats://")}
	p.open(t)
	t.Cleanup(func() {
		p.close()
		p.wg.Wait()
	})
	return p
}

func (p *muffler) url() string { return "nats://" + p.addr }

// open lets clients in, at the same address as before.
func (p *muffler) open(t testing.TB) {
	t.Helper()
	l, err := net.Listen("tcp", p.addr)
	must(t, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.l, p.addr = l, l.Addr().String()
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.carry(c) })
		}
	})
}

// close breaks every connection and takes no more.
func (p *muffler) close() {
	p.mu.Lock()
	if p.l != nil {
		p.l.Close()
	}
	p.l = nil
	p.mu.Unlock()
	p.cut()
}

func (p *muffler) carry(c net.Conn) {
	defer c.Close()
	s, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer s.Close()
	p.mu.Lock()
	p.conns = append(p.conns, c, s)
	closed := p.l == nil
	p.mu.Unlock()
	if closed {
		return
	}
	p.wg.Go(func() { _, _ = io.Copy(io.MultiWriter(watcher{p}, s), c); s.Close() })
	buf := make([]byte, 64<<10)
	for {
		n, err := s.Read(buf)
		if err != nil {
			return
		}
		if p.mute.Load() {
			continue
		}
		if _, err := c.Write(buf[:n]); err != nil {
			return
		}
	}
}

// watcher sees what clients send before the server does.
type watcher struct{ *muffler }

func (w watcher) Write(b []byte) (int, error) {
	if after, _ := w.after.Load().(string); after != "" && strings.Contains(string(b), after) {
		w.mute.Store(true)
	}
	return len(b), nil
}

// cut breaks every connection.
func (p *muffler) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

// TestLargeBucketIsReadOnce loses the answer about the consumer of a view, as when a server takes
// longer for it than an attempt: the next attempt finds the consumer that the server has made.
func TestLargeBucketIsReadOnce(t *testing.T) {
	srv := brokertest.NewSite(t).Connect(t, broker.Config{Buckets: buckets()})
	rigOn(t, srv).create(t, "m1", "planning")
	stream, err := srv.JetStream().Stream(t.Context(), "KV_MISSIONS")
	must(t, err)
	before, made := map[string]bool{}, ""
	consumers := func(each func(name string)) {
		for info := range stream.ListConsumers(t.Context()).Info() {
			each(info.Name)
		}
	}
	consumers(func(name string) { before[name] = true })
	p := muffle(t, srv.ClientURL())
	p.after.Store("CONSUMER.CREATE.KV_MISSIONS")
	m := workflow.NewManager(brokertest.Connect(t, broker.Config{URL: p.url(), ReconnectWait: 20 * time.Millisecond}).JetStream(), brokertest.Quiet())
	defer m.Close()
	registered := make(chan error, 1)
	go func() { registered <- m.Register(survey, newMission, table) }()
	brokertest.Await(t, "the server to make the consumer", func() bool {
		consumers(func(name string) {
			if !before[name] {
				made = name
			}
		})
		return made != ""
	})
	time.Sleep(4 * time.Second) // longer than an attempt
	p.after.Store("")
	p.mute.Store(false)
	p.cut()
	must(t, <-registered)
	list, err := m.Query(t.Context(), survey, workflow.ListOptions{Fresh: true})
	must(t, err)
	if len(list.Records) != 1 {
		t.Errorf("the view has %d entities, want 1", len(list.Records))
	}
	consumer, err := stream.Consumer(t.Context(), made)
	if err == nil && consumer.CachedInfo().Delivered.Consumer == 0 { // one that was used may be gone
		t.Error("the view has not read by the consumer that the server has made")
	}
}

func TestWriteWhoseAnswerIsLostIsFound(t *testing.T) {
	srv := brokertest.NewSite(t).Connect(t, broker.Config{Buckets: buckets()})
	p := muffle(t, srv.ClientURL())
	here := rigOn(t, srv)
	there := rigOn(t, brokertest.Connect(t, broker.Config{URL: p.url(), ReconnectWait: 20 * time.Millisecond}))
	ctx := testContext(t)
	must(t, there.Ready(ctx))
	for i, after := range []string{"alone", "then another's update", "then another's transition"} {
		id := "m" + strconv.Itoa(i)
		here.create(t, id, "planning")
		if _, err := there.missions.List(ctx, workflow.ListOptions{Fresh: true}); err != nil {
			t.Fatal(err)
		}
		p.mute.Store(true)
		done := make(chan error, 1)
		go func() { done <- there.missions.Transition(ctx, id, "flying", "operator", "not answered") }()
		brokertest.Await(t, "the write to be carried out", func() bool {
			got, err := here.missions.Get(ctx, id)
			return err == nil && got.State == "flying"
		})
		switch i {
		case 1:
			must(t, here.missions.Update(ctx, id, func(m *Mission) error { m.Count++; return nil }))
		case 2:
			here.move(t, id, "landing")
		}
		p.mute.Store(false)
		p.cut()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", after, err)
		}
		events, err := here.missions.History(ctx, id)
		must(t, err)
		flew := 0
		for _, e := range events {
			if e.To == "flying" {
				flew++
			}
		}
		if flew != 1 {
			t.Errorf("%s: the transition happened %d times: %+v", after, flew, events)
		}
	}
}

func TestWriteWhoseOutcomeCannotBeKnownSaysSo(t *testing.T) {
	srv := brokertest.NewSite(t).Connect(t, broker.Config{Buckets: buckets()})
	p := muffle(t, srv.ClientURL())
	here := rigOn(t, srv)
	there := rigOn(t, brokertest.Connect(t, broker.Config{URL: p.url(), ReconnectWait: 20 * time.Millisecond}))
	ctx := testContext(t)
	here.create(t, "m1", "planning")
	_, err := there.missions.List(ctx, workflow.ListOptions{Fresh: true})
	must(t, err)
	p.mute.Store(true)
	short, cancel := context.WithTimeout(ctx, 5*time.Second) // the write must be sent before
	defer cancel()
	err = there.missions.Transition(short, "m1", "flying", "operator", "")
	if !errors.Is(err, workflow.ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want ErrOutcomeUnknown and the deadline", err)
	}
	p.mute.Store(false)
	p.cut()
}

func TestServerThatGoesAwayAndComesBack(t *testing.T) {
	site := brokertest.NewSite(t)
	ctx := testContext(t)
	r := rigOn(t, site.Connect(t, broker.Config{Buckets: buckets()}))
	events, err := r.WatchEvents(ctx, survey)
	must(t, err)
	seen := make(map[uint64]int)
	collect := func(until uint64) {
		t.Helper()
		for {
			select {
			case e := <-events:
				if e.Kind == workflow.EventGap {
					t.Error("the watch reports a gap although nothing was lost")
				}
				if e.Kind == workflow.EventPut {
					seen[e.Revision]++
				}
				if e.Revision >= until {
					return
				}
			case <-ctx.Done():
				t.Fatalf("revision %d never came: %v", until, seen)
			}
		}
	}
	r.create(t, "m0", "planning") // the last write: a watch that began again would send it again
	r.create(t, "m1", "planning")
	r.move(t, "m1", "flying")
	collect(3)
	site.Stop()

	// While there is no server a write with little time fails, and one with enough
	// waits for the server.
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if err := r.missions.Transition(short, "m1", "landing", "rule", ""); err == nil {
		t.Error("written while there was no server")
	}
	// A refusal is confirmed with a fresh record, which waits for the server too.
	refused := make(chan error, 1)
	go func() { refused <- r.missions.Transition(ctx, "m0", "completed", "rule", "") }()
	done := make(chan error, 1)
	go func() { done <- r.missions.Transition(ctx, "m1", "capturing", "rule", "") }()
	time.Sleep(20 * time.Millisecond) // not needed for the outcome: the write likely starts without a server
	site.Start()
	must(t, <-done)
	if err := <-refused; !errors.Is(err, workflow.ErrInvalidTransition) {
		t.Errorf("a transition that the table does not allow: %v", err)
	}
	collect(4)
	for rev, n := range seen {
		if n != 1 {
			t.Errorf("revision %d was told %d times", rev, n)
		}
	}
	list, err := r.missions.List(ctx, workflow.ListOptions{Fresh: true})
	must(t, err)
	if len(list) != 2 || list[1].State != "capturing" {
		t.Errorf("list: %+v", list)
	}
}

// TestOutageIsCalledOne checks the texts of what a process without a server does.
func TestOutageIsCalledOne(t *testing.T) {
	site := brokertest.NewSite(t)
	ctx := testContext(t)
	r := rigOn(t, site.Connect(t, broker.Config{Buckets: buckets()}))
	must(t, r.Ready(ctx))
	site.Stop()
	brokertest.Await(t, "the connection to be down", func() bool { return !r.js.Conn().IsConnected() })
	said := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "disconnected") || strings.Contains(err.Error(), "buffer") {
			t.Errorf("%s without a server: %v", what, err)
		}
	}
	var creates sync.WaitGroup
	for i := range 100 { // their times end in different steps of an attempt
		creates.Go(func() {
			short, cancel := context.WithTimeout(ctx, 300*time.Millisecond+time.Duration(i)*time.Millisecond)
			defer cancel()
			err := r.missions.Create(short, &Mission{ID: "m" + strconv.Itoa(i), State: "planning"})
			if !errors.Is(err, workflow.ErrOutcomeUnknown) { // the time ended as the client sent it
				said("Create", err)
			}
		})
	}
	creates.Wait()
	over, end := context.WithDeadline(ctx, time.Now())
	defer end()
	err := r.missions.Create(over, &Mission{ID: "late", State: "planning"})
	said("Create without any time", err)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Create without any time: %v", err)
	}
	_, err = r.missions.Get(ctx, "m1")
	said("Get", err)
	late := rigOn(t, r.b)
	brokertest.Await(t, "the view to say why it does not follow", func() bool { return late.Views()[0].Trouble != "" })
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	said("Ready", late.Ready(short))
}

func TestBucketThatIsNotThere(t *testing.T) {
	b := brokertest.Server(t, broker.Config{})
	r := rigOn(t, b)
	ctx := testContext(t)
	if err := r.missions.Create(ctx, &Mission{ID: "m1", State: "planning"}); !errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, workflow.ErrOutcomeUnknown) {
		t.Errorf("create: %v", err)
	}
	if _, err := r.missions.Get(ctx, "m1"); !errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, workflow.ErrEntityNotFound) {
		t.Errorf("get: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	// On a busy machine the view may know already.
	if _, err := r.missions.List(short, workflow.ListOptions{}); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, jetstream.ErrBucketNotFound) {
		t.Errorf("list: %v", err)
	}
	// Once that it is missing is known, a list says so at once, as Get does.
	if _, err := r.missions.List(ctx, workflow.ListOptions{}); !errors.Is(err, jetstream.ErrBucketNotFound) {
		t.Errorf("list: %v", err)
	}
	if err := r.Ready(ctx); !errors.Is(err, jetstream.ErrBucketNotFound) {
		t.Errorf("ready: %v", err)
	}
	// It is created, and everything works without another Register.
	must(t, broker.Ensure(ctx, b.JetStream(), buckets(), nil))
	r.create(t, "m1", "planning")
	brokertest.Await(t, "the view to find the bucket", func() bool {
		list, err := r.missions.List(ctx, workflow.ListOptions{})
		return err == nil && len(list) == 1
	})
}

func TestBucketThatIsFull(t *testing.T) {
	small := missionsBucket
	small.MaxBytes, small.History = 4096, 1
	r := rigOn(t, brokertest.Server(t, broker.Config{Buckets: []jetstream.KeyValueConfig{small}}))
	ctx := testContext(t)
	var err error
	n := 0
	for ; err == nil && n < 100; n++ {
		err = r.missions.Create(ctx, &Mission{ID: "m" + strconv.Itoa(n), State: "planning", Secret: strings.Repeat("x", 200)})
	}
	if err == nil || errors.Is(err, workflow.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "maximum bytes exceeded") {
		t.Errorf("after %d: %v", n, err)
	}
	list, lerr := r.missions.List(ctx, workflow.ListOptions{Fresh: true})
	must(t, lerr)
	if len(list) != n-1 {
		t.Errorf("%d were acknowledged and %d are there", n-1, len(list))
	}
}

func TestRecordTooLarge(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	err := r.missions.Update(ctx, "m1", func(m *Mission) error { m.Secret = strings.Repeat("x", 5<<20); return nil })
	if !errors.Is(err, nats.ErrMaxPayload) || !strings.Contains(err.Error(), "takes 1048576") {
		t.Errorf("got %v", err)
	}
}

func TestHistoryThatIsTooShortSaysSo(t *testing.T) {
	short := missionsBucket
	short.History = 3
	r := rigOn(t, brokertest.Server(t, broker.Config{Buckets: []jetstream.KeyValueConfig{short}}))
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	r.move(t, "m1", "flying")
	trail, err := r.Trail(ctx, survey, "m1")
	must(t, err)
	if trail.Truncated || len(trail.Events) != 2 {
		t.Errorf("whole: %+v", trail)
	}
	must(t, r.missions.Update(ctx, "m1", func(m *Mission) error { m.Count++; return nil }))
	must(t, r.missions.Update(ctx, "m1", func(m *Mission) error { m.Count++; return nil }))
	r.move(t, "m1", "landing")
	trail, err = r.Trail(ctx, survey, "m1")
	must(t, err)
	if !trail.Truncated || len(trail.Events) != 1 || trail.Events[0].From != "flying" || trail.Events[0].To != "landing" {
		t.Errorf("cut off: %+v", trail)
	}
}
