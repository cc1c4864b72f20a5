// Package feed shares one stream of changes among any number of readers, and has the latest
// value of each key. Its memory does not depend on how many readers there are or how slow
// they are.
//
// It uses package stream: a [Source] sends the items of a stream, and a [Reader] gets them. The
// operators' server has a [Feed] of the processes and one for each type of workflow.
// Begin with [Feed].
package feed

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/btree"

	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Source sends a put for everything that exists, then a sync, and then every
// change, until ctx ends. After a gap it begins again. When it returns an error,
// the Feed calls it again. The sink never blocks.
type Source[T any] func(ctx context.Context, to stream.Sink[T]) error

// Feed reads a Source while it has readers, or always. Every
// reader gets the current values first, then a synced item, then changes in
// order. When a value that the reader got is deleted before the synced item, the
// reader gets the deletion before the synced item too. Readers do not see a gap
// of the source: they get the differences after it. When a key has changed
// several times since a reader's last item, the reader gets only its latest
// value. The Feed keeps the latest change of each key, in the order of the changes. A
// reader is a place in that order.
//
// The zero value is not usable. All methods may be called concurrently.
type Feed[T any] struct {
	source Source[T]
	opts   Options[T]

	mu      sync.Mutex // guards the fields below
	latest  map[string]change[T]
	order   *btree.BTreeG[change[T]] // the same, by seq
	deleted []change[T]              // deletions, oldest first; some keys have a later change
	forgot  uint64                   // the newest deletion that is not known any more
	seq     uint64
	synced  bool
	seen    map[string]bool // during a sync: keys that the source has sent
	changed chan struct{}   // closed and replaced at every change
	readers map[*Reader[T]]bool
	stop    context.CancelFunc // of the running source
	done    chan struct{}      // closed when it has returned
	closed  bool
}

// Options of a Feed.
type Options[T any] struct {
	// Always runs the source until the Feed is closed, also without readers.
	Always bool
	// Failed gets each error of the source; nil for none.
	Failed func(error)
	// Merge returns the value to keep of a new one, and whether readers get it. old is the
	// value before, when known. Nil keeps each new value, for all readers. The Feed calls it
	// while it holds its lock: Merge must not call the Feed.
	Merge func(key string, old T, known bool, new T) (value T, news bool)
}

// change is the latest change of a key.
type change[T any] struct {
	seq     uint64
	key     string
	value   T // for a deleted key its last value, for Reader.sees
	deleted bool
}

func isBefore[T any](a, b change[T]) bool { return a.seq < b.seq }

// New returns a Feed of source. The caller must close it.
func New[T any](source Source[T], opts Options[T]) *Feed[T] {
	f := &Feed[T]{
		source:  source,
		opts:    opts,
		changed: make(chan struct{}),
		readers: map[*Reader[T]]bool{},
	}
	f.forgetLocked()
	if opts.Always {
		f.startLocked() // nothing else has the Feed yet
	}
	return f
}

// forgetLocked forgets all values.
func (f *Feed[T]) forgetLocked() {
	f.latest, f.order, f.deleted = map[string]change[T]{}, btree.NewG(32, isBefore[T]), nil
	f.synced, f.seen = false, nil
}

// Synced waits until the Feed has read everything that the source had. It returns an error when ctx
// ends first, or when the Feed is closed.
func (f *Feed[T]) Synced(ctx context.Context) error {
	for {
		f.mu.Lock()
		synced, closed, changed := f.synced, f.closed, f.changed
		f.mu.Unlock()
		switch {
		case synced:
			return nil
		case closed:
			return context.Canceled
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// Each calls fn for the latest value of each key, in any order. fn must not call the Feed.
func (f *Feed[T]) Each(fn func(key string, value T)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, e := range f.latest {
		if !e.deleted {
			fn(key, e.value)
		}
	}
}

// Reader is one reader's place. Only one goroutine at a time may use it.
type Reader[T any] struct {
	feed   *Feed[T]
	only   string       // the only key that it reads, "" for all
	sees   func(T) bool // says which values it reads, nil for all
	at     uint64       // the last change that it has read
	begun  bool         // it has read once
	since  uint64       // the last change at its first read; it needs no earlier deletions
	synced bool
}

// Read returns a new reader of one key, or of all when key is empty. It reads the values for
// which sees returns true, which must be the same for all values of a key; nil is all. The Feed
// calls sees while it holds its lock. The caller must close the reader. On a closed Feed its
// Next returns context.Canceled.
func (f *Feed[T]) Read(key string, sees func(T) bool) *Reader[T] {
	r := &Reader[T]{feed: f, only: key, sees: sees}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return r
	}
	f.readers[r] = true
	if f.stop == nil {
		f.startLocked()
	}
	return r
}

// startLocked runs the source.
func (f *Feed[T]) startLocked() {
	ctx, cancel := context.WithCancel(context.Background())
	before := f.done
	f.stop, f.done = cancel, make(chan struct{})
	go f.run(ctx, before, f.done)
}

// Close ends the reader. A second call does nothing.
func (r *Reader[T]) Close() {
	f := r.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.readers, r)
	if len(f.readers) > 0 || f.opts.Always || f.stop == nil {
		return
	}
	f.stop()
	f.stop = nil
	f.forgetLocked() // without a source the values are out of date
}

// Close stops the source and waits for it. Readers get context.Canceled.
func (f *Feed[T]) Close() {
	f.mu.Lock()
	f.closed = true
	if f.stop != nil {
		f.stop()
	}
	f.stop = nil
	done := f.done
	f.wakeLocked()
	f.mu.Unlock()
	if done != nil {
		<-done
	}
}

// Next waits for items and returns up to limit of them, at least one. When ctx
// ends first, it returns ctx's error. When the reader is too slow, it returns
// [ErrSlow].
func (r *Reader[T]) Next(ctx context.Context, limit int) ([]stream.Item[T], error) {
	f := r.feed
	for {
		f.mu.Lock()
		if f.closed {
			f.mu.Unlock()
			return nil, context.Canceled
		}
		if r.begun && max(r.at, r.since) < f.forgot {
			f.mu.Unlock()
			return nil, ErrSlow
		}
		items := r.takeLocked(limit)
		changed := f.changed
		f.mu.Unlock()
		if len(items) > 0 {
			return items, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-changed:
		}
		// Let the next changes gather. Without this pause each of a thousand readers
		// would take the lock for each change of a burst.
		pause := time.NewTimer(pace)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil, ctx.Err()
		case <-pause.C:
		}
	}
}

