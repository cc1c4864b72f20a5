package workflow

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/worker"
)

// reader gets the content of a bucket, and every write from then on, on one
// goroutine at a time. Every revision is a stream.Put, a deletion too; the revisions of
// a key come in order, each once. For a key that the bucket has lost without a message, the
// follower puts a deletion, with the revision that it has read up to. A stream.Gap says
// that the bucket is gone, was recreated, or restored from a backup: earlier entries are
// not valid any more.
type reader = stream.Sink[*entry]

// lookTime is how often a follower checks that the bucket is still the one that it
// follows.
const lookTime = 2 * time.Second

// staleTime is how old a view may be for a process that is ready. A look every lookTime
// keeps it younger.
const staleTime = 10 * time.Second

// follower reads a bucket for one reader. removals.go has the part that finds what the bucket
// has lost without a message.
type follower struct {
	b        *bucket
	to       reader
	log      *slog.Logger
	lookSoon fsm.Wake // makes the goroutine of run look at the bucket
	pauses   bool     // before it reads what are probably this process's own writes: see lingerTime

	current func(upTo uint64) // called when it has everything up to a revision; nil for none
	lost    func()            // called when gone becomes true; nil for none

	asOf   atomic.Pointer[time.Time] // when the follower last had all of the bucket, by both clocks; nil for never
	own    atomic.Pointer[ownWrite]  // this process's last write; nil for none
	reason atomic.Value              // why it does not follow, a text
	gone   atomic.Bool               // the bucket has been missing for a while

	// Only the goroutine of run uses the fields below.
	created   time.Time         // when the stream that it follows was created; zero before the first
	asked     string            // the name of the consumer that the server was asked for and has not answered about yet
	missing   time.Time         // since when the stream is missing
	readAgain bool              // everything has to be read again
	synced    bool              // the reader has the initial content
	keys      map[string]uint64 // the last revision of each key, with deletedBit when that was a deletion
	read      uint64            // the last message that was passed on
	readAt    time.Time         // when the server stored that message
	passed    uint64            // messages of the current consumer
	skipped   uint64            // up to this one, the consumer sends only the last message of each key
	extra     int               // how many keys the follower had at the last look and the bucket did not have

	pendingLook *bucketState // a look that the follower has not caught up with
}

// ownWrite is a write of this process.
type ownWrite struct {
	revision uint64
	op       string
}

func (b *bucket) follower(log *slog.Logger, to reader) *follower {
	return &follower{
		b:        b,
		to:       to,
		log:      log,
		lookSoon: fsm.NewWake(),
		keys:     make(map[string]uint64),
	}
}

func (f *follower) look() { f.lookSoon.Notify() }

// run follows the bucket until ctx ends. When the server has trouble or the bucket is
// missing, it logs that once and keeps trying.
func (f *follower) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		before, began := f.read, time.Now()
		err := f.b.unanswered(natserr.Plain(f.session(ctx)))
		if ctx.Err() != nil {
			return
		}
		if f.read != before || time.Since(began) > followPause.Max {
			n = 0
		}
		if err != nil && err.Error() != f.trouble() {
			f.reason.Store(err.Error())
			f.log.Warn("cannot follow the bucket; trying again", "bucket", f.b.name, "error", err)
		}
		f.noteMissing(errors.Is(err, jetstream.ErrStreamNotFound))
		if err != nil {
			_ = followPause.Sleep(ctx, n+1)
		}
	}
}

// followPause spreads the tries of followers that cannot follow: there is one for each view and each
// watch of each process, and they ask a server that may have just come back.
var followPause = worker.Backoff{Min: 10 * time.Millisecond, Max: lookTime, Jitter: 0.5}

// trouble returns why the follower does not follow, "" when it does.
func (f *follower) trouble() string {
	text, _ := f.reason.Load().(string)
	return text
}

// noteMissing tells the reader when the bucket has been missing for a while. A server that
// has just started may not know all of its streams yet.
func (f *follower) noteMissing(missing bool) {
	switch {
	case !missing:
		f.missing = time.Time{}
		f.gone.Store(false)
		return
	case f.missing.IsZero():
		f.missing = time.Now()
		return
	case time.Since(f.missing) <= f.b.pace.Of(lookTime):
		return
	}
	if !f.created.IsZero() {
		f.created = time.Time{}
		f.forget()
		f.to.Gap()
	}
	if !f.gone.Swap(true) && f.lost != nil {
		f.lost()
	}
}

// session follows the bucket until an error. nil means that the bucket has to be
// checked again.
func (f *follower) session(ctx context.Context) error {
	attempt, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	own := f.own.Load() // read it first: the stream's state must not be older than this write
	stream, err := f.b.js.Stream(attempt, f.b.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("%w: %w: declare it to the broker, see workflow.Bucket", err, jetstream.ErrBucketNotFound)
	}
	if err != nil {
		return err
	}
	info := stream.CachedInfo()
	f.b.traits.learn(info)
	another, err := f.isAnotherStream(attempt, info, own)
	if err != nil {
		return err
	}
	if another || f.readAgain {
		f.forget()
		f.to.Gap()
	}
	f.created, f.readAgain = info.Created, false
	// In a large bucket the server looks for the last message of each key for longer than an attempt
	// takes. So the next attempt asks for the same consumer, which is there by then.
	config := f.consumer()
	config.Name = cmp.Or(f.asked, rand.Text())
	f.asked = config.Name
	consumer, err := stream.CreateConsumer(attempt, config)
	if err == nil || !natserr.Away(err) && attempt.Err() == nil {
		f.asked = ""
	}
	if err != nil {
		return err
	}
	name, pending := consumer.CachedInfo().Name, consumer.CachedInfo().NumPending
	defer f.b.deleteConsumer(name)
	f.passed, f.skipped = 0, 0
	if f.read == 0 {
		f.skipped = info.State.LastSeq
	}
	if !f.synced && pending == 0 {
		f.sync()
	}
	p, err := f.b.pull(name, pending, f.lookSoon, f.pauses)
	if err != nil {
		return err
	}
	defer p.from.Close()
	return f.readAll(ctx, p, stream, consumer)
}

