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
	from     *pull.Puller
	endPause fsm.Wake // ends a pause; nil for a puller without pauses
	stopped  chan struct{}

	read    uint64 // messages until now
	pending uint64 // messages at the server, as far as is known
	came    int    // messages of the current request
	news    int    // how many of them were not this process's own writes
}

// pull begins to read a consumer that has pending messages. With an endPause channel it
// pauses before a request when the last messages were all this process's own writes.
// Messages gather meanwhile: without the pause a transition takes 1.3 to 1.8 times the
// processor time (BenchmarkWorkflow of bench/workflow with 1 and 16 writers).
func (b *bucket) pull(consumer string, pending uint64, endPause fsm.Wake) (*puller, error) {
	beat := b.pace.Of(heartbeat)
	from, err := pull.Open(b.nc, pull.Config{
		API:       b.api,
		Stream:    b.stream,
		Consumer:  consumer,
		Most:      pullMany,
		Heartbeat: beat,
		Expires:   beats * beat,
	})
	if err != nil {
		return nil, err
	}
	return &puller{from: from, endPause: endPause, stopped: make(chan struct{}), pending: pending}, nil
}

// stop makes next return. Call it once, at any time.
func (p *puller) stop() {
	close(p.stopped)
	p.from.Close()
}

// ask sends the next request.
func (p *puller) ask() error {
	r := pull.Request{Batch: int(min(max(p.pending, pullFew), pullMany))}
	if p.endPause != nil && p.came > 0 && p.news == 0 {
		p.linger()
		r = pull.Request{Batch: pullMany, NoWait: true}
	}
	p.came, p.news = 0, 0
	return p.from.Ask(r)
}

func (p *puller) linger() {
	timer := time.NewTimer(lingerTime)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.endPause:
	case <-p.stopped:
	}
}

// next waits for the next message.
func (p *puller) next() (*nats.Msg, *nats.MsgMetadata, error) {
	for {
		if p.from.Expected() == 0 {
			if err := p.ask(); err != nil {
				return nil, nil, err
			}
		}
		msg, err := p.from.Next(context.Background())
		if err != nil {
			return nil, nil, err
		}
		if msg == nil {
			continue
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
}
