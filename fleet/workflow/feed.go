package workflow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// reader is told what a bucket holds, and every write from then on. Its methods
// are called one at a time, in one goroutine.
type reader interface {
	// reset says that nothing told before holds any more, if anything was: the
	// bucket was created anew, or restored from a backup. What it holds now
	// follows.
	reset(again bool)
	// entry tells one revision. Those of a key come in order, each once.
	entry(e *entry)
	// synced says that everything was told that was there when it began.
	synced()
}

// lookTime is the time between two looks at whether the bucket is still the one
// that is being followed.
const lookTime = 2 * time.Second

// follower reads a bucket for one reader.
type follower struct {
	b      *bucket
	to     reader
	log    *slog.Logger
	filter string
	kick   chan struct{} // asks for a look at once

	created time.Time     // of the stream that is being followed
	seq     atomic.Uint64 // of the last message told
	told    bool          // synced was called
	said    string        // the last trouble that was logged
}

func (b *bucket) follower(log *slog.Logger, to reader) *follower {
	return &follower{b: b, to: to, log: log, filter: "$KV." + b.name + ".>", kick: make(chan struct{}, 1)}
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
	if again := !f.created.IsZero(); !again || f.moved(info) {
		f.created, f.told = info.Created, false
		f.seq.Store(0)
		f.to.reset(again)
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
	p, err := f.b.pull(consumer.CachedInfo().Name)
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

// moved reports whether the stream is not the one that was followed: it was
// made anew, or its sequence went back.
func (f *follower) moved(info *jetstream.StreamInfo) bool {
	return !info.Created.Equal(f.created) || info.State.LastSeq < f.seq.Load()
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
		f.to.entry(&entry{key: strings.TrimPrefix(msg.Subject, "$KV."+f.b.name+"."), revision: meta.Sequence.Stream, at: meta.Timestamp, header: msg.Header, data: msg.Data})
		f.seq.Store(meta.Sequence.Stream)
		if meta.NumPending == 0 && !f.told {
			f.sync()
		}
	}
}

func (f *follower) sync() {
	f.told = true
	f.to.synced()
}
