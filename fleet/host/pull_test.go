package host

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/internal/lanes"
)

// asker is a pull whose requests the test sees.
type asker struct {
	*pull
	t    *testing.T
	nc   *nats.Conn
	seen *nats.Subscription
}

func newAsker(t *testing.T, prefetch int) *asker {
	nc := brokertest.Embedded(t, broker.Config{}).Conn()
	r := &runner{host: &Host{nc: nc, cfg: Config{Prefetch: prefetch}}, slot: &slot{name: "w"}, queue: lanes.New[*delivery](0), fed: make(chan struct{})}
	r.taking, r.enough = context.WithCancel(t.Context())
	p := &pull{r: r, inbox: nc.NewInbox(), next: "asks"}
	r.pull.Store(p)
	seen, err := nc.SubscribeSync("asks")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = seen.Unsubscribe() }) // its connection would wait until everything is read
	return &asker{p, t, nc, seen}
}

// want checks for how many messages the pull has asked since the last call.
func (a *asker) want(batch ...int) {
	a.t.Helper()
	if err := a.nc.Flush(); err != nil {
		a.t.Fatal(err)
	}
	var got []int
	for {
		n, _, err := a.seen.Pending()
		if err != nil {
			a.t.Fatal(err)
		}
		if n == 0 {
			break
		}
		m, err := a.seen.NextMsg(time.Minute)
		if err != nil {
			a.t.Fatal(err)
		}
		var question struct {
			Batch int `json:"batch"`
		}
		if err := json.Unmarshal(m.Data, &question); err != nil {
			a.t.Fatal(err)
		}
		got = append(got, question.Batch)
	}
	if fmt.Sprint(got) != fmt.Sprint(batch) {
		a.t.Errorf("asked for %v, want %v", got, batch)
	}
}

func (a *asker) says(code string, header ...string) {
	m := nats.NewMsg(a.inbox)
	m.Header.Set("Status", code)
	for i := 0; i < len(header); i += 2 {
		m.Header.Set(header[i], header[i+1])
	}
	a.receive(m)
}

// A pull asks for as many messages as there is room for, in batches while some are on
// their way, and for the rest of a request that has ended.
func TestPullAsksForWhatThereIsRoomFor(t *testing.T) {
	a := newAsker(t, 10)
	a.ask()
	a.want(10)
	a.ask()
	a.want()
	a.says("408", "Nats-Pending-Messages", "4") // 6 have come
	a.want()                                    // less than a half
	a.says("408", "Nats-Pending-Messages", "2")
	a.want(6)
	a.says("100")
	a.want()
	a.says("408", "Nats-Pending-Messages", "10")
	a.want(10)
	a.says("408", "Nats-Pending-Messages", "3")
	for i := range 3 { // tasks that wait, as those behind a retry do
		if err := a.r.queue.Add(t.Context(), "key", nil, i); err != nil {
			t.Fatal(err)
		}
	}
	a.says("408", "Nats-Pending-Messages", "7")
	a.want(7)
	for range 6 {
		if err := a.r.queue.Add(t.Context(), "key", nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	a.says("408", "Nats-Pending-Messages", "7")
	a.want() // there is something to do
	if _, err := a.r.queue.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.ask()
	a.want(1) // other keys have what is left
}

// After a refusal, and after a connection was lost, a pull asks again. When the server
// says nothing for two heartbeats the runner ends.
func TestPullAsksAgain(t *testing.T) {
	a := newAsker(t, 10)
	a.ask()
	a.want(10)
	begin := a.heard
	a.says("503")
	a.want() // not in a loop
	for _, after := range []time.Duration{time.Second, noWord} {
		a.look(begin.Add(after), true, 0)
		a.want(10)
		a.says("503")
	}
	a.says("100")
	a.want(10)
	begin = a.heard
	a.look(begin, true, 1) // reconnected
	a.want(10)
	a.look(begin.Add(time.Hour), false, 1) // disconnected
	a.want()
	a.look(begin.Add(time.Hour+noWord), true, 1)
	a.want(10)
	select {
	case <-a.r.fed:
		t.Fatalf("the runner ended: %v", a.r.fault)
	default:
	}
	a.look(a.heard.Add(2*noWord+1), true, 1)
	<-a.r.fed
	if a.r.fault == nil || !a.r.halting.Load() {
		t.Errorf("the runner has the fault %v", a.r.fault)
	}
	a.ask()
	a.want()
}

// A server that refuses for as long as it may be silent ends the runner, and so does a
// consumer that was deleted.
func TestPullGivesUp(t *testing.T) {
	a := newAsker(t, 10)
	a.ask()
	begin := a.heard
	a.says("503")
	a.look(begin.Add(noWord), true, 0)
	a.says("503")
	a.look(begin.Add(2*noWord+1), true, 0)
	<-a.r.fed
	if a.r.fault == nil {
		t.Error("no fault")
	}
	a = newAsker(t, 10)
	a.ask()
	a.says("409", "Description", "Consumer Deleted")
	<-a.r.fed
	if a.r.fault == nil {
		t.Error("no fault")
	}
}
