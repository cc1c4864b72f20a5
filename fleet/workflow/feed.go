package workflow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
)

// reader gets the content of a bucket, and every write from then on, on one
// goroutine at a time. Every revision is a stream.Put, a deletion too; the revisions of
// a key come in order, each once. A key that went without a message is a Put of a
// deletion with the revision that the follower has read up to. A stream.Gap says that
// the bucket is gone, was recreated, or restored from a backup: earlier entries no
// longer hold.
type reader = stream.Sink[*entry]

// lookTime is how often a follower checks that the bucket is still the one that it
// follows.
const lookTime = 2 * time.Second

// staleTime is how old a view may be for a process that is ready. A look every lookTime
// keeps it younger.
const staleTime = 10 * time.Second

// maxMarks bounds what a follower remembers while it cannot follow.
const maxMarks = 1024

// follower reads a bucket for one reader.
type follower struct {
	b      *bucket
	to     reader
	log    *slog.Logger
	filter string
	kick   chan struct{} // asks for a check of the bucket at once
	hurry  chan struct{} // asks for pending messages at once; nil for a follower that never lingers

	caught func()                                       // called when asOf has changed; nil for none
	load   func(context.Context, *jetstream.StreamInfo) // called before the first message; nil for none
	settle func(context.Context, uint64)                // called now and then with what it is certain to have read; nil for none

	asOf    atomic.Pointer[time.Time] // when the bucket was as it is here, by both clocks; nil for never
	created time.Time                 // of the stream that it follows
	missing time.Time                 // since when the stream is missing
	seq     atomic.Uint64             // the last message it has passed on
	whole   atomic.Uint64             // the bucket's last message at asOf
	fresh   bool                      // everything has to be read again
	said    atomic.Value              // the last trouble, an error text

	turn    chan struct{}     // room for one: it is held while something is passed on, and guards the fields below
	told    bool              // synced was called
	keys    map[string]uint64 // the last revision of each key, with the bit removed for a deletion
	oldest  uint64            // no key has an older revision
	others  int               // subjects of the stream that are no keys
	passed  uint64            // messages of the current consumer
	pending *look             // a look that it has not caught up with
	suspect bool              // the number of keys is not the bucket's
	asking  bool              // a look is under way
	added   []uint64          // revisions of the keys that are new since that began

	mu   sync.Mutex // guards the fields below
	last mark       // the last message it has passed on
	own  []mark     // this process's writes in the order of their acknowledgement; it has not seen the first and the last yet
}

// mark is a message that identifies a bucket: another bucket has a different
// message at the same sequence.
type mark struct {
	seq uint64
	at  time.Time // zero when it is not known
	op  string    // the operation that wrote it, "" for another program's
}

func (m mark) is(e *entry) bool {
	return (m.at.IsZero() || m.at.Equal(e.at)) && m.op == e.get(headerOp)
}

func (b *bucket) follower(log *slog.Logger, to reader) *follower {
	return &follower{b: b, to: to, log: log, filter: "$KV." + b.name + ".>", kick: make(chan struct{}, 1), turn: make(chan struct{}, 1), keys: make(map[string]uint64)}
}

// rush asks for pending messages, without waiting for them.
func (f *follower) rush() {
	select {
	case f.hurry <- struct{}{}:
	default:
	}
}

// look asks for a check of the bucket, without waiting for it.
func (f *follower) look() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// run follows the bucket until ctx ends. When the server has trouble or the bucket is
// missing, it logs that once and keeps trying.
func (f *follower) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		before := f.seq.Load()
		err := f.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if f.seq.Load() != before {
			n = 0
			f.said.Store("")
		}
		if err != nil && err.Error() != f.trouble() {
			f.said.Store(err.Error())
			f.log.Warn("cannot follow the bucket; trying again", "bucket", f.b.name, "error", err)
		}
		f.gone(errors.Is(err, jetstream.ErrStreamNotFound))
		if err != nil {
			_ = collision.Sleep(ctx, n+1)
		}
	}
}

// trouble returns why the follower does not follow, "" when it does.
func (f *follower) trouble() string {
	text, _ := f.said.Load().(string)
	return text
}

// gone tells the reader when the bucket has been missing for a while. A server that
// has just started may not know all of its streams yet.
func (f *follower) gone(missing bool) {
	switch {
	case !missing:
		f.missing = time.Time{}
	case f.missing.IsZero():
		f.missing = time.Now()
	case !f.created.IsZero() && time.Since(f.missing) > f.b.pace.Of(lookTime):
		f.created, f.told = time.Time{}, false
		f.forget(f.owned())
		f.to.Gap()
	}
}

