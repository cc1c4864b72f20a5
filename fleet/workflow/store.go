package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/internal/pace"
	"github.com/pleme-io/lifecycle-go/worker"
)

// answerTime is how long a write waits for its answer before it looks for itself in
// the bucket.
const answerTime = 3 * time.Second

// maxConflicts bounds how often a write to a replicated bucket retries a conflict
// with a write that it cannot find. That takes about a second: as long as a replaced
// leader may not know that it was replaced.
const maxConflicts = 20

// errConflict says that the record has changed since it was read.
var errConflict = errors.New("conflict")

// bucket is one bucket. It uses the stream directly where the key-value API hides
// headers.
type bucket struct {
	js       jetstream.JetStream
	nc       *nats.Conn
	name     string
	stream   string
	api      string    // the prefix of JetStream's subjects
	put      string    // the prefix of the keys' subjects
	ops      string    // the prefix of the ids of this Manager's operations
	traits   traits    // what is known of its stream
	pace     pace.Pace // of the regular looks at the server
	view     *view
	queue    queue
	joinTime time.Duration // replaced by tests
	recent   recent        // for workflows without a view
}

func newBucket(m *Manager, name string) *bucket {
	b := &bucket{js: m.js, nc: m.js.Conn(), name: name, stream: "KV_" + name, api: jetstream.DefaultAPIPrefix, put: "$KV." + name + ".", ops: m.ops, pace: pace.Through(m.js)}
	opts := m.js.Options()
	switch {
	case opts.APIPrefix != "":
		b.api = strings.TrimSuffix(opts.APIPrefix, ".") + "."
	case opts.Domain != "":
		b.api = "$JS." + opts.Domain + ".API."
	}
	if b.api != jetstream.DefaultAPIPrefix {
		b.put = b.api + b.put // as the key-value API does, for accounts and domains that import the bucket
	}
	b.queue.keys = make(map[string][]*waiter)
	b.joinTime = joinTime
	b.view = newView(m, b)
	return b
}

func (b *bucket) subject(key string) string { return b.put + key }

// write publishes a message and returns its revision. It returns errConflict when
// the record has changed since it was read, and ErrOutcomeUnknown when ctx ended or
// the connection was closed before the outcome was known. After any other error
// nothing was written.
//
// When there is no answer, write looks for the message by its operation's id. The
// message names the revision that it was decided on, and a revision has one
// successor. If the successor is another operation's, this write was not carried
// out and never will be. If there is no successor yet, write sends the message
// again, and the server accepts one of the two.
//
// first is the answer to a message that was already sent, nil when write sends the
// first.
func (b *bucket) write(ctx context.Context, key string, msg *nats.Msg, expected uint64, first *answer) (uint64, error) {
	sent := false   // a message was sent
	silent := false // a message got no answer
	conflicts := 0
	for n := 0; ; n++ {
		if first == nil {
			if ctx.Err() != nil && !sent {
				return 0, fmt.Errorf("write %s/%s: %w", b.name, key, context.Cause(ctx))
			}
			if b.nc.IsClosed() && !sent {
				return 0, fmt.Errorf("write %s/%s: %w", b.name, key, nats.ErrConnectionClosed)
			}
			first = b.publish(ctx, msg)
		}
		revision, err := first.revision, first.err
		first = nil
		switch {
		case err == nil:
			return revision, nil
		case !sent && natserr.Conflict(err) && b.traits.single.Load():
			return 0, errConflict
		case natserr.Conflict(err):
			sent = true
			conflicts++
		case !sent && isRefusal(err):
			return 0, b.explain(key, msg, err)
		case isUnsent(err):
		default:
			sent, silent = true, true
		}
		for why := err; ; n++ {
			if ctx.Err() != nil {
				if !sent {
					return 0, fmt.Errorf("write %s/%s: %w: %w", b.name, key, context.Cause(ctx), why)
				}
				return 0, fmt.Errorf("write %s/%s: %w: %w: %w", b.name, key, ErrOutcomeUnknown, context.Cause(ctx), why)
			}
			if b.nc.IsClosed() && sent { // closed for good: the outcome cannot be asked for
				return 0, fmt.Errorf("write %s/%s: %w: %w", b.name, key, ErrOutcomeUnknown, why)
			}
			if !sent {
				// No responder: the server has just started, or there is no bucket.
				if _, err := b.last(ctx, key); errors.Is(err, jetstream.ErrBucketNotFound) {
					return 0, err
				}
				_ = collision.Sleep(ctx, n+1)
				break
			}
			revision, is, err := b.outcome(ctx, key, (&entry{header: msg.Header}).get(headerOp), expected)
			if err != nil {
				why = err
				_ = collision.Sleep(ctx, n+1)
				continue
			}
			switch is {
			case landed:
				return revision, nil
			case superseded:
				return 0, errConflict
			case untraceable:
				if !silent {
					return 0, errConflict
				}
				return 0, fmt.Errorf("write %s/%s: %w: there are later writes, and the bucket's history is too short to find this one", b.name, key, ErrOutcomeUnknown)
			case absent:
				if !silent && conflicts >= maxConflicts {
					return 0, errConflict // the bucket was restored from a backup
				}
				_ = collision.Sleep(ctx, n+1)
			}
			break
		}
	}
}

