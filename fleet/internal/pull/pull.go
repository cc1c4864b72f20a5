// Package pull takes the messages of a JetStream pull consumer.
//
// A [Puller] sends requests to CONSUMER.MSG.NEXT and counts how many messages are on their
// way. The caller decides when to ask and for how many: see [Puller.Ask]. fleet/host asks for
// as many messages as a worker has room for. fleet/workflow reads a bucket in large batches,
// and pauses while it would only read its own writes.
//
// nats.go has three ways to do this, and none fits:
//
//   - Fetch drops the messages that the server has sent when its context ends. A host that
//     stops has to give them back. Each batch also costs a subscription.
//   - Messages and Consume need two goroutines for each consumer beside the caller's, and a
//     host has ten thousand consumers. They wait for a consumer to come back, and one in the
//     memory of a restarted server never does. The iterator asks for more only when its last
//     request was sent before the messages of that request arrived; otherwise it stalls for
//     two heartbeats (docs/internals/adr/0060-hosted-workers-share-slots-with-one-log.md).
package pull

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// API returns the prefix of requests to JetStream, such as "$JS.API.".
func API(js jetstream.JetStream) string {
	switch opts := js.Options(); {
	case opts.APIPrefix != "":
		return strings.TrimSuffix(opts.APIPrefix, ".") + "."
	case opts.Domain != "":
		return "$JS." + opts.Domain + ".API."
	}
	return jetstream.DefaultAPIPrefix
}

// Config says how a Puller asks.
type Config struct {
	// API is the prefix of requests to JetStream: see [API].
	API              string
	Stream, Consumer string
	// Most is how many messages may be on their way at once.
	Most int
	// Heartbeat is how often the server sends a heartbeat while it has no message. After
	// two intervals without an answer Next returns an error.
	Heartbeat time.Duration
	// Expires is how long the server keeps a request.
	Expires time.Duration
	// Patience is for how long the server may refuse requests, as it does while a consumer
	// has no leader, before Next returns an error. 0 is the first refusal.
	Patience time.Duration
	// Wake makes Next return without a message when it has a token. Nil for none.
	Wake <-chan struct{}
}

// retryRefused is how long Next waits after the server has refused a request.
const retryRefused = 250 * time.Millisecond

// silence returns how long the server may give no answer.
func silence(cfg Config) time.Duration { return 2 * cfg.Heartbeat }

// ErrSilent is returned by [Puller.Next] when the server has not answered for two
// heartbeats.
var ErrSilent = errors.New("the server does not answer")

// ErrClosed is returned by [Puller.Next] after the end of the Puller or of its connection.
var ErrClosed = errors.New("closed")

// Puller takes the messages of one consumer. One goroutine calls Next. The other methods may
// be called concurrently.
type Puller struct {
	cfg       Config
	nc        *nats.Conn
	sub       *nats.Subscription
	inbox     string
	messages  chan *nats.Msg
	connected chan nats.Status // the connection was lost, and is back
	closed    chan struct{}    // closed when the server sends nothing more
	refused   time.Time        // since when the server refuses the requests; zero when it does not
	look      *time.Ticker     // says when to look whether the server is silent

	mu       sync.Mutex // guards everything below
	expected int        // messages that were asked for and have not come
	heard    time.Time  // when the server last answered, or was asked after a pause
}

// Open begins to take messages. It asks for none yet. Call [Puller.Close] or [Puller.Drain]
// in the end.
func Open(nc *nats.Conn, cfg Config) (*Puller, error) {
	p := &Puller{
		cfg:   cfg,
		nc:    nc,
		inbox: nc.NewInbox(),
		// With room for the heartbeats that come while the caller does not call Next. After a
		// connection was lost more messages may come; nats.go drops what has no room, and the
		// caller sees a gap in the sequence.
		messages: make(chan *nats.Msg, cfg.Most+64),
		closed:   make(chan struct{}),
	}
	closed := sync.OnceFunc(func() { close(p.closed) }) // nats.go may call it twice while it closes the connection
	var err error
	if p.sub, err = nc.ChanSubscribe(p.inbox, p.messages); err != nil {
		return nil, err
	}
	p.sub.SetClosedHandler(func(string) { closed() })
	p.connected = nc.StatusChanged(nats.CONNECTED)
	p.look = time.NewTicker(silence(cfg))
	return p, nil
}

// Request is a request for messages.
type Request struct {
	Batch  int
	NoWait bool // the server answers with what it has, and does not keep the request
	// MaxBytes ends the request before the message that would exceed it; 0 for no limit. It must
	// not be less than the largest message.
	MaxBytes int64
}

// Expected returns how many messages were asked for and have not come.
func (p *Puller) Expected() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.expected
}

