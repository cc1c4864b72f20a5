package presence

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
)

// Change is an item that Attend passes on. Its Kind is "put" for an announcement, "deleted"
// for the end of a process, "synced" or "gap"; its Key is the process's id, and its Value
// the process.
type Change = stream.Item[Process]

// Attend calls tell with a Put for each existing process, then with one Synced, and
// then for every announcement and every end of a process. It calls tell one call at a
// time.
//
// An entry, or a removal, that the process has not signed only changes
// [Process.Suspect].
//
// It reports the end of a killed process within TTL + TTL/3. While NATS is away no
// process ends: after that each has a TTL and a grace to announce itself again, also
// when the server has lost the bucket.
//
// It writes into the journal which processes disappeared without a word: since when, in
// which state, and what their last announcement said; but not when the journal has the end of that
// life already, because Attend was cut off when the process left. A process that was killed and
// started again under its id is two lives, and the first of them disappeared. When such a process announces itself
// again, it writes that too. Several programs may attend a fleet: the journal has each event
// once.
//
// Attend returns an error when it cannot begin, and otherwise ctx's error when ctx ends.
func (f *Fleet) Attend(ctx context.Context, tell func(Change)) error {
	journal := newJournalWriter(f.js, f.cfg, maxLostEvents, nil)
	if journal != nil {
		if _, err := openJournal(ctx, f.js, f.cfg); err != nil { // services may not create it
			f.cfg.Logger.Warn("presence: cannot open the journal", "journal", f.cfg.Journal, "error", err)
		}
	}
	writing, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { journal.run(writing, Event{}) })
	defer func() { cancel(); done.Wait() }()
	return f.watch(ctx, tell, journal)
}

// maxLostEvents is how many events of processes that disappeared may wait for the journal.
const maxLostEvents = 20_000

// tracked is a process as a watch knows it.
type tracked struct {
	last  *Process
	heard time.Time // by this process's clock
	dead  bool

	replaced bool // another life has its id
}

// tracker decides which processes are alive.
type tracker struct {
	ttl, grace time.Duration
	seen       time.Time // since when the bucket can be seen without a break
	looked     time.Time // when expired was called last
	list       map[string]*tracked

	// replaced are, by id, the lives whose id another life has, the newest maxOthers: each has
	// ended, or is about to.
	replaced map[string][]*tracked
}

func newTracker(ttl time.Duration) *tracker {
	now := time.Now()
	return &tracker{ttl: ttl + ttl/6, grace: ttl / 6, seen: now, looked: now, list: map[string]*tracked{}, replaced: map[string][]*tracked{}}
}

// unseen notes that the bucket cannot be seen at this moment.
func (k *tracker) unseen() { k.seen = time.Now() }

// announced notes an announcement. It reports whether the process counted as dead.
func (k *tracker) announced(p *Process) (returned bool) {
	old := k.list[p.ID]
	k.list[p.ID] = &tracked{last: p, heard: time.Now()}
	earlier := k.replaced[p.ID]
	if i := slices.IndexFunc(earlier, func(r *tracked) bool { return r.isLifeOf(p) }); i >= 0 {
		// It had not ended, so the other one is no later life: the two have one id, or it is forged.
		k.setReplaced(p.ID, slices.Delete(earlier, i, i+1))
		return false
	}
	switch {
	case old == nil:
		return false
	case old.isLifeOf(p):
		return old.dead
	case !old.dead:
		old.replaced = true
		earlier = append(earlier, old)
		k.setReplaced(p.ID, earlier[max(0, len(earlier)-maxOthers):])
	}
	return false
}

// setReplaced sets the lives of an id that another life has now.
func (k *tracker) setReplaced(id string, lives []*tracked) {
	if k.replaced[id] = lives; len(lives) == 0 {
		delete(k.replaced, id)
	}
}

// isLifeOf reports whether p is of this life, and not of another one with its id.
func (t *tracked) isLifeOf(p *Process) bool {
	return t.last.ID == p.ID && t.last.StartedAt.Equal(p.StartedAt)
}

// left forgets a process that said that it ends.
func (k *tracker) left(id string) (known bool) {
	old := k.list[id]
	delete(k.list, id)
	return old != nil && !old.dead
}

