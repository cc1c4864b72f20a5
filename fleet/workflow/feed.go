package workflow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
)

// reader gets the content of a bucket, and every write from then on, on one
// goroutine. Every revision is a stream.Put, a deletion too; the revisions of a key
// come in order, each once. A stream.Gap says that the bucket was recreated, or
// restored from a backup: earlier entries no longer hold.
type reader = stream.Sink[*entry]

// lookTime is how often a follower checks that the bucket is still the one that it
// follows.
const lookTime = 2 * time.Second

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

	created time.Time     // of the stream that it follows
	seq     atomic.Uint64 // the last message it has passed on
	told    bool          // synced was called
	said    string        // the last trouble that it logged

	mu   sync.Mutex // guards the fields below
	last mark       // the last message it has passed on
	own  []mark     // this process's writes that it has not seen yet, in the order of their acknowledgement
}

// mark is a message that identifies a bucket: another bucket has a different
// message at the same sequence.
type mark struct {
	seq uint64
	at  time.Time // zero when it is not known
	op  string    // the operation that wrote it, "" for another program's
}

func (m mark) is(e *entry) bool {
	return (m.at.IsZero() || m.at.Equal(e.at)) && m.op == e.header.Get(headerOp)
}

func (b *bucket) follower(log *slog.Logger, to reader) *follower {
	return &follower{b: b, to: to, log: log, filter: "$KV." + b.name + ".>", kick: make(chan struct{}, 1)}
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
			n, f.said = 0, ""
		}
		if err != nil && err.Error() != f.said {
			f.said = err.Error()
			f.log.Warn("cannot follow the bucket; trying again", "bucket", f.b.name, "error", err)
		}
		if err != nil {
			_ = collision.Sleep(ctx, n+1)
		}
	}
}

// session follows the bucket until an error. nil means that the bucket has to be
// checked again.
func (f *follower) session(ctx context.Context) error {
	attempt, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	stream, err := f.b.js.Stream(attempt, f.b.stream)
	if err != nil {
		return err
	}
	info := stream.CachedInfo()
	f.b.single.Store(info.Config.Replicas == 1)
	earlier := f.owned()
	moved, err := f.moved(attempt, info)
	if err != nil {
		return err
	}
	switch {
	case moved:
		f.created, f.told = info.Created, false
		f.forget(earlier)
		f.to.Gap()
	case f.created.IsZero():
		f.created, f.told = info.Created, false
		f.forget(0)
	}
	config := jetstream.ConsumerConfig{
		FilterSubjects: []string{f.filter}, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: time.Minute,
	}
	if seq := f.seq.Load(); seq > 0 {
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, seq+1
	}
	consumer, err := stream.CreateConsumer(attempt, config)
	if err != nil {
		return err
	}
	defer f.remove(ctx, stream, consumer)
	if !f.told && consumer.CachedInfo().NumPending == 0 {
		f.sync()
	}
	p, err := f.b.pull(consumer.CachedInfo().Name, consumer.CachedInfo().NumPending, f.hurry)
	if err != nil {
		return err
	}
	watch := make(chan bool, 1) // room for its only send
	own, end := context.WithCancel(ctx)
	go func() {
		again := f.watch(own, stream)
		p.stop()
		watch <- again
	}()
	err = f.read(p)
	end()
	if <-watch {
		return nil
	}
	return err
}

// remove deletes the consumer. The server would do that later by itself.
func (f *follower) remove(ctx context.Context, stream jetstream.Stream, consumer jetstream.Consumer) {
	if !f.b.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = stream.DeleteConsumer(ctx, consumer.CachedInfo().Name)
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
	f.own = slices.DeleteFunc(f.own, func(own mark) bool { return own.seq <= m.seq })
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
}

// watch checks the stream now and then. It returns true when it is another stream,
// and after a reconnect, when messages may have been lost.
func (f *follower) watch(ctx context.Context, stream jetstream.Stream) bool {
	connected := f.b.nc.StatusChanged(nats.CONNECTED)
	defer f.b.nc.RemoveStatusListener(connected)
	tick := time.NewTicker(lookTime)
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
		// Read seq before the stream's state, so that it cannot be ahead of it.
		at := f.seq.Load()
		attempt, cancel := context.WithTimeout(ctx, answerTime)
		info, err := stream.Info(attempt)
		cancel()
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return true
		}
		if err == nil && (!info.Created.Equal(f.created) || info.State.LastSeq < at) {
			return true
		}
	}
}

func (f *follower) read(p *puller) error {
	for n := uint64(1); ; n++ {
		msg, meta, err := p.next()
		if err != nil {
			return fmt.Errorf("read bucket %s: %w", f.b.name, err)
		}
		if meta.Sequence.Consumer != n {
			return fmt.Errorf("read bucket %s: got message %d, want %d", f.b.name, meta.Sequence.Consumer, n)
		}
		e := &entry{key: strings.TrimPrefix(msg.Subject, "$KV."+f.b.name+"."), revision: meta.Sequence.Stream, at: meta.Timestamp, header: msg.Header, data: msg.Data}
		f.to.Put(e.key, e)
		op := e.header.Get(headerOp)
		f.note(mark{e.revision, e.at, op})
		if !strings.HasPrefix(op, f.b.ops) {
			p.news++
		}
		if meta.NumPending == 0 && !f.told {
			f.sync()
		}
	}
}

func (f *follower) sync() {
	f.told = true
	f.to.Sync()
}