// Ask sends a request. The caller sees to it that no more than Config.Most are expected.
// Without a connection it sends nothing, and returns nats.ErrDisconnected: Next returns when the
// connection is back.
func (p *Puller) Ask(r Request) error {
	question := fmt.Sprintf(`{"batch":%d,"no_wait":true}`, r.Batch)
	if !r.NoWait {
		question = fmt.Sprintf(`{"batch":%d,"expires":%d,"idle_heartbeat":%d}`, r.Batch, p.cfg.Expires, p.cfg.Heartbeat)
	}
	if r.MaxBytes > 0 {
		question = fmt.Sprintf(`%s,"max_bytes":%d}`, strings.TrimSuffix(question, "}"), r.MaxBytes)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.nc.IsConnected() {
		return nats.ErrDisconnected
	}
	subject := p.cfg.API + "CONSUMER.MSG.NEXT." + p.cfg.Stream + "." + p.cfg.Consumer
	if err := p.nc.PublishRequest(subject, p.inbox, []byte(question)); err != nil {
		return err
	}
	if p.expected == 0 {
		p.heard = time.Now()
	}
	p.expected += r.Batch
	return nil
}

// Next returns the next message. It returns no message and no error when fewer messages are
// expected than before: a request has ended, or the connection was lost and is back. The
// caller may ask again then. It does so for Config.Wake too. Next returns ctx's cause when ctx
// ends, and an error when the consumer was deleted or the server does not answer.
func (p *Puller) Next(ctx context.Context) (*nats.Msg, error) {
	for {
		select {
		case m := <-p.messages:
			switch over, err := p.take(ctx, m); {
			case err != nil:
				return nil, fmt.Errorf("consumer %s: %w", p.cfg.Consumer, err)
			case m.Reply != "":
				return m, nil
			case over:
				return nil, nil
			}
		case _, open := <-p.connected:
			if !open {
				return nil, ErrClosed
			}
			p.mu.Lock()
			p.expected, p.heard = 0, time.Now() // the server has forgotten the requests
			p.mu.Unlock()
			return nil, nil
		case <-p.look.C:
			if p.isSilent() {
				return nil, fmt.Errorf("consumer %s: %w for %v", p.cfg.Consumer, ErrSilent, silence(p.cfg))
			}
		case <-p.cfg.Wake:
			return nil, nil
		case <-p.closed:
			return nil, fmt.Errorf("consumer %s: %w", p.cfg.Consumer, ErrClosed)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// isSilent reports whether the server has not answered for two heartbeats. While the
// connection is lost, no answer is expected.
func (p *Puller) isSilent() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.nc.IsConnected() {
		p.heard = time.Now()
	}
	hasAnswers := len(p.messages) > 0 // that the caller has not asked for yet
	return p.expected > 0 && !hasAnswers && time.Since(p.heard) >= silence(p.cfg)
}

// endsOfRequests are descriptions of status 409 that end a request as it was asked for. The server
// sends the first one behind the last message of a request with MaxBytes.
var endsOfRequests = []string{"Batch Completed", "Message Size Exceeds MaxBytes"}

// take counts what the server has sent. over says that a request has ended. After a refusal it
// waits for retryRefused. A message of the server itself has no reply subject.
func (p *Puller) take(ctx context.Context, m *nats.Msg) (over bool, err error) {
	const heartbeat, noMessages, timeout = "100", "404", "408"
	status, description := m.Header.Get("Status"), m.Header.Get("Description")
	p.mu.Lock()
	p.heard = time.Now()
	switch left, noCount := strconv.Atoi(m.Header.Get("Nats-Pending-Messages")); {
	case m.Reply != "":
		p.expected = max(p.expected-1, 0)
	case status == heartbeat:
	case noCount == nil:
		p.expected = max(p.expected-left, 0)
	default:
		p.expected = 0
	}
	p.mu.Unlock()
	switch {
	case m.Reply != "", status == heartbeat:
		p.refused = time.Time{}
		return false, nil
	case status == noMessages, status == timeout, slices.Contains(endsOfRequests, description):
		p.refused = time.Time{}
		return true, nil
	case description == "Consumer Deleted":
		return true, jetstream.ErrConsumerDeleted
	case p.refused.IsZero():
		p.refused = time.Now()
	}
	if time.Since(p.refused) >= p.cfg.Patience {
		return true, fmt.Errorf("the server says %s %s", status, description)
	}
	select {
	case <-time.After(retryRefused):
	case <-ctx.Done():
	}
	return true, nil
}

// Close ends the requests, and Next. Messages that have come are lost; the server delivers
// them again when they have to be acknowledged.
func (p *Puller) Close() {
	p.look.Stop()
	p.nc.RemoveStatusListener(p.connected)
	_ = p.sub.Unsubscribe() // fails when the connection is closed
}

// Drain is Close for a consumer whose messages have to be acknowledged. It returns the
// messages that the server had sent and that Next has not returned. Do not call it while
// Next runs.
func (p *Puller) Drain() []*nats.Msg {
	p.look.Stop()
	p.nc.RemoveStatusListener(p.connected)
	if p.nc.IsConnected() && p.sub.Drain() == nil {
		<-p.closed
	} else {
		_ = p.sub.Unsubscribe()
	}
	var unread []*nats.Msg
	for {
		select {
		case m := <-p.messages:
			if m.Reply != "" {
				unread = append(unread, m)
			}
		default:
			return unread
		}
	}
}
