package host

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/worker"
)

// chain is a writer of one subject, each of whose messages expects to follow the one
// before (Nats-Expected-Last-Subject-Sequence). As long as no other writer adds a link,
// the server takes this one's links once each, in order. As soon as another has, it
// refuses them for ever. No clock is involved, and the outcome of a write whose answer
// was lost can be looked up.
type chain struct {
	states  *states // for its connection
	stream  jetstream.Stream
	subject string
	fence   uint64 // names the writer
	last    uint64 // sequence of the newest message on the subject
	n       int    // calls of append
}

// headerLink names a link: the writer and a number.
const headerLink = "Lifecycle-Link"

// newest returns the last message of the chain, or nil. It asks the stream's leader,
// which has every message that was acknowledged.
func (c *chain) newest(ctx context.Context) (*jetstream.RawStreamMsg, error) {
	return last(ctx, c.stream, c.subject)
}

// append adds a link. msgs are the messages of one atomic batch, or one message. link is
// the one of them that expects the last of the chain; the last of msgs is on the
// subject. append returns once the outcome is known: while the server does not answer,
// it asks again until ctx ends. The error wraps [ErrStale] when another writer has added
// a link. After any other error the server may still have the link; the next call takes
// that into account.
func (c *chain) append(ctx context.Context, link *nats.Msg, msgs ...*nats.Msg) error {
	name := c.writer() + strconv.Itoa(c.n)
	c.n++ // also when this fails: no two links have one name
	for _, m := range msgs {
		m.Header.Set(headerLink, name)
	}
	wait := worker.Backoff{Min: 5 * time.Millisecond, Max: time.Second}
	for attempts := 1; ; attempts++ {
		link.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(c.last, 10))
		seq, err := c.states.batch(ctx, msgs)
		if err != nil {
			if seq, err = c.outcome(ctx, name, err); errors.Is(err, ErrStale) {
				return err
			}
		}
		if err == nil {
			c.last = seq
			return nil
		}
		if sleep := wait.Sleep(ctx, attempts); sleep != nil {
			return errors.Join(sleep, err)
		}
	}
}

// outcome looks up whether a link was added, after an answer that does not say so. It
// returns its sequence when it was, ErrStale when it never can be, and why otherwise.
func (c *chain) outcome(ctx context.Context, name string, why error) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, commitWithin)
	defer cancel()
	m, err := c.newest(ctx)
	switch {
	case err != nil:
		return 0, errors.Join(why, err)
	case m == nil && c.last == 0, m != nil && m.Sequence == c.last:
		return 0, why // not added, or not yet: the next attempt expects the same
	case m != nil && m.Header.Get(headerLink) == name:
		return m.Sequence, nil
	case m != nil && strings.HasPrefix(m.Header.Get(headerLink), c.writer()):
		c.last = m.Sequence // of an earlier call, which did not learn that it was added
		return 0, why
	}
	return 0, fmt.Errorf("fencing token %d: %w", c.fence, ErrStale)
}

// writer is what the names of this writer's links begin with.
func (c *chain) writer() string { return strconv.FormatUint(c.fence, 10) + "-" }

// last returns the last message of a subject, or nil.
func last(ctx context.Context, stream jetstream.Stream, subject string) (*jetstream.RawStreamMsg, error) {
	m, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	return m, err
}
