package workflow

import (
	"context"
	"errors"
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
	nc     *nats.Conn
	wake   fsm.Wake // ends a wait of next; nil for none
	pauses bool     // before a request, when the last messages were all this process's own writes

	reconnects uint64 // of the connection when it began

	read    uint64 // messages until now
	pending uint64 // messages at the server, as far as is known
	came    int    // messages of the current request
	news    int    // how many of them were not this process's own writes
}

// pull begins to read a consumer that has pending messages. During a pause messages gather:
// without it a transition takes 1.3 to 1.8 times the processor time (BenchmarkWorkflow of
// bench/workflow with 1 and 16 writers).
func (b *bucket) pull(consumer string, pending uint64, wake fsm.Wake, pauses bool) (*puller, error) {
	beat, reconnects := b.pace.Of(heartbeat), b.nc.Stats().Reconnects
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
	return &puller{from: from, nc: b.nc, wake: wake, pauses: pauses, pending: pending, reconnects: reconnects}, nil
}

// ask sends the next request, or returns before because the wake was notified.
func (p *puller) ask(ctx context.Context) (woken bool, err error) {
	r := pull.Request{Batch: int(min(max(p.pending, pullFew), pullMany))}
	if p.pauses && p.came > 0 && p.news == 0 {
		select {
		case <-time.After(lingerTime):
		case <-p.wake:
			return true, nil
		case <-ctx.Done():
		}
		r = pull.Request{Batch: pullMany, NoWait: true}
	}
	p.came, p.news = 0, 0
	return false, p.from.Ask(r)
}

// errReconnected says that the connection was lost and is back: messages may have been lost.
var errReconnected = errors.New("connected again")

// next waits for the next message. It returns none, and no error, when the wake was notified.
func (p *puller) next(ctx context.Context) (*nats.Msg, *nats.MsgMetadata, error) {
	for {
		if p.from.Expected() == 0 {
			if woken, err := p.ask(ctx); woken || err != nil {
				return nil, nil, err
			}
		}
		msg, err := p.from.Next(ctx)
		switch {
		case err != nil:
			return nil, nil, err
		case msg != nil:
			return p.count(msg)
		case p.nc.Stats().Reconnects != p.reconnects:
			return nil, nil, errReconnected
		case p.from.Expected() > 0: // the request goes on
			return nil, nil, nil
		}
	}
}

// count checks that no message is missing before this one.
func (p *puller) count(msg *nats.Msg) (*nats.Msg, *nats.MsgMetadata, error) {
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
