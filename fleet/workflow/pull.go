package workflow

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// pullBatch is how many messages are asked for at once.
	pullBatch = 4096
	// pullTime is how long the server waits for them.
	pullTime = 30 * time.Second
	// heartbeat is how often it gives a sign of life meanwhile.
	heartbeat = 2 * time.Second
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
	want    int // of the request that is under way, how many have not come
}

func (b *bucket) pull(consumer string) (*puller, error) {
	sub, err := b.nc.SubscribeSync(b.nc.NewInbox())
	if err != nil {
		return nil, err
	}
	// No more come than were asked for.
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, errors.Join(err, sub.Unsubscribe())
	}
	return &puller{nc: b.nc, sub: sub, subject: b.api + "CONSUMER.MSG.NEXT." + b.stream + "." + consumer}, nil
}

// stop makes next return. It may be called at any time.
func (p *puller) stop() { _ = p.sub.Unsubscribe() } // only fails where it has ended already

// next waits for the next message.
func (p *puller) next() (*nats.Msg, *nats.MsgMetadata, error) {
	for {
		if p.want == 0 {
			request := fmt.Sprintf(`{"batch":%d,"expires":%d,"idle_heartbeat":%d}`, pullBatch, pullTime, heartbeat)
			if err := p.nc.PublishRequest(p.subject, p.sub.Subject, []byte(request)); err != nil {
				return nil, nil, err
			}
			p.want = pullBatch
		}
		msg, err := p.sub.NextMsg(3 * heartbeat)
		if errors.Is(err, nats.ErrTimeout) {
			return nil, nil, fmt.Errorf("the consumer has given no sign of life for %v", 3*heartbeat)
		}
		if err != nil {
			return nil, nil, err
		}
		if msg.Reply != "" { // what the server itself has to say has none
			p.want--
			meta, err := msg.Metadata()
			return msg, meta, err
		}
		switch status := msg.Header.Get("Status"); status {
		case "100": // a sign of life
		case "408": // the request's time is over
			p.want = 0
		default: // the consumer is gone, or has moved to another server
			return nil, nil, fmt.Errorf("the server says %s %s", status, msg.Header.Get("Description"))
		}
	}
}