// consumer returns the configuration of a consumer that begins where the follower is.
func (f *follower) consumer() jetstream.ConsumerConfig {
	config := jetstream.ConsumerConfig{
		FilterSubjects:    []string{">"}, // also subjects that are not keys: the stream counts them
		DeliverPolicy:     jetstream.DeliverLastPerSubjectPolicy,
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: f.b.pace.Of(time.Minute),
	}
	if f.read > 0 {
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, f.read+1
	}
	return config
}

// deleteConsumer asks the server to delete a consumer, and does not wait for the answer: after a
// while the server deletes it by itself.
func (b *bucket) deleteConsumer(name string) {
	if b.nc.IsConnected() {
		_ = b.nc.PublishRequest(b.api+"CONSUMER.DELETE."+b.stream+"."+name, b.nc.NewInbox(), nil)
	}
}

// isAnotherStream reports whether the stream has changed its identity since the follower read
// it. It was recreated, or it was restored from a backup: then it ends before the last message
// that was read or written, or has another message in that place. A missing message shows
// nothing: later writes of its key may have filled the history. own is this process's last
// write.
func (f *follower) isAnotherStream(ctx context.Context, info *jetstream.StreamInfo, own *ownWrite) (bool, error) {
	if f.created.IsZero() {
		return false, nil
	}
	if f.stateDiffers(info, own) {
		return true, nil
	}
	if own != nil && own.revision > f.read {
		is, err := f.messageDiffers(ctx, own.revision, func(e *entry) bool { return e.op != own.op })
		if is || err != nil {
			return is, err
		}
	}
	return f.messageDiffers(ctx, f.read, func(e *entry) bool { return !e.at.Equal(f.readAt) })
}

// messageDiffers reports whether the bucket's message of a revision differs, as the function
// says. It returns false for a missing message.
func (f *follower) messageDiffers(ctx context.Context, revision uint64, differs func(*entry) bool) (bool, error) {
	if revision == 0 {
		return false, nil
	}
	e, err := f.b.at(ctx, revision)
	if isNotFound(err) {
		return false, nil
	}
	return err == nil && differs(e), err
}

// stateDiffers reports whether the stream's state alone shows that it is another stream. own is
// a write that was acknowledged before the state was asked for.
func (f *follower) stateDiffers(info *jetstream.StreamInfo, own *ownWrite) bool {
	last := info.State.LastSeq
	wasRecreated := !info.Created.Equal(f.created)
	lostWrite := own != nil && last < own.revision
	return wasRecreated || last < f.read || lostWrite
}

func (f *follower) forget() {
	f.asOf.Store(nil)
	f.own.Store(nil)
	clear(f.keys)
	f.synced, f.read, f.readAt, f.pendingLook, f.extra, f.asked = false, 0, time.Time{}, nil, 0, ""
}

// readAll passes messages on until an error, and looks at the bucket every lookTime and when look
// asks for it. It returns nil when it finds another stream, and after a reconnect.
func (f *follower) readAll(ctx context.Context, p *puller, stream jetstream.Stream, consumer jetstream.Consumer) error {
	f.look()
	regular := time.AfterFunc(f.b.pace.Of(lookTime), f.look)
	defer regular.Stop()
	for {
		msg, meta, err := p.next(ctx)
		switch {
		case errors.Is(err, errReconnected):
			return nil
		case err != nil:
			return fmt.Errorf("read bucket %s: %w", f.b.name, err)
		case msg == nil:
			if f.inspect(ctx, stream, consumer) {
				return nil
			}
			if f.pendingLook != nil {
				p.news++ // what it waits for is asked for at once
			}
			regular.Reset(f.b.pace.Of(lookTime))
			continue
		}
		e := newEntry(f.b.key(msg.Subject), meta.Sequence.Stream, meta.Timestamp, msg.Header, msg.Data)
		f.passed = p.read
		f.pass(e)
		if meta.NumPending == 0 && !f.synced {
			f.sync()
		}
		if !strings.HasPrefix(e.op, f.b.ops) {
			p.news++
		}
	}
}

func (f *follower) pass(e *entry) {
	if f.pendingLook != nil && e.revision > f.pendingLook.last {
		f.caughtUp()
	}
	f.to.Put(e.key, e)
	f.keys[e.key] = e.revision
	if e.deleted() {
		f.keys[e.key] |= deletedBit
	}
	f.read, f.readAt = e.revision, e.at
	if f.pendingLook != nil && e.revision == f.pendingLook.last {
		f.caughtUp()
	}
}

// caughtUp ends the wait for the messages of a look.
func (f *follower) caughtUp() {
	f.reached(f.pendingLook)
	if f.extra != 0 {
		f.look()
	}
}

func (f *follower) sync() {
	f.synced = true
	f.to.Sync()
}
