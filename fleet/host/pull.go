package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// pull takes the messages of a slot's consumer. It asks the server for as many as the
// slot has room for, and knows at any time how many are on their way. It has a
// subscription of its own, so that the server forgets its requests when it ends, and no
// goroutine but the one in which the client calls it.
type pull struct {
	r     *runner
	sub   *nats.Subscription
	inbox string
	next  string // subject of the requests

	mu         sync.Mutex // guards everything below
	asked      int        // messages that were asked for and are not here
	heard      time.Time  // when the server last answered, or was asked after a pause
	refused    bool       // the server's last answer was that it cannot
	reconnects uint64     // of the connection, when the watch last looked
	over       bool       // it asks for nothing more
	drained    bool       // its subscription was told to end
	replaced   bool       // another one takes the messages
}

// noWord is the interval of the heartbeats that the server sends while it has no
// message. After two intervals without a word the runner gives up, because a server that
// was restarted may have lost the request.
const noWord = 5 * time.Second

// asks is how long the server keeps a request.
const asks = 30 * time.Second

// take begins to take messages.
func (r *runner) take() error {
	info := r.consumer.CachedInfo()
	p := &pull{r: r, inbox: r.host.nc.NewInbox(), next: api(r.host.js) + "CONSUMER.MSG.NEXT." + info.Stream + "." + info.Name, reconnects: r.host.nc.Stats().Reconnects}
	var err error
	if p.sub, err = r.host.nc.Subscribe(p.inbox, p.receive); err != nil {
		return fmt.Errorf("consumer %s: %w", r.slot.name, err)
	}
	_ = p.sub.SetPendingLimits(-1, -1) // what was asked for is the limit
	p.sub.SetClosedHandler(func(string) {
		p.mu.Lock()
		replaced := p.replaced
		p.mu.Unlock()
		if !replaced {
			r.takesNoMore(errors.New("the subscription was closed"))
		}
	})
	r.pull.Store(p)
	if r.halting.Load() {
		p.drain()
		return nil
	}
	p.ask()
	return nil
}

// ask asks for messages when there is room for many, or when there is nothing else to
// handle: those that wait may all wait for their next attempts.
func (p *pull) ask() {
	p.mu.Lock()
	defer p.mu.Unlock()
	most := p.r.host.cfg.Prefetch
	room := most - p.asked - p.r.queue.Len()
	if few := room < (most+1)/2; p.over || room <= 0 || few && (p.asked > 0 || p.r.queue.Due() > 0) {
		return
	}
	question, err := json.Marshal(map[string]int64{"batch": int64(room), "expires": int64(asks), "idle_heartbeat": int64(noWord)})
	if err == nil {
		err = p.r.host.nc.PublishRequest(p.next, p.inbox, question)
	}
	if err != nil {
		return // the watch tries again
	}
	if p.asked == 0 && !p.refused {
		p.heard = time.Now()
	}
	p.asked += room
}

// receive takes what the server sends.
func (p *pull) receive(m *nats.Msg) {
	r := p.r
	if m.Reply == "" {
		p.status(m)
		return
	}
	p.mu.Lock()
	p.asked = max(p.asked-1, 0)
	p.heard, p.refused = time.Now(), false
	p.mu.Unlock()
	switch {
	case r.halting.Load():
		_ = (&answerer{r.host.nc, m.Reply}).Nak() // not handled; this delivery does not count
	case !r.receive(m):
		p.startOver()
	default:
		p.ask()
	}
}

// status takes an answer that is not a message.
func (p *pull) status(m *nats.Msg) {
	const heartbeat, timeout = "100", "408"
	code := m.Header.Get("Status")
	p.mu.Lock()
	switch left, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages")); {
	case code == heartbeat:
	case err == nil:
		p.asked = max(p.asked-left, 0) // this request is over
	default:
		p.asked = 0
	}
	if p.refused = code != heartbeat && code != timeout; !p.refused {
		p.heard = time.Now()
	}
	refused := p.refused
	p.mu.Unlock()
	switch {
	case m.Header.Get("Description") == "Consumer Deleted":
		p.r.takesNoMore(fmt.Errorf("consumer %s: it was deleted", p.r.slot.name))
	case !refused: // otherwise the watch asks again, in a moment
		p.ask()
	}
}

// startOver makes the server deliver again, in order, what was not answered.
func (p *pull) startOver() {
	p.mu.Lock()
	p.over, p.replaced = true, true
	p.mu.Unlock()
	_ = p.sub.Unsubscribe()
	err := p.r.startOver()
	if err == nil {
		err = p.r.take()
	}
	if err != nil {
		p.r.takesNoMore(err)
	}
}

// look asks for what the connection has lost, and ends the runner when the server says
// nothing.
func (p *pull) look(now time.Time, connected bool, reconnects uint64) {
	p.mu.Lock()
	if p.over {
		p.mu.Unlock()
		return
	}
	if !connected || reconnects != p.reconnects {
		p.reconnects, p.asked, p.refused, p.heard = reconnects, 0, false, now
	}
	silent := p.asked > 0 || p.refused
	silent = silent && now.Sub(p.heard) > 2*noWord
	p.mu.Unlock()
	if silent {
		p.r.takesNoMore(fmt.Errorf("consumer %s: the server has not answered for %v", p.r.slot.name, 2*noWord))
	} else if connected {
		p.ask()
	}
}

// drain ends the subscription. The messages that have arrived are given back.
func (p *pull) drain() {
	p.mu.Lock()
	again := p.drained
	p.over, p.drained = true, true
	p.mu.Unlock()
	if again {
		return
	}
	if p.sub.Drain() != nil {
		p.r.takesNoMore(nil) // it has ended already
	}
}

// takesNoMore notes that no message will come, and why, and halts the runner.
func (r *runner) takesNoMore(why error) {
	if r.halting.Load() {
		why = nil
	}
	if r.deaf.CompareAndSwap(false, true) {
		r.fault = why
		close(r.fed)
	}
	r.halt()
}

// answerer answers a message, as the client's own does.
type answerer struct {
	nc    *nats.Conn // nil for a timer, which no server waits for
	reply string
}

func (a *answerer) say(answer []byte) error {
	if a.nc == nil {
		return nil
	}
	return a.nc.Publish(a.reply, answer)
}

func (a *answerer) Ack() error        { return a.say([]byte("+ACK")) }
func (a *answerer) Nak() error        { return a.say([]byte("-NAK")) }
func (a *answerer) InProgress() error { return a.say([]byte("+WPI")) }

func (a *answerer) NakWithDelay(delay time.Duration) error {
	return a.say(fmt.Appendf(nil, `-NAK {"delay": %d}`, delay.Nanoseconds()))
}

func (a *answerer) TermWithReason(why string) error { return a.say([]byte("+TERM " + why)) }

// DoubleAck returns nil once the server has confirmed the acknowledgement.
func (a *answerer) DoubleAck(ctx context.Context) error {
	_, err := a.nc.RequestWithContext(ctx, a.reply, []byte("+ACK"))
	return err
}