// expired returns the lives that have not been heard for too long. It remembers
// those that are dead for an hour, in case they return, unless another life has their id. A call that comes late finds none:
// this process stood still, and has not read what was announced meanwhile.
func (k *tracker) expired() (died []*tracked) {
	now := time.Now()
	if now.Sub(k.looked) > k.ttl/2 {
		k.seen = now
	}
	k.looked = now
	hasExpired := func(p *tracked) bool {
		return now.Sub(p.heard) >= k.ttl && now.Sub(k.seen) >= k.ttl+k.grace
	}
	for id, p := range k.list {
		switch {
		case p.dead && now.Sub(p.heard) > time.Hour:
			delete(k.list, id)
		case !p.dead && hasExpired(p):
			died = append(died, p)
		}
	}
	for _, lives := range k.replaced {
		for _, p := range lives {
			if hasExpired(p) {
				died = append(died, p)
			}
		}
	}
	return died
}

// madeAt returns when the server made the bucket.
func madeAt(ctx context.Context, kv jetstream.KeyValue) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, retry)
	defer cancel()
	status, err := kv.Status(ctx)
	if err != nil {
		return time.Time{}, err
	}
	if s, ok := status.(interface{ StreamInfo() *jetstream.StreamInfo }); ok {
		return s.StreamInfo().Created, nil
	}
	return time.Time{}, nil
}

// watching is one call of Attend.
type watching struct {
	*Fleet
	to      stream.Sink[Process]
	journal *journalWriter // gets the processes that disappear and return; nil for no journal
	known   *tracker

	kv      jetstream.KeyValue
	made    time.Time            // when the server made the bucket that is watched
	watcher jetstream.KeyWatcher // nil while there is none
	updates <-chan jetstream.KeyValueEntry
	synced  bool
}

func (f *Fleet) watch(ctx context.Context, tell func(Change), journal *journalWriter) error {
	w := &watching{Fleet: f, to: tell, journal: journal, known: newTracker(f.cfg.TTL)}
	if err := w.open(ctx); err != nil {
		return fmt.Errorf("presence: watch: %w", err)
	}
	defer w.close()
	opened := time.Now()
	look := time.NewTicker(f.cfg.TTL / 12)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
			if w.watcher == nil && time.Since(opened) >= retry {
				opened = time.Now()
				_ = w.open(ctx) // a later look tries again
			}
			w.look(ctx)
		case e, ok := <-w.updates:
			switch {
			case !ok: // the server has lost the bucket
				w.close()
			case e != nil:
				w.entry(e)
			case !w.synced:
				w.synced = true
				w.to.Sync()
			}
		}
	}
}

// open begins to watch the bucket, which the server may have lost and made anew.
func (w *watching) open(ctx context.Context) (err error) {
	if w.kv, err = bucket(ctx, w.js, w.cfg); err != nil {
		return err
	}
	if w.made, err = madeAt(ctx, w.kv); err != nil {
		return err
	}
	if w.watcher, err = w.kv.WatchAll(ctx); err != nil {
		w.watcher = nil
		return err
	}
	w.updates = w.watcher.Updates()
	w.known.unseen()
	return nil
}

func (w *watching) close() {
	if w.watcher != nil {
		_ = w.watcher.Stop()
		w.watcher, w.updates = nil, nil
	}
}

// look reports the processes that have died, unless the bucket cannot be seen.
func (w *watching) look(ctx context.Context) {
	if w.watcher == nil || !w.js.Conn().IsConnected() {
		w.known.unseen()
		return
	}
	died := w.known.expired()
	if len(died) == 0 {
		return
	}
	// A watch of a bucket that the server has lost reports nothing.
	if now, err := madeAt(ctx, w.kv); err != nil || !now.Equal(w.made) {
		w.close()
		w.known.unseen()
		return
	}
	for _, p := range died {
		p.dead = true
		w.journal.addCompleted(lostEvent(*p.last, p.heard), func(ctx context.Context, e Event) Event {
			return w.ended(ctx, *p.last, e)
		})
		if !p.replaced {
			w.to.Delete(p.last.ID)
			continue
		}
		earlier := w.known.replaced[p.last.ID]
		w.known.setReplaced(p.last.ID, slices.DeleteFunc(earlier, func(r *tracked) bool { return r == p }))
	}
}

// entry reports an announcement, or the end of a process.
func (w *watching) entry(e jetstream.KeyValueEntry) {
	if e.Operation() != jetstream.KeyValuePut {
		if w.removed(e) && w.known.left(e.Key()) {
			w.to.Delete(e.Key())
		}
		return
	}
	p, alive := w.read(e)
	if alive && w.known.announced(p) {
		w.journal.add(eventOf(*p, Event{Kind: "returned", Cause: "it announces itself again: it was not dead"}))
	}
	w.to.Put(p.ID, *p)
}
