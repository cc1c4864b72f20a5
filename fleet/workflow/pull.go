package workflow

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go/fleet/internal/pull"
	"github.com/pleme-io/lifecycle-go/fsm"
)

const (
	// pullFew and pullMany are how many messages one request asks for: few when
	// writes come one by one, many when a bucket is read.
	pullFew, pullMany = 64, 4096
	// heartbeat is how often the server sends a heartbeat while it has no message. After
	// beats heartbeats it ends the request.
	heartbeat, beats = 2 * time.Second, 15
	// lingerTime is the pause before a request for messages that are probably this
	// process's own writes. A write of another process is seen later by that time; a Fresh
	// list ends the pause.
	lingerTime = 20 * time.Millisecond
)

// puller reads the messages of a pull consumer, in order. It ends at the first
// irregularity: the follower knows how far it has read and begins again there with
// another consumer.
type puller struct {
	from   *pull.Puller
	wake   fsm.Wake // ends a wait of next; nil for none
	pauses bool     // before a request, when the last messages were all this process's own writes

	read    uint64 // messages until now
	pending uint64 // messages at the server, as far as is known
	came    int    // messages of the current request
	news    int    // how many of them were not this process's own writes
}

// pull begins to read a consumer that has pending messages. During a pause messages gather:
// without it a transition takes 1.3 to 1.8 times the processor time (BenchmarkWorkflow of
// bench/workflow with 1 and 16 writers).
func (b *bucket) pull(consumer string, pending uint64, wake fsm.Wake, pauses bool) (*puller, error) {
	beat := b.pace.Of(heartbeat)
	from, err := pull.Open(b.nc, pull.Config{
		API:       b.api,
		Stream:    b.stream,
		Consumer:  consumer,
		Most:      pullMany,
		Heartbeat: beat,
		Expires:   beats * beat,
		Wake:      wake,
	})
	if err != nil {
		return nil, err
	}
	return &puller{from: from, wake: wake, pauses: pauses, pending: pending}, nil
}

// ask sends the next request.
func (p *puller) ask(ctx context.Context) error {
	r := pull.Request{Batch: int(min(max(p.pending, pullFew), pullMany))}
	if p.pauses && p.came > 0 && p.news == 0 {
		p.linger(ctx)
		r = pull.Request{Batch: pullMany, NoWait: true}
	}
	p.came, p.news = 0, 0
	return p.from.Ask(r)
}

func (p *puller) linger(ctx context.Context) {
	select {
	case <-time.After(lingerTime):
	case <-p.wake:
	case <-ctx.Done():
	}
}

// next waits for the next message. It returns none, and no error, when a request has ended, the
// connection was lost and is back, or the wake was notified.
func (p *puller) next(ctx context.Context) (*nats.Msg, *nats.MsgMetadata, error) {
	if p.from.Expected() == 0 {
		if err := p.ask(ctx); err != nil {
			return nil, nil, err
		}
	}
	msg, err := p.from.Next(ctx)
	if msg == nil || err != nil {
		return nil, nil, err
	}
	meta, err := msg.Metadata()
	if err != nil {
		return nil, nil, err
	}
	p.read++
	if meta.Sequence.Consumer != p.read {
		return nil, nil, fmt.Errorf("got message %d, want %d", meta.Sequence.Consumer, p.read)
	}
	p.came++
	p.pending = meta.NumPending
	return msg, meta, nil
}