// isRefusal reports whether the server did not and will not take the message, or
// the client did not send it. A server that is electing a leader answers 503.
func isRefusal(err error) bool {
	var api *jetstream.APIError
	switch {
	case natserr.Conflict(err):
		return false
	case natserr.Is(err, natserr.StoreFailed, natserr.StorageExceeded, natserr.MemoryExceeded, natserr.InsufficientResources):
		return true
	case errors.As(err, &api):
		return api.Code != 503
	}
	return errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrConnectionDraining) || errors.Is(err, nats.ErrBadSubject) || errors.Is(err, nats.ErrHeadersNotSupported)
}

// isAway reports whether a read failed for want of a server that answers: there is no
// connection, no answer came in time, or the servers are electing a leader.
func isAway(err error) bool {
	var api *jetstream.APIError
	return isUnsent(err) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &api) && api.Code == 503
}

// isUnsent reports whether no server can have received the message: there was no
// connection, or no stream listens.
func isUnsent(err error) bool {
	return errors.Is(err, nats.ErrReconnectBufExceeded) || errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse)
}

// explain adds the missing detail to a refusal.
func (b *bucket) explain(key string, msg *nats.Msg, err error) error {
	if errors.Is(err, nats.ErrMaxPayload) {
		return fmt.Errorf("write %s/%s: the record has %d bytes and the server takes %d: %w", b.name, key, len(msg.Data), b.nc.MaxPayload(), err)
	}
	return fmt.Errorf("write %s/%s: %w", b.name, key, err)
}

// fate is the outcome of a write.
type fate int

const (
	absent      fate = iota // not stored yet; it may still be
	landed                  // stored
	superseded              // not stored, and never will be
	untraceable             // the bucket no longer shows it
)

// outcome looks for the write of an operation that was decided on revision
// expected.
func (b *bucket) outcome(ctx context.Context, key, op string, expected uint64) (uint64, fate, error) {
	next, err := b.next(ctx, key, expected+1)
	if errors.Is(err, ErrEntityNotFound) {
		return 0, absent, nil
	}
	if err != nil {
		return 0, 0, err
	}
	if next.get(headerOp) == op {
		return next.revision, landed, nil
	}
	if on, known := next.predecessor(); known && on == expected {
		return 0, superseded, nil
	}
	// Either the oldest kept revision is not the successor, or another program wrote
	// the record without naming one. It is the successor if expected still exists.
	if expected > 0 {
		if before, err := b.next(ctx, key, expected); err == nil && before.revision == expected {
			return 0, superseded, nil
		}
	}
	return 0, untraceable, nil
}

// last reads the latest revision of a key, with every write that was acknowledged. It
// returns ErrEntityNotFound for a key that was never written; a deleted key has an entry.
func (b *bucket) last(ctx context.Context, key string) (*entry, error) {
	if b.traits.direct() {
		if e := b.lastDirect(ctx, key); e != nil {
			return e, nil
		}
	}
	return b.get(ctx, `{"last_by_subj":`+quote("$KV."+b.name+"."+key)+`}`)
}