// session follows the bucket until an error. nil means that the bucket has to be
// checked again.
func (f *follower) session(ctx context.Context) error {
	attempt, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	stream, err := f.b.js.Stream(attempt, f.b.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("%w: %w: declare it to the broker, see workflow.Bucket", err, jetstream.ErrBucketNotFound)
	}
	if err != nil {
		return err
	}
	info := stream.CachedInfo()
	f.b.traits.learn(info)
	earlier := f.owned()
	moved, err := f.moved(attempt, info)
	if err != nil {
		return err
	}
	switch {
	case moved || f.fresh:
		f.created, f.told, f.fresh = info.Created, false, false
		f.forget(earlier)
		f.to.Gap()
	case f.created.IsZero():
		f.created, f.told = info.Created, false
		f.forget(0)
		if f.load != nil {
			f.load(ctx, info)
			attempt, cancel = context.WithTimeout(ctx, answerTime) // it may have taken long
			defer cancel()
		}
	}
	config := jetstream.ConsumerConfig{
		FilterSubjects: []string{f.filter}, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: f.b.pace.Of(time.Minute),
	}
	if seq := f.seq.Load(); seq > 0 {
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, seq+1
	}
	consumer, err := stream.CreateConsumer(attempt, config)
	if err != nil {
		return err
	}
	defer f.remove(consumer)
	f.passed = 0
	if !f.told && consumer.CachedInfo().NumPending == 0 {
		f.sync()
	}
	p, err := f.b.pull(consumer.CachedInfo().Name, consumer.CachedInfo().NumPending, f.hurry)
	if err != nil {
		return err
	}
	f.look()
	watch := make(chan bool, 1) // room for its only send
	own, end := context.WithCancel(ctx)
	go func() {
		again := f.watch(own, stream, consumer)
		p.stop()
		watch <- again
	}()
	err = f.read(own, p)
	end()
	if <-watch {
		return nil
	}
	return err
}

// remove asks the server to delete the consumer, and does not wait for the answer. The
// server would do that later by itself.
func (f *follower) remove(consumer jetstream.Consumer) {
	if f.b.nc.IsConnected() {
		_ = f.b.nc.PublishRequest(f.b.api+"CONSUMER.DELETE."+f.b.stream+"."+consumer.CachedInfo().Name, f.b.nc.NewInbox(), nil)
	}
}

// moved reports whether the stream is not the one that the follower followed: it
// was recreated, its sequence went back, or a marked message is missing or
// different. (A bucket that was restored from a backup and written since may have
// more messages than before.) In the same bucket a message also goes missing when
// later writes of its key fill the history. Then the follower reads everything
// again, which is harmless. This process may have written before the follower
// first sees the stream.
func (f *follower) moved(ctx context.Context, info *jetstream.StreamInfo) (bool, error) {
	if !f.created.IsZero() && !info.Created.Equal(f.created) {
		return true, nil
	}
	for _, m := range f.marks() {
		if info.State.LastSeq < m.seq {
			return true, nil
		}
		e, err := f.b.at(ctx, m.seq)
		if isNotFound(err) || err == nil && !m.is(e) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}

// marks returns the messages that must be there: the last that was passed on, and the
// first and the last of this process's own that were not.
func (f *follower) marks() (marks []mark) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last.seq > 0 {
		marks = append(marks, f.last)
	}
	if n := len(f.own); n > 0 {
		marks = append(marks, f.own[0])
		if n > 1 {
			marks = append(marks, f.own[n-1])
		}
	}
	return marks
}

// wrote notes a write of this process.
func (f *follower) wrote(seq uint64, op string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := mark{seq: seq, op: op}
	switch n := len(f.own); {
	case seq <= f.last.seq:
	case n < maxMarks:
		f.own = append(f.own, m)
	default: // the follower makes no progress: only the first and the last are checked
		f.own[n-1] = m
	}
}

// note records that a message was passed on, and all before it.
func (f *follower) note(m mark) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = m
	for len(f.own) > 0 && f.own[0].seq <= m.seq {
		f.own = f.own[1:]
	}
	for len(f.own) > 0 && f.own[len(f.own)-1].seq <= m.seq {
		f.own = f.own[:len(f.own)-1]
	}
	f.seq.Store(m.seq)
}

// owned returns how many writes of this process it has not seen yet.
func (f *follower) owned() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.own)
}

// forget makes the follower start from the beginning. It drops the first own marks,
// which another bucket had. It keeps the later ones: without them a bucket that is
// restored before the follower has seen them would look like this one.
func (f *follower) forget(own int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last, f.own = mark{}, f.own[own:]
	f.seq.Store(0)
	f.asOf.Store(nil)
	f.whole.Store(0)
	clear(f.keys)
	f.oldest, f.others, f.pending, f.suspect, f.asking = 0, 0, nil, false, false
}

// watch looks at the stream now and then. It returns true when it is another stream,
// and after a reconnect, when messages may have been lost.
func (f *follower) watch(ctx context.Context, stream jetstream.Stream, consumer jetstream.Consumer) bool {
	connected := f.b.nc.StatusChanged(nats.CONNECTED)
	defer f.b.nc.RemoveStatusListener(connected)
	tick := time.NewTicker(f.b.pace.Of(lookTime))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		case <-f.kick:
		case <-connected:
			return true
		}
		if f.inspect(ctx, stream, consumer) {
			return true
		}
		if f.settle != nil {
			f.settle(ctx, f.whole.Load())
		}
	}
}

func (f *follower) read(ctx context.Context, p *puller) error {
	for n := uint64(1); ; n++ {
		msg, meta, err := p.next()
		if err != nil {
			return fmt.Errorf("read bucket %s: %w", f.b.name, err)
		}
		if meta.Sequence.Consumer != n {
			return fmt.Errorf("read bucket %s: got message %d, want %d", f.b.name, meta.Sequence.Consumer, n)
		}
		e := &entry{key: strings.TrimPrefix(msg.Subject, "$KV."+f.b.name+"."), revision: meta.Sequence.Stream, at: meta.Timestamp, header: msg.Header, data: msg.Data}
		if !f.enter(ctx) {
			return context.Cause(ctx)
		}
		f.passed = n
		f.pass(e)
		if meta.NumPending == 0 && !f.told {
			f.sync()
		}
		f.leave()
		if !strings.HasPrefix(e.get(headerOp), f.b.ops) {
			p.news++
		}
	}
}

func (f *follower) sync() {
	f.told = true
	f.to.Sync()
}
