package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/worker"
)

// chain writes messages, called links, to one subject. Each link expects to follow the one
// before it (Nats-Expected-Last-Subject-Sequence). While no other writer adds a link, the
// server takes the links of this writer once each, in order. As soon as another writer has
// added one, the server refuses this writer for ever. No clock is involved, and the outcome of
// a write whose answer was lost can be looked up.
type chain struct {
	nc      *nats.Conn
	stream  jetstream.Stream
	subject string
	fence   uint64 // names the writer
	nonce   string // names it too: two that look at one chain together take the same fence behind it
	last    uint64 // sequence of the newest message on the subject
	appends int    // calls of append so far
	// blocked is called with the reason once a link has taken longer than commitWithin, and with nil
	// when it is added after all. nil for no call.
	blocked func(error)
}

// headerLink names a link: the writer and a number.
const headerLink = "Lifecycle-Link"

// Headers of atomic batches, for which the client has no names.
const (
	headerBatchID     = "Nats-Batch-Id"
	headerBatchSeq    = "Nats-Batch-Sequence"
	headerBatchCommit = "Nats-Batch-Commit"
)

// commitWithin bounds the wait for the answer to a write. A server that restarts may never
// send the answer. The chain then looks up whether the server carried out the write.
const commitWithin = 5 * time.Second

// newest returns the last message of the chain, or nil. It asks the stream's leader, which
// has every message that was acknowledged.
func (c *chain) newest(ctx context.Context) (*jetstream.RawStreamMsg, error) {
	return last(ctx, c.stream, c.subject)
}

// writer returns the beginning of the names of this writer's links.
func (c *chain) writer() string { return strconv.FormatUint(c.fence, 10) + "-" + c.nonce }

// append adds a link: one message, or an atomic batch whose last message is on the chain's subject.
// The first message on that subject says which one it has to follow. append
// returns once the outcome is known: while the server does not answer, it asks again until ctx
// ends. The error wraps [ErrStale] when another writer has added a link. After any other error
// the server may still have the link, and the next call looks for it.
func (c *chain) append(ctx context.Context, msgs ...*nats.Msg) error {
	name := c.writer() + strconv.Itoa(c.appends)
	c.appends++ // also when this fails: no two links have one name
	for _, m := range msgs {
		m.Header.Set(headerLink, name)
	}
	link := msgs[slices.IndexFunc(msgs, func(m *nats.Msg) bool { return m.Subject == c.subject })]
	wait := worker.Backoff{Min: 5 * time.Millisecond, Max: time.Second}
	began, told := time.Now(), c.blocked == nil
	for attempts := 1; ; attempts++ {
		link.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(c.last, 10))
		seq, err := c.publish(ctx, msgs)
		if err != nil {
			seq, err = c.outcome(ctx, name, err)
		}
		if err == nil {
			c.last = seq
			if told && c.blocked != nil {
				c.blocked(nil)
			}
			return nil
		}
		if errors.Is(err, ErrStale) {
			return err
		}
		if !told && time.Since(began) >= commitWithin {
			told = true
			c.blocked(err)
		}
		if sleep := wait.Sleep(ctx, attempts); sleep != nil {
			return errors.Join(sleep, err)
		}
	}
}

// outcome looks up whether a link was added, after publish has failed with why. It returns the
// link's sequence when it was added, ErrStale when it never can be, and otherwise why. A chain has
// one writer, so its newest message decides, and one that was purged ends its writer.
func (c *chain) outcome(ctx context.Context, name string, why error) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, commitWithin)
	defer cancel()
	m, err := c.newest(ctx)
	if err != nil {
		return 0, errors.Join(why, err)
	}
	var seq uint64
	var link string
	if m != nil {
		seq, link = m.Sequence, m.Header.Get(headerLink)
	}
	switch {
	case seq == c.last:
		return 0, why // not added, or not yet: the next attempt expects the same
	case link == name:
		return seq, nil
	case strings.HasPrefix(link, c.writer()):
		c.last = seq // of an earlier call, which did not learn that it was added
		return 0, why
	}
	return 0, fmt.Errorf("fencing token %d: %w", c.fence, ErrStale)
}

// publish publishes messages atomically and returns the sequence of the last one.
func (c *chain) publish(ctx context.Context, msgs []*nats.Msg) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, commitWithin)
	defer cancel()
	newest := msgs[len(msgs)-1]
	if len(msgs) > 1 {
		id := uid()
		for i, m := range msgs {
			m.Header.Set(headerBatchID, id)
			m.Header.Set(headerBatchSeq, strconv.Itoa(i+1))
		}
		newest.Header.Set(headerBatchCommit, "1")
		for _, m := range msgs[:len(msgs)-1] {
			if err := c.nc.PublishMsg(m); err != nil {
				return 0, err
			}
		}
	}
	reply, err := c.nc.RequestMsgWithContext(ctx, newest)
	if err != nil {
		return 0, err
	}
	var ack struct {
		Error *jetstream.APIError `json:"error"`
		Seq   uint64              `json:"seq"`
	}
	if err := json.Unmarshal(reply.Data, &ack); err != nil {
		return 0, fmt.Errorf("the server's answer %.200q: %w", reply.Data, err)
	}
	if ack.Error != nil {
		return 0, ack.Error
	}
	return ack.Seq, nil
}

// last returns the last message of a subject, or nil.
func last(ctx context.Context, stream jetstream.Stream, subject string) (*jetstream.RawStreamMsg, error) {
	m, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	return m, err
}
