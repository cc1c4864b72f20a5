package workflow

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// pullFew and pullMany are how many messages one request asks for: few when
	// writes come one by one, many when a bucket is read.
	pullFew, pullMany = 64, 4096
	// heartbeat is how often the server sends a heartbeat while it has none, and beats
	// after how many of them it ends the request.
	heartbeat, beats = 2 * time.Second, 15
	// lingerTime is the pause before a request for messages that are probably this
	// process's own writes.
	lingerTime = 5 * time.Millisecond
)

// puller reads the messages of a pull consumer, in order. It ends at the first
// irregularity: the follower knows how far it has read and begins again there with
// another consumer. The client library's own iterator waits for its consumer to come
// back; a consumer in the memory of a restarted server never does.
type puller struct {
	nc      *nats.Conn
	sub     *nats.Subscription
	subject string
	hurry   chan struct{} // ends a pause; nil for a puller without pauses
	stopped chan struct{}
	beat    time.Duration // between two heartbeats

	want    int    // messages that the current request still expects
	pending uint64 // messages at the server, as far as is known
	came    int    // messages of the current request
	news    int    // how many of them were not this process's own writes
}

// pull begins to read a consumer that has pending messages. With a hurry channel it
// pauses before a request when the last messages were all this process's own writes.
// Messages gather meanwhile: to receive them one by one would make each write clearly
// dearer.
func (b *bucket) pull(consumer string, pending uint64, hurry chan struct{}) (*puller, error) {
	sub, err := b.nc.SubscribeSync(b.nc.NewInbox())
	if err != nil {
		return nil, err
	}
	// The server sends no more than the requests ask for.
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, errors.Join(err, sub.Unsubscribe())
	}
	subject := b.api + "CONSUMER.MSG.NEXT." + b.stream + "." + consumer
	return &puller{nc: b.nc, sub: sub, subject: subject, hurry: hurry, stopped: make(chan struct{}), beat: b.pace.Of(heartbeat), pending: pending}, nil
}

// stop makes next return. Call it once, at any time.
func (p *puller) stop() {
	close(p.stopped)
	_ = p.sub.Unsubscribe() // fails only when the subscription has already ended
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
		request = fmt.Sprintf(`{"batch":%d,"expires":%d,"idle_heartbeat":%d}`, p.want, beats*p.beat, p.beat)
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
		msg, err := p.sub.NextMsg(3 * p.beat)
		if errors.Is(err, nats.ErrTimeout) {
			return nil, nil, fmt.Errorf("no heartbeat of the consumer for %v", 3*p.beat)
		}
		if err != nil {
			return nil, nil, err
		}
		if msg.Reply != "" { // the server's own messages have none
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
		case "100": // a heartbeat
		case "404", "408": // no messages, or no more
			p.want = 0
		default: // the consumer is gone, or has moved to another server
			return nil, nil, fmt.Errorf("the server says %s %s", status, msg.Header.Get("Description"))
		}
	}
}
