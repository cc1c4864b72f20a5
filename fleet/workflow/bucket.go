package workflow

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/internal/pace"
	"github.com/pleme-io/lifecycle-go/fleet/internal/pull"
)

// bucket is one bucket. It uses the stream directly where the key-value API hides
// headers.
type bucket struct {
	js     jetstream.JetStream
	nc     *nats.Conn
	name   string
	stream string
	api    string    // the prefix of JetStream's subjects
	put    string    // the prefix of the subjects to publish to
	traits traits    // properties of its stream, as far as this process knows them
	pace   pace.Pace // of the regular looks at the server
	ops    string    // the prefix of the ids of this Manager's operations
	view   *view
	turns  turns
	recent recent // for workflows without a view

	waiting  atomic.Int64 // writes that wait for the journal
	doubtful atomic.Bool  // since the last write that was stored, the server has not answered one or could not store it
}

func newBucket(m *Manager, name string) *bucket {
	b := &bucket{
		js:     m.js,
		nc:     m.js.Conn(),
		name:   name,
		stream: "KV_" + name,
		api:    pull.API(m.js),
		pace:   pace.Through(m.js),
		ops:    m.ops,
		turns:  turns{keys: make(map[string]*turn)},
		recent: recent{entries: make(map[string]*entry)},
	}
	b.put = b.subject("")
	if b.api != jetstream.DefaultAPIPrefix {
		b.put = b.api + b.put // as the key-value API does, for accounts and domains that import the bucket
	}
	b.view = newView(m, b)
	return b
}

// subject returns the subject of a key in the bucket's stream, and key its key.
func (b *bucket) subject(key string) string { return "$KV." + b.name + "." + key }

func (b *bucket) key(subject string) string { return strings.TrimPrefix(subject, b.subject("")) }

// last reads the latest revision of a key, with every write that was acknowledged. It
// returns ErrEntityNotFound for a key that was never written; a deleted key has an entry.
func (b *bucket) last(ctx context.Context, key string) (*entry, error) {
	if b.traits.direct() {
		if e := b.lastDirect(ctx, key); e != nil {
			return e, nil
		}
	}
	return b.entry(b.get(ctx, getRequest{Last: b.subject(key)}))
}

// next reads the oldest kept revision of a key, starting at revision from.
func (b *bucket) next(ctx context.Context, key string, from uint64) (*entry, error) {
	return b.entry(b.get(ctx, getRequest{Seq: from, Next: b.subject(key)}))
}

func (b *bucket) at(ctx context.Context, seq uint64) (*entry, error) {
	return b.entry(b.get(ctx, getRequest{Seq: seq}))
}

// read reads the latest revision of a key for a decision, nil for none. Like the write
// that follows, it waits for a server that is away.
func (b *bucket) read(ctx context.Context, key string) (*entry, error) {
	for n := 1; ; n++ {
		e, err := b.last(ctx, key)
		if isNotFound(err) {
			return nil, nil //nolint:nilnil // there is none
		}
		if err == nil || !isAway(err) || retryPause.Sleep(ctx, n) != nil {
			return e, err
		}
	}
}

// isAway reports whether a read failed for want of a server that answers: there is no
// connection, no answer came in time, or the servers are electing a leader.
func isAway(err error) bool {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok && api.Code == 503 {
		return true
	}
	return isUnsent(err) || errors.Is(err, context.DeadlineExceeded)
}

// getRequest asks for a message of a stream: the one at a sequence, the last one of a
// subject, or the first one of a subject at or after a sequence.
type getRequest struct {
	Seq  uint64 `json:"seq,omitempty"`
	Last string `json:"last_by_subj,omitempty"`
	Next string `json:"next_by_subj,omitempty"`
}

func (r getRequest) json() []byte {
	data, _ := json.Marshal(r) // numbers and texts have an encoding
	return data
}

