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

// reader takes what a bucket holds and every write from then on, in one
// goroutine. Every revision is a stream.Put, that of a deletion too; those of a
// key come in order, each once. A stream.Gap says that the bucket was created
// anew, or restored from a backup.
type reader = stream.Sink[*entry]

// lookTime is the time between two looks at whether the bucket is still the one
// that is being followed.
const lookTime = 2 * time.Second

// maxMarks bounds what a follower remembers while it cannot follow.
const maxMarks = 1024

// follower reads a bucket for one reader.
type follower struct {
	b      *bucket
	to     reader
	log    *slog.Logger
	filter string
	kick   chan struct{} // asks for a look at once
	hurry  chan struct{} // asks for what there is at once; nil for one that never lingers

	created time.Time     // of the stream that is being followed
	seq     atomic.Uint64 // of the last message told
	told    bool          // synced was called
	said    string        // the last trouble that was logged

	mu   sync.Mutex // guards what follows
	last mark       // the last message told
	own  []mark     // this process's writes that have not been told yet, in the order of their acknowledgement
}

// mark is a message by which a bucket is known again: another one that has come
// as far has another message there.
type mark struct {
	seq uint64
	at  time.Time // zero when it is not known
	op  string    // the operation that wrote it, "" for somebody else's
}

func (m mark) is(e *entry) bool {
	return (m.at.IsZero() || m.at.Equal(e.at)) && m.op == e.header.Get(headerOp)
}

func (b *bucket) follower(log *slog.Logger, to reader) *follower {
	return &follower{b: b, to: to, log: log, filter: "$KV." + b.name + ".>", kick: make(chan struct{}, 1)}
}

// rush asks for what there is without waiting for it.
func (f *follower) rush() {
	select {
	case f.hurry <- struct{}{}:
	default:
	}
}

// look asks for a look at the bucket without waiting for it.
func (f *follower) look() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// run follows the bucket until ctx ends. Trouble with the server, or a bucket
// that is not there, is logged once and tried again without end.
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
			f.log.Warn("the bucket is not being followed", "bucket", f.b.name, "error", err)
		}
		if err != nil {
			_ = pause(ctx, n)
		}
	}
}

// session follows the bucket as long as nothing goes wrong. nil means that it
// has to be looked at anew.
func (f *follower) session(ctx context.Context) error {
	attempt, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	stream, err := f.b.js.Stream(attempt, f.b.stream)
	if err != nil {
		return err
	}
	info := stream.CachedInfo()
	f.b.single.Store(info.Config.Replicas == 1)
	again := !f.created.IsZero()
	moved, err := f.moved(attempt, info)
	if err != nil {
		return err
	}
	if !again || moved {
		f.created, f.told = info.Created, false
		f.forget()
		if again {
			f.to.Gap()
		}
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
	watch := make(chan bool, 1) // the one send finds room
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

// remove takes the consumer away, which the server would do by itself later.
func (f *follower) remove(ctx context.Context, stream jetstream.Stream, consumer jetstream.Consumer) {
	if !f.b.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = stream.DeleteConsumer(ctx, consumer.CachedInfo().Name)
}

// moved reports whether the stream is not the one that was followed: it was made
// anew, its sequence went back, or it has another message, or none any more, where
// the last one was that is known. A bucket that was restored from a backup and
// written since can be further than it was. That one of the same bucket is gone
// takes as many writes of its key as the bucket's history is deep; all is read
// again then, which does no harm.
func (f *follower) moved(ctx context.Context, info *jetstream.StreamInfo) (bool, error) {
	if !info.Created.Equal(f.created) {
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

// marks returns the messages that must be there: the last that was told, and the
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

// wrote notes a write of this process's own.
func (f *follower) wrote(seq uint64, op string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := mark{seq: seq, op: op}
	switch n := len(f.own); {
	case seq <= f.last.seq:
	case n < maxMarks:
		f.own = append(f.own, m)
	default: // nobody is told anything: the first and the last are what is looked at
		f.own[n-1] = m
	}
}

// note says that a message was told, and every one before.
func (f *follower) note(m mark) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = m
	f.own = slices.DeleteFunc(f.own, func(own mark) bool { return own.seq <= m.seq })
	f.seq.Store(m.seq)
}

// forget begins anew.
func (f *follower) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last, f.own = mark{}, nil
	f.seq.Store(0)
}

// watch looks at the stream now and then. It reports true when it is another,
// and after a reconnect, when messages may have been lost on their way.
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
		// What was told is at most what there was when it is asked for.
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
			return fmt.Errorf("read bucket %s: message %d came where %d was to come", f.b.name, meta.Sequence.Consumer, n)
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
