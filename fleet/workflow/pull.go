package workflow

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// pullFew and pullMany are how many messages are asked for at once: few where
	// writes come one by one, many where a bucket is read.
	pullFew, pullMany = 64, 4096
	// pullTime is how long the server waits for them.
	pullTime = 30 * time.Second
	// heartbeat is how often it gives a sign of life meanwhile.
	heartbeat = 2 * time.Second
	// lingerTime is the pause before messages that are expected to say nothing new.
	lingerTime = 2 * time.Millisecond
)

// puller reads what a pull consumer has, in order. It gives up as soon as
// anything is not as it should be: whoever uses it knows how far it has come, and
// begins again there with another consumer. The client library's own iterator
// waits for its consumer to come back, which one in the memory of a server that
// was restarted never does.
type puller struct {
	nc      *nats.Conn
	sub     *nats.Subscription
	subject string
	hurry   chan struct{} // ends a pause; nil for one that makes none
	stopped chan struct{}

	want    int    // of the request that is under way, how many have not come
	pending uint64 // how many there are at the server, as far as is known
	came    int    // by the request
	news    int    // of these, those that were not this process's own writes
}

// pull begins to read a consumer, which has so many messages pending. With hurry
// it lets messages gather when none of the last ones was news: each would cost a
// good part of what the write did.
func (b *bucket) pull(consumer string, pending uint64, hurry chan struct{}) (*puller, error) {
	sub, err := b.nc.SubscribeSync(b.nc.NewInbox())
	if err != nil {
		return nil, err
	}
	// No more come than were asked for.
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, errors.Join(err, sub.Unsubscribe())
	}
	subject := b.api + "CONSUMER.MSG.NEXT." + b.stream + "." + consumer
	return &puller{nc: b.nc, sub: sub, subject: subject, hurry: hurry, stopped: make(chan struct{}), pending: pending}, nil
}

// stop makes next return. It is called once, at any time.
func (p *puller) stop() {
	close(p.stopped)
	_ = p.sub.Unsubscribe() // only fails where it has ended already
}

// ask sends the next request.
func (p *puller) ask() error {
	var request string
	if p.hurry != nil && p.came > 0 && p.news == 0 {
		p.linger()
		p.want = pullMany
		request = fmt.Sprintf(`{"batch":%d,"no_wait":true}`, p.want)
	} else {
		p.want = int(min(max(p.pending, pullFew), pullMany))
		request = fmt.Sprintf(`{"batch":%d,"expires":%d,"idle_heartbeat":%d}`, p.want, pullTime, heartbeat)
	}
	p.came, p.news = 0, 0
	return p.nc.PublishRequest(p.subject, p.sub.Subject, []byte(request))
}

func (p *puller) linger() {
	timer := time.NewTimer(lingerTime)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.hurry:
	case <-p.stopped:
	}
}

// next waits for the next message.
func (p *puller) next() (*nats.Msg, *nats.MsgMetadata, error) {
	for {
		if p.want == 0 {
			if err := p.ask(); err != nil {
				return nil, nil, err
			}
		}
		msg, err := p.sub.NextMsg(3 * heartbeat)
		if errors.Is(err, nats.ErrTimeout) {
			return nil, nil, fmt.Errorf("the consumer has given no sign of life for %v", 3*heartbeat)
		}
		if err != nil {
			return nil, nil, err
		}
		if msg.Reply != "" { // what the server itself has to say has none
			meta, err := msg.Metadata()
			if err != nil {
				return nil, nil, err
			}
			p.want--
			p.came++
			p.pending = meta.NumPending
			return msg, meta, nil
		}
		switch status := msg.Header.Get("Status"); status {
		case "100": // a sign of life
		case "404", "408": // there is nothing, or nothing more
			p.want = 0
		default: // the consumer is gone, or has moved to another server
			return nil, nil, fmt.Errorf("the server says %s %s", status, msg.Header.Get("Description"))
		}
	}
}
