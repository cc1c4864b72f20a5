package workflow

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrJournal is returned when a workflow that was registered with [WithJournal] has no
// usable journal: it was never declared, it was deleted, or it belongs to an earlier
// bucket of the same name.
var ErrJournal = errors.New("lifecycle: the journal is not usable")

// Journal declares the journal of a bucket, for broker.Config.Streams. A bucket keeps
// the last 64 writes of an entity; its journal keeps all of them, for ever. The caller
// may change the result before declaring it: Replicas as the bucket has, Compression,
// and MaxAge or MaxBytes to bound what it keeps. See [Manager.Archive] for a bound that
// never cuts the history of a living entity.
//
// The server copies each write from the bucket to the journal after it has acknowledged
// the write, with the write's revision, time and headers. No write waits for the
// journal. The journal lags when the server is busy. When one entity is written more
// than 64 times within that lag, the journal misses some of the writes; [Trail] says so.
//
// The server also lets the journal answer direct gets of the bucket, such as those of
// jetstream.KeyValue.Get, with what it has copied so far. The Manager reads single
// records from the bucket's leader.
func Journal(bucket string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: journalOf(bucket), Description: "every write of the bucket " + bucket,
		Mirror:  &jetstream.StreamSource{Name: "KV_" + bucket},
		Storage: jetstream.FileStorage, AllowDirect: true, MaxMsgsPerSubject: -1,
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

// journal returns a reader of the bucket's journal. Revisions are the bucket's own.
func (b *bucket) journal() *bucket {
	return &bucket{js: b.js, nc: b.nc, name: b.name, stream: b.journalName(), api: b.api, put: b.put, pace: b.pace}
}

// checkJournal returns an ErrJournal when the journal is missing or has messages of
// another bucket.
func (b *bucket) checkJournal(ctx context.Context) error {
	if b.journalName() == b.stream {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	j, err := b.js.Stream(ctx, journalOf(b.name))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("%w: there is no stream %s: declare it to the broker, see workflow.Journal", ErrJournal, journalOf(b.name))
	}
	if err != nil {
		return fmt.Errorf("look at the journal of %s: %w", b.name, err)
	}
	info := j.CachedInfo()
	if info.Config.Mirror == nil || info.Config.Mirror.Name != b.stream {
		return fmt.Errorf("%w: the stream %s is not a mirror of %s", ErrJournal, journalOf(b.name), b.stream)
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
		return fmt.Errorf("look at the bucket %s: %w", b.name, err)
	}
	if last := origin.CachedInfo().State.LastSeq; last < mine.revision {
		return fmt.Errorf("%w: %s is at revision %d and the bucket %s at %d: the bucket was recreated, or restored from a backup: restore the journal too, or delete it", ErrJournal, journalOf(b.name), mine.revision, b.name, last)
	}
	theirs, err := b.at(ctx, mine.revision)
	if err == nil && (theirs.key != mine.key || !theirs.at.Equal(mine.at)) {
		return fmt.Errorf("%w: %s and the bucket %s have different writes at revision %d: the bucket was recreated, or restored from a backup: restore the journal too, or delete it", ErrJournal, journalOf(b.name), b.name, mine.revision)
	}
	if err != nil && !isNotFound(err) {
		return err
	}
	return nil
}

// pageSize is how many revisions of a key one request asks for.
const pageSize = 256

// page reads kept revisions of a key, oldest first, starting at revision from. more
// reports whether there are others.
func (b *bucket) page(ctx context.Context, key string, from uint64) (page []*entry, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	inbox := b.nc.NewInbox()
	sub, err := b.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, false, fmt.Errorf("read %s: %w", b.stream, err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	from = max(from, 1)
	request := fmt.Sprintf(`{"seq":%d,"batch":%d,"next_by_subj":%s}`, from, pageSize, quote("$KV."+b.name+"."+key))
	if err := b.nc.PublishRequest(b.api+"DIRECT.GET."+b.stream, inbox, []byte(request)); err != nil {
		return nil, false, fmt.Errorf("read %s: %w", b.stream, err)
	}
	for {
		msg, err := sub.NextMsgWithContext(ctx)
		if errors.Is(err, nats.ErrNoResponders) {
			return nil, false, fmt.Errorf("%w: no server answers for %s: declare it to the broker, see workflow.Journal", ErrJournal, b.stream)
		}
		if err != nil {
			return nil, false, fmt.Errorf("read %s: %w", b.stream, err)
		}
		switch status := msg.Header.Get("Status"); status {
		case "":
			e, err := direct(b.name, msg)
			if err != nil { // another program wrote headers that no client can read
				e, failed := b.next(ctx, key, from)
				if failed != nil {
					return nil, false, fmt.Errorf("read %s: %w: %w", b.stream, err, failed)
				}
				return append(page, e), true, nil
			}
			page, from = append(page, e), e.revision+1
		case "204": // the end of the batch
			return page, msg.Header.Get("Nats-Num-Pending") != "0", nil
		case "404":
			return nil, false, nil
		default:
			return nil, false, fmt.Errorf("read %s: the server says %s %s", b.stream, status, msg.Header.Get("Description"))
		}
	}
}

// direct makes an entry from the answer to a direct get.
func direct(bucket string, msg *nats.Msg) (*entry, error) {
	seq, err := strconv.ParseUint(msg.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("the answer's sequence: %w", err)
	}
	at, err := time.Parse(time.RFC3339Nano, msg.Header.Get(jetstream.TimeStampHeaer))
	if err != nil {
		return nil, fmt.Errorf("the answer's time: %w", err)
	}
	key := strings.TrimPrefix(msg.Header.Get(jetstream.SubjectHeader), "$KV."+bucket+".")
	return &entry{key: key, revision: seq, at: at, header: msg.Header, data: msg.Data}, nil
}

// revisions calls take for every kept revision of a key, oldest first, starting at
// revision from: the journal's if there is one, and then those that the journal does
// not have yet. It ends early when take returns false.
func (r *registration) revisions(ctx context.Context, key string, from uint64, take func(*entry) bool) error {
	for more := r.journaled; more; {
		var page []*entry
		var err error
		if page, more, err = r.bucket.journal().page(ctx, key, from); err != nil {
			return err
		}
		for _, e := range page {
			from = e.revision + 1
			if !take(e) {
				return nil
			}
		}
	}
	for {
		e, err := r.bucket.next(ctx, key, from)
		if errors.Is(err, ErrEntityNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		from = e.revision + 1
		if !take(e) {
			return nil
		}
	}
}
