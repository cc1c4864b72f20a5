package workflow

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/internal/replay"
)

// ErrJournal is returned when a workflow that was registered with [WithJournal] has no
// usable journal: it was never declared, it was deleted, or it belongs to an earlier
// bucket of the same name. A write gets it when it would push a change of phase out of the
// bucket that the journal does not have yet, and its time is over. Nothing was written then.
var ErrJournal = errors.New("workflow: the journal is not usable")

// Journal declares the journal of a bucket, for broker.Config.Streams. A bucket keeps
// the last 64 writes of an entity; its journal keeps all of them, for ever. The caller
// may change the result before declaring it: Replicas as the bucket has, Compression,
// and MaxAge or MaxBytes to bound what it keeps. See [Manager.Archive] for a bound that
// never cuts the history of a living entity.
//
// The server copies each write from the bucket to the journal after it has acknowledged
// the write, with the write's revision, time and headers. The journal lags when the server
// is busy, and misses updates when one entity is written more than 64 times within that
// lag. It misses no change of phase: a write that would push one out of the bucket waits
// until the journal has it, and ends with [ErrJournal] when that takes too long. Writes of
// other programs do not wait; [Trail] says when events are missing.
//
// The server also lets the journal answer direct gets of the bucket, such as those of
// jetstream.KeyValue.Get, with what it has copied so far. The Manager reads single
// records from the bucket's leader.
func Journal(bucket string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              journalOf(bucket),
		Description:       "every write of the bucket " + bucket,
		Mirror:            &jetstream.StreamSource{Name: "KV_" + bucket},
		Storage:           jetstream.FileStorage,
		AllowDirect:       true,
		MaxMsgsPerSubject: -1,
	}
}

func journalOf(bucket string) string { return "JOURNAL_" + bucket }

// WithJournal says that the workflow's bucket has a [Journal], declared to the broker.
// [Manager.History] reads from it, and hooks need it.
func WithJournal() RegisterOption { return func(r *registration) { r.journaled = true } }

// journalName returns the stream that has every write of the bucket. In a test whose
// clock is not real it is the bucket's own: a mirror has a heartbeat a second.
func (b *bucket) journalName() string {
	if b.pace > 1 {
		return b.stream
	}
	return journalOf(b.name)
}

// archival returns how Archive removes an entity from the bucket: with its earlier
// writes, unless the bucket is its own journal.
func (b *bucket) archival() string {
	if b.journalName() == b.stream {
		return "DEL"
	}
	return "PURGE"
}

// journal returns a reader of the bucket's journal. Revisions are the bucket's own.
func (b *bucket) journal() *bucket {
	return &bucket{js: b.js, nc: b.nc, name: b.name, stream: b.journalName(), api: b.api, pace: b.pace}
}

// checkJournal returns an ErrJournal when the journal is missing or has messages of
// another bucket.
func (b *bucket) checkJournal(ctx context.Context) error {
	if b.journalName() == b.stream {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s: "+format, append([]any{ErrJournal, journalOf(b.name)}, args...)...)
	}
	j, err := b.journalStream(ctx)
	if err != nil {
		return err
	}
	info := j.CachedInfo()
	if info.Config.Mirror == nil || info.Config.Mirror.Name != b.stream {
		return fail("the stream is not a mirror of %s", b.stream)
	}
	if info.State.Msgs == 0 {
		return nil
	}
	// Its last message must be the bucket's of the same revision, if the bucket still has it.
	mine, err := b.journal().at(ctx, info.State.LastSeq)
	if isNotFound(err) {
		return nil // its last message was purged with an archived entity
	}
	if err != nil {
		return err
	}
	origin, err := b.js.Stream(ctx, b.stream)
	if err != nil {
		return fmt.Errorf("look at the bucket %s: %w", b.name, natserr.Plain(err))
	}
	const restored = "the bucket was recreated, or restored from a backup: restore the journal too, or delete it"
	if last := origin.CachedInfo().State.LastSeq; last < mine.revision {
		return fail("it is at revision %d and the bucket %s at %d: %s", mine.revision, b.name, last, restored)
	}
	theirs, err := b.at(ctx, mine.revision)
	if isNotFound(err) {
		return nil
	}
	if err == nil && (theirs.key != mine.key || !theirs.at.Equal(mine.at)) {
		return fail("it and the bucket %s have different writes at revision %d: %s", b.name, mine.revision, restored)
	}
	return err
}

// pendingAfter returns how many writes before the one that follows cur the first change is that
// the journal may not have, 0 for none. When that write would push the change out of the bucket,
// pendingAfter waits until the journal has it.
func (b *bucket) pendingAfter(ctx context.Context, cur *entry) (int, error) {
	if cur == nil || b.journalName() == b.stream {
		return 0, nil
	}
	last := cur.lastChange()
	if cur.pending == 0 && last != cur.revision {
		return 0, nil
	}
	if pending := cur.pending + 1; pending < b.traits.kept() {
		return pending, nil
	}
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	for n := 1; ; n++ {
		j, err := b.journalStream(ctx)
		if errors.Is(err, ErrJournal) {
			return 0, err
		}
		if err == nil {
			copied := j.CachedInfo().State.LastSeq
			if copied >= last {
				return 0, nil
			}
			err = fmt.Errorf("it has copied up to revision %d", copied)
		}
		if retryPause.Sleep(ctx, n) != nil {
			return 0, fmt.Errorf("%w: %s does not have the change of phase at revision %d yet, which this write would push out of the bucket: %w: %w",
				ErrJournal, journalOf(b.name), last, context.Cause(ctx), err)
		}
	}
}

// journalStream returns the bucket's journal, or an ErrJournal when there is none.
func (b *bucket) journalStream(ctx context.Context) (jetstream.Stream, error) {
	name := b.journalName()
	j, err := b.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("%w: %s: there is no such stream: declare it to the broker, see workflow.Journal", ErrJournal, name)
	}
	if err != nil {
		return nil, fmt.Errorf("look at the journal of %s: %w", b.name, natserr.Plain(err))
	}
	return j, nil
}

// revisions calls take for every kept revision of a key, oldest first: the journal's if
// there is one, and then the writes that the journal does not have yet. It ends early when take
// returns false.
func (r *registration) revisions(ctx context.Context, key string, take func(*entry) bool) error {
	from, ended := uint64(1), false
	if r.journaled {
		err := r.bucket.journal().replay(ctx, key, func(e *entry) bool {
			from, ended = e.revision+1, !take(e)
			return !ended
		})
		if err != nil {
			return err
		}
	}
	for !ended {
		e, err := r.bucket.next(ctx, key, from)
		if isNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		from, ended = e.revision+1, !take(e)
	}
	return nil
}

// replay calls take for every revision of a key that the journal has, oldest first, until
// take returns false.
func (b *bucket) replay(ctx context.Context, key string, take func(*entry) bool) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	stream, err := b.journalStream(ctx)
	if err != nil {
		return err
	}
	by := jetstream.ConsumerConfig{FilterSubject: b.subject(key)}
	err = replay.Each(ctx, stream, by, math.MaxInt, func(m jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
		return take(newEntry(key, meta.Sequence.Stream, meta.Timestamp, m.Headers(), m.Data())), nil
	})
	if err != nil {
		return fmt.Errorf("read %s: %w", b.stream, natserr.Plain(err))
	}
	return nil
}
