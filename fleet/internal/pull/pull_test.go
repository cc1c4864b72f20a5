package pull_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/internal/pull"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

// A puller counts what is on its way, and Drain returns what Next has not.
func TestMessages(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Streams: []jetstream.StreamConfig{{Name: "S", Subjects: []string{"s"}}}})
	for i := range 10 {
		if _, err := b.JetStream().Publish(t.Context(), "s", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := b.JetStream().CreateConsumer(t.Context(), "S", jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	p, err := pull.Open(b.Conn(), pull.Config{
		API:       jetstream.DefaultAPIPrefix,
		Stream:    "S",
		Consumer:  "c",
		Most:      10,
		Heartbeat: time.Minute,
		Expires:   time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	expects := func(n int) {
		t.Helper()
		if got := p.Expected(); got != n {
			t.Errorf("it expects %d messages, want %d", got, n)
		}
	}
	ask := func(r pull.Request) {
		t.Helper()
		if err := p.Ask(r); err != nil {
			t.Fatal(err)
		}
	}
	next := func(want string) {
		t.Helper()
		m, err := p.Next(t.Context())
		if err != nil || m == nil || string(m.Data) != want {
			t.Fatalf("%+v, %v; want %s", m, err, want)
		}
	}
	ask(pull.Request{Batch: 2})
	expects(2)
	next("0")
	next("1")
	expects(0)
	ask(pull.Request{Batch: 2, MaxBytes: 1 << 20})
	next("2")
	next("3")
	if m, err := p.Next(t.Context()); m != nil || err != nil { // the server says that the batch is complete
		t.Errorf("the end of a request is %+v, %v", m, err)
	}
	ask(pull.Request{Batch: 6, NoWait: true})
	next("4")
	brokertest.Await(t, "the messages have come", func() bool { return p.Came() == 5 })
	unread := p.Drain()
	if len(unread) != 5 || string(unread[0].Data) != "5" || string(unread[4].Data) != "9" {
		t.Errorf("%d messages were not read, want 5", len(unread))
	}
	if _, err := p.Next(t.Context()); !errors.Is(err, pull.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// fake is a puller whose requests come to the test.
type fake struct {
	*pull.Puller
	t    *testing.T
	nc   *nats.Conn
	asks chan *nats.Msg
}

func newFake(t *testing.T, patience, heartbeat time.Duration) *fake {
	nc := brokertest.Embedded(t, broker.Config{}).Conn()
	f := &fake{t: t, nc: nc, asks: make(chan *nats.Msg, 64)}
	sub, err := nc.ChanSubscribe("API.CONSUMER.MSG.NEXT.S.c", f.asks)
	if err != nil {
		t.Fatal(err)
	}
	cfg := pull.Config{
		API:       "API.",
		Stream:    "S",
		Consumer:  "c",
		Most:      10,
		Heartbeat: heartbeat,
		Expires:   time.Hour,
		Patience:  patience,
	}
	if f.Puller, err = pull.Open(nc, cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Close()
		_ = sub.Unsubscribe() // its connection would wait until everything is read
	})
	return f
}

// ask asks for ten messages and returns the subject for the answers.
func (f *fake) ask() string {
	f.t.Helper()
	if err := f.Ask(pull.Request{Batch: 10}); err != nil {
		f.t.Fatal(err)
	}
	m := <-f.asks
	var question struct{ Batch int }
	if err := json.Unmarshal(m.Data, &question); err != nil || question.Batch != 10 {
		f.t.Errorf("the request is %s, %v", m.Data, err)
	}
	return m.Reply
}

func (f *fake) says(to, status string, header ...string) {
	f.t.Helper()
	m := nats.NewMsg(to)
	m.Header.Set("Status", status)
	for i := 0; i < len(header); i += 2 {
		m.Header.Set(header[i], header[i+1])
	}
	if err := f.nc.PublishMsg(m); err != nil {
		f.t.Fatal(err)
	}
}

// A request that ends with less than it asked for is over, and so is one that is refused.
func TestRequestsEnd(t *testing.T) {
	f := newFake(t, time.Hour, time.Minute)
	for _, end := range []struct {
		status, pending string
		left            int
	}{{"408", "4", 6}, {"404", "", 0}, {"409", "10", 0}, {"503", "", 0}} {
		to := f.ask()
		f.says(to, "100")
		if end.pending == "" {
			f.says(to, end.status)
		} else {
			f.says(to, end.status, "Nats-Pending-Messages", end.pending)
		}
		if m, err := f.Next(t.Context()); m != nil || err != nil || f.Expected() != end.left {
			t.Errorf("%s: %+v, %v; %d are expected, want %d", end.status, m, err, f.Expected(), end.left)
		}
		f.says(to, "408")
		if _, err := f.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// A server that refuses for longer than the patience, that is silent, or whose consumer was
// deleted ends Next. So do the context and Close.
func TestEnds(t *testing.T) {
	t.Run("refused", func(t *testing.T) {
		f := newFake(t, 0, time.Minute)
		f.says(f.ask(), "503")
		if _, err := f.Next(t.Context()); err == nil {
			t.Error("no error")
		}
	})
	t.Run("deleted", func(t *testing.T) {
		f := newFake(t, time.Hour, time.Minute)
		f.says(f.ask(), "409", "Description", "Consumer Deleted")
		if _, err := f.Next(t.Context()); !errors.Is(err, jetstream.ErrConsumerDeleted) {
			t.Error(err)
		}
	})
	t.Run("silent", func(t *testing.T) {
		f := newFake(t, time.Hour, 100*time.Millisecond)
		f.ask()
		if _, err := f.Next(t.Context()); !errors.Is(err, pull.ErrSilent) {
			t.Error(err)
		}
	})
	t.Run("nothing is expected", func(t *testing.T) {
		f := newFake(t, time.Hour, 100*time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if _, err := f.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	t.Run("closed", func(t *testing.T) {
		f := newFake(t, time.Hour, time.Minute)
		f.ask()
		time.AfterFunc(10*time.Millisecond, f.Close)
		if _, err := f.Next(t.Context()); !errors.Is(err, pull.ErrClosed) {
			t.Error(err)
		}
	})
}

// After the connection was lost and is back, nothing is expected: the server has forgotten
// the requests.
func TestReconnect(t *testing.T) {
	f := newFake(t, time.Hour, time.Minute)
	f.ask()
	if err := f.nc.ForceReconnect(); err != nil {
		t.Fatal(err)
	}
	if m, err := f.Next(t.Context()); m != nil || err != nil || f.Expected() != 0 {
		t.Errorf("%+v, %v; %d are expected", m, err, f.Expected())
	}
	f.ask()
}
