// Package replay reads the stored messages of a stream once, in order.
//
// Each batch has a consumer of its own, so a batch that ends early is not the end: the next
// one goes on behind the last message. Begin with [Each].
package replay

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrStalled is the error of [Each] when the server has messages and sends none of them,
// three times in a row.
var ErrStalled = errors.New("the server has messages and sends none")

const (
	batchSize = 500
	inactive  = 30 * time.Second // after which the server deletes a consumer that its reader has not deleted
	maxEmpty  = 3
	pause     = 20 * time.Millisecond // after the first empty batch; after the second twice as long
)

// Each calls each for the messages that by selects, from by.OptStartTime or by.OptStartSeq on,
// until each returns false or an error, limit messages were read, or there is no more. It
// calls each at most once for a message, and skips none that stays in the stream meanwhile.
//
// nats.go ends a batch without an error when nothing comes for a second, because the process
// or the connection was suspended, and what the server has sent by then is not sent again
// (jetstream, Consumer.FetchNoWait). So a batch that is too short does not mean the end: Each
// asks the server anew for what comes behind the last message. The server that has the connection
// may not know yet a consumer that another server of its cluster has just made: that is a batch
// without messages too.
func Each(
	ctx context.Context, stream jetstream.Stream, by jetstream.ConsumerConfig, limit int,
	each func(jetstream.Msg, *jetstream.MsgMetadata) (bool, error),
) error {
	r := reader{ctx: ctx, stream: stream, next: by.OptStartSeq, left: limit, each: each}
	by.AckPolicy, by.InactiveThreshold, by.MemoryStorage, by.Replicas = jetstream.AckNonePolicy, inactive, true, 1
	by.DeliverPolicy = jetstream.DeliverByStartTimePolicy
	for empty := 0; empty < maxEmpty; {
		before := r.next
		if by.OptStartTime == nil || r.next > 0 {
			by.DeliverPolicy, by.OptStartTime, by.OptStartSeq = jetstream.DeliverByStartSequencePolicy, nil, max(r.next, 1)
		}
		if over, err := r.read(by); over || err != nil {
			return err
		}
		if r.next > before {
			empty = 0
			continue
		}
		empty++
		select {
		case <-time.After(time.Duration(empty) * pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return ErrStalled
}

// reader is one call of [Each].
type reader struct {
	ctx    context.Context
	stream jetstream.Stream
	next   uint64 // behind the last message
	left   int    // messages of the limit
	each   func(jetstream.Msg, *jetstream.MsgMetadata) (bool, error)
}

// read reads by one consumer until a batch is too short. over says that nothing is left
// to read.
func (r *reader) read(by jetstream.ConsumerConfig) (over bool, err error) {
	c, err := r.stream.CreateConsumer(r.ctx, by)
	if err != nil {
		return false, err
	}
	info := c.CachedInfo()
	defer func() { _ = r.stream.DeleteConsumer(context.WithoutCancel(r.ctx), info.Name) }()
	for pending, delivered := info.NumPending, uint64(0); ; {
		if r.left <= 0 || pending == 0 {
			return true, nil
		}
		asked := int(min(pending, uint64(r.left), batchSize))
		batch, err := c.FetchNoWait(asked)
		if err != nil {
			return false, err
		}
		got, isEnd := 0, false
		for m := range batch.Messages() {
			if isEnd {
				continue // to the end of the batch: until then the client's goroutine for it runs
			}
			meta, failure := m.Metadata()
			if failure != nil {
				isEnd, err = true, failure
				continue
			}
			if delivered++; meta.Sequence.Consumer != delivered {
				isEnd = true // some were lost on the way
				continue
			}
			got++
			pending, r.next = meta.NumPending, meta.Sequence.Stream+1
			r.left--
			more, failure := r.each(m, meta)
			if failure != nil || !more {
				isEnd, over, err = true, true, failure
			}
		}
		if isEnd {
			return over, err
		}
		err = batch.Error()
		if errors.Is(err, nats.ErrNoResponders) {
			err = nil
		}
		if err := errors.Join(err, r.ctx.Err()); err != nil {
			return false, err
		}
		if got < asked {
			return false, nil
		}
	}
}