// directTime is how long a direct get waits. A connection without the permission gets no
// answer.
const directTime = time.Second

// lastDirect reads the latest revision of a key with a direct get, which costs half of a
// question to the stream's leader. The only replica of a stream has every write that it
// acknowledged. A mirror, such as a [Journal], may answer in its place and lag: the
// answer names the stream that it is from. lastDirect returns nil when only the leader
// can know.
func (b *bucket) lastDirect(ctx context.Context, key string) *entry {
	own, cancel := context.WithTimeout(ctx, directTime)
	defer cancel()
	reply, err := b.nc.RequestWithContext(own, b.api+"DIRECT.GET."+b.stream+".$KV."+b.name+"."+key, nil)
	switch {
	case err != nil:
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			b.traits.indirect.Store(true)
		}
		return nil
	case reply.Header == nil: // another program wrote headers that no client can read
		return nil
	case reply.Header.Get("Status") != "": // a mirror may not have the key yet
		return nil
	case reply.Header.Get(jetstream.StreamHeader) != b.stream:
		b.traits.indirect.Store(true)
		return nil
	}
	e, err := direct(b.name, reply)
	if err != nil || e.key != key {
		return nil
	}
	return e
}

// read reads the latest revision of a key for a decision, nil for none. Like the write
// that follows, it waits for a server that is away.
func (b *bucket) read(ctx context.Context, key string) (*entry, error) {
	for n := 0; ; n++ {
		e, err := b.last(ctx, key)
		if isNotFound(err) {
			return nil, nil //nolint:nilnil // there is none
		}
		if err == nil || !isAway(err) || collision.Sleep(ctx, n+1) != nil {
			return e, err
		}
	}
}

// next reads the oldest kept revision of a key, starting at revision from.
func (b *bucket) next(ctx context.Context, key string, from uint64) (*entry, error) {
	return b.get(ctx, fmt.Sprintf(`{"seq":%d,"next_by_subj":%s}`, from, quote("$KV."+b.name+"."+key)))
}

// at reads the message of a sequence number, of any key.
func (b *bucket) at(ctx context.Context, seq uint64) (*entry, error) {
	return b.get(ctx, fmt.Sprintf(`{"seq":%d}`, seq))
}

// quote returns a text in JSON. A valid key needs no escapes, one of another program may.
func quote(s string) string {
	if strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == '"' || c == '\\' }) {
		data, _ := json.Marshal(s) // a string has an encoding
		return string(data)
	}
	return `"` + s + `"`
}

func (b *bucket) get(ctx context.Context, request string) (*entry, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	reply, err := b.nc.RequestWithContext(ctx, b.api+"STREAM.MSG.GET."+b.stream, []byte(request))
	if err != nil {
		return nil, fmt.Errorf("read bucket %s: %w", b.name, err)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return nil, fmt.Errorf("read bucket %s: %w", b.name, err)
	}
	switch {
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, ErrEntityNotFound
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeStreamNotFound:
		return nil, fmt.Errorf("read bucket %s: %w: declare it to the broker, see workflow.Bucket", b.name, jetstream.ErrBucketNotFound)
	case answer.Error != nil:
		return nil, fmt.Errorf("read bucket %s: %w", b.name, answer.Error)
	case answer.Message == nil:
		return nil, fmt.Errorf("read bucket %s: the server's answer has no message", b.name)
	}
	got := answer.Message
	e := &entry{key: strings.TrimPrefix(got.Subject, "$KV."+b.name+"."), revision: got.Seq, at: got.Time, data: got.Data}
	if len(got.Header) > 0 {
		// What no client can read is no header: a follower gets the message without them too.
		e.header, _ = nats.DecodeHeadersMsg(got.Header)
	}
	return e, nil
}

// collision is the wait before another attempt. It is anything from 0 up to a
// bound that doubles to 100 ms, so that writers that collided do not collide
// again.
var collision = worker.Backoff{Min: time.Millisecond, Max: 100 * time.Millisecond, Jitter: 1}