// pace is how long a reader that has read everything lets changes gather.
const pace = 20 * time.Millisecond

func (r *Reader[T]) takeLocked(limit int) (items []stream.Item[T]) {
	f := r.feed
	if !r.begun {
		r.begun, r.since = true, f.seq
	}
	f.order.AscendGreaterOrEqual(change[T]{seq: r.at + 1}, func(c change[T]) bool {
		if len(items) == limit {
			return false
		}
		r.at = c.seq
		switch {
		case !r.reads(c.key, c.value):
		case !c.deleted:
			items = append(items, stream.Item[T]{Kind: stream.Put, Key: c.key, Value: c.value})
		case c.seq > r.since:
			items = append(items, stream.Item[T]{Kind: stream.Deleted, Key: c.key})
		}
		return true
	})
	if f.synced && !r.synced && len(items) < limit {
		r.synced = true
		items = append(items, stream.Item[T]{Kind: stream.Synced})
	}
	return items
}

// reads reports whether the reader reads a value of a key.
func (r *Reader[T]) reads(key string, value T) bool {
	if r.only != "" && key != r.only {
		return false
	}
	return r.sees == nil || r.sees(value)
}

// run runs the source, again after an error, until ctx ends. It waits until the
// previous run has returned.
func (f *Feed[T]) run(ctx context.Context, before, done chan struct{}) {
	defer close(done)
	if before != nil {
		<-before
	}
	for {
		to := stream.Sink[T](func(it stream.Item[T]) { f.take(ctx, it) })
		to.Gap() // values of the previous run may be out of date
		err := f.source(ctx, to)
		if ctx.Err() != nil {
			return
		}
		if err != nil && f.opts.Failed != nil {
			f.opts.Failed(err)
		}
		if (worker.Backoff{Min: retry, Max: retry, Jitter: worker.NoJitter}).Sleep(ctx, 1) != nil {
			return
		}
	}
}

// retry is the pause after the source has returned an error.
const retry = time.Second

// take is the Feed's sink for its source. The Feed ignores a source that was
// stopped and has not returned yet.
func (f *Feed[T]) take(ctx context.Context, it stream.Item[T]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	switch it.Kind {
	case stream.Put:
		f.mergeLocked(it.Key, it.Value)
	case stream.Deleted:
		f.deleteLocked(it.Key)
	case stream.Gap:
		f.seen = map[string]bool{}
	case stream.Synced:
		// A key that the source did not send again after a gap was deleted in
		// between.
		for key, e := range f.latest {
			if f.seen != nil && !f.seen[key] && !e.deleted {
				f.deleteLocked(key)
			}
		}
		f.seen = nil
		f.synced = true
		f.wakeLocked()
	}
}

func (f *Feed[T]) mergeLocked(key string, value T) {
	if f.seen != nil {
		f.seen[key] = true
	}
	old, ok := f.latest[key]
	known, news := ok && !old.deleted, true
	if f.opts.Merge != nil {
		value, news = f.opts.Merge(key, old.value, known, value)
	}
	if news || !known {
		f.putLocked(change[T]{key: key, value: value})
		return
	}
	old.value = value
	f.latest[key] = old
	f.order.ReplaceOrInsert(old)
}

func (f *Feed[T]) deleteLocked(key string) {
	if old, ok := f.latest[key]; ok && !old.deleted {
		f.putLocked(change[T]{key: key, value: old.value, deleted: true})
	}
}

func (f *Feed[T]) putLocked(c change[T]) {
	if old, ok := f.latest[c.key]; ok {
		f.order.Delete(old)
	}
	f.seq++
	c.seq = f.seq
	f.latest[c.key] = c
	f.order.ReplaceOrInsert(c)
	if c.deleted {
		f.deleted = append(f.deleted, c)
	}
	for len(f.deleted) > 0 && (len(f.deleted) > maxDeleted || len(f.readers) == 0) {
		old := f.deleted[0]
		f.deleted = f.deleted[1:]
		if f.order.Has(old) {
			f.order.Delete(old)
			delete(f.latest, old.key)
			f.forgot = old.seq
		}
	}
	if f.synced || f.seq%256 == 0 { // wake readers in batches before the sync
		f.wakeLocked()
	}
}

// ErrSlow is returned by [Reader.Next] when the reader is so slow that the Feed has
// forgotten a deletion that it has not read. The reader must start again.
var ErrSlow = errors.New("the reader is too slow")

// maxDeleted is how many deletions the Feed remembers for slow readers.
const maxDeleted = 4096

func (f *Feed[T]) wakeLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}