// get asks the stream's leader for a message. The client library would send a direct get,
// which a replica or a mirror may answer that lags. It returns ErrEntityNotFound for none.
func (b *bucket) get(ctx context.Context, request getRequest) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	reply, err := b.nc.RequestWithContext(ctx, b.api+"STREAM.MSG.GET."+b.stream, request.json())
	if err != nil {
		return nil, fmt.Errorf("read bucket %s: %w", b.name, b.unanswered(natserr.Plain(err)))
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
	msg := &jetstream.RawStreamMsg{Subject: got.Subject, Sequence: got.Seq, Time: got.Time, Data: got.Data}
	if len(got.Header) > 0 {
		// Headers that no client can read are left out: a follower gets the message without
		// them too.
		msg.Header, _ = nats.DecodeHeadersMsg(got.Header)
	}
	return msg, nil
}

// unanswered adds to the error of a question without an answer that the server has refused this
// connection one. The connection keeps its last refusal, which may be of another stream.
func (b *bucket) unanswered(err error) error {
	last := b.nc.LastError()
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(last, nats.ErrPermissionViolation) {
		return err
	}
	said := last.Error()
	inbox := `"` + cmp.Or(b.nc.Opts.InboxPrefix, "_INBOX") // to which answers come
	if !strings.Contains(said, b.stream) && !strings.Contains(said, inbox) {
		return err
	}
	return fmt.Errorf("%w: %w", err, last)
}

// denied returns an error when the server has refused this connection a message to a subject,
// nil otherwise. A sender without the permission gets no answer: the refusal is an error of the
// connection.
func (b *bucket) denied(subject string) error {
	last := b.nc.LastError()
	if !errors.Is(last, nats.ErrPermissionViolation) || !strings.Contains(last.Error(), strconv.Quote(subject)) {
		return nil
	}
	return fmt.Errorf("the account has no permission for %s: %w", subject, last)
}

func (b *bucket) entry(msg *jetstream.RawStreamMsg, err error) (*entry, error) {
	if err != nil {
		return nil, err
	}
	return newEntry(b.key(msg.Subject), msg.Sequence, msg.Time, msg.Header, msg.Data), nil
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
	reply, err := b.nc.RequestWithContext(own, b.api+"DIRECT.GET."+b.stream+"."+b.subject(key), nil)
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
	seq, err := strconv.ParseUint(reply.Header.Get(jetstream.SequenceHeader), 10, 64)
	at, wrong := time.Parse(time.RFC3339Nano, reply.Header.Get(jetstream.TimeStampHeaer))
	if err != nil || wrong != nil || reply.Header.Get(jetstream.SubjectHeader) != b.subject(key) {
		return nil
	}
	return newEntry(key, seq, at, reply.Header, reply.Data)
}

// traits has the properties of a bucket's stream, as far as this process knows them.
type traits struct {
	single   atomic.Bool  // it has one replica
	allowed  atomic.Bool  // it answers direct gets
	indirect atomic.Bool  // others answer them in its place, or none
	history  atomic.Int64 // the writes of an entity that it keeps; 0 for not known
}

// direct reports whether a direct get may have the last write.
func (t *traits) direct() bool {
	return t.single.Load() && t.allowed.Load() && !t.indirect.Load()
}

func (t *traits) learn(info *jetstream.StreamInfo) {
	t.single.Store(info.Config.Replicas == 1)
	t.allowed.Store(info.Config.AllowDirect && info.Config.Mirror == nil)
	t.history.Store(info.Config.MaxMsgsPerSubject)
}

// kept returns how many writes of an entity the bucket keeps.
func (t *traits) kept() int {
	switch n := t.history.Load(); {
	case n == 0:
		return jetstream.KeyValueMaxHistory // what Bucket declares
	case n < 0:
		return math.MaxInt
	default:
		return int(n)
	}
}

// look learns the traits for a process that follows no bucket, which never looks. Without an answer they
// stay as they were.
func (b *bucket) look(ctx context.Context) {
	if b.traits.history.Load() != 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if stream, err := b.js.Stream(ctx, b.stream); err == nil {
		b.traits.learn(stream.CachedInfo())
	}
}
