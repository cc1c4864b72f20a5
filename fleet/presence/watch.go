package presence

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
)

// Change is an item of a Watch. An announcement is a Put and the end of a process a
// Deleted; the key is the process's id.
type Change = stream.Item[Process]

// Watch calls tell with a Put for each existing process, then with one Synced, and
// then for every announcement and every end of a process. It calls tell one call at a
// time.
//
// An entry, or a removal, that the process has not signed changes nothing but
// [Process.Suspect].
//
// It reports the end of a killed process within TTL + TTL/3. While NATS is away no
// process ends: after that each has a TTL and a grace to announce itself again, also
// when the server has lost the bucket.
//
// Watch returns an error when it cannot begin, and otherwise ctx's error when ctx ends.
func (f *Fleet) Watch(ctx context.Context, tell func(Change)) error {
	return f.watch(ctx, tell, func(Process, time.Time) {}, func(Process) {})
}

// Attend is Watch, and it writes into the journal which processes disappeared without
// a word: since when, in which state, and with which last words. When such a process
// announces itself again, it writes that too. Several programs may attend a fleet: the
// journal has each event once.
func (f *Fleet) Attend(ctx context.Context, tell func(Change)) error {
	if f.cfg.Journal == JournalOff {
		return f.Watch(ctx, tell)
	}
	if _, err := openJournal(ctx, f.js, f.cfg); err != nil { // services may not create it
		f.cfg.Log.Warn("presence: cannot open the journal", "journal", f.cfg.Journal, "error", err)
	}
	c := newClerk(f)
	writing, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with Attend
		defer close(done)
		c.run(writing)
	}()
	defer func() { cancel(); <-done }()
	return f.watch(ctx, tell,
		func(p Process, heard time.Time) { c.add(p, tombstone(p, heard)) },
		func(p Process) {
			c.add(p, Event{Kind: "returned", Cause: "it announces itself again: it was not dead"})
		})
}

// tombstone describes a process that disappeared. Nothing is known but its last
// announcement.
func tombstone(p Process, heard time.Time) Event {
	e := Event{Kind: "lost", From: string(p.Status.Report.Phase), To: EndLost}
	words := fmt.Sprintf("not heard since %s; it was %s", heard.UTC().Format(time.RFC3339), cmp.Or(e.From, "unreadable"))
	if p.Status.Waiting != "" {
		words += ", and waited for " + p.Status.Waiting
	}
	report := p.Status.Report
	switch limit := p.Memory.Limit; {
	case limit > 0 && float64(p.Memory.Used)*100 >= float64(limit)*90: // a limit may be near the largest number
		e.To = EndOOM
		words += fmt.Sprintf("; its memory was at %d of %d MiB, so the kernel probably killed it", p.Memory.Used>>20, limit>>20)
	case report.Phase == lifecycle.PhaseDraining || report.Phase == lifecycle.PhaseStopping:
		e.To = EndForced
		words += fmt.Sprintf("; it was killed about %v after its stop began, and its budget is %v", heard.Sub(report.Requested).Round(time.Second), report.Budget)
	}
	e.Cause = words
	return e
}

// tracked is a process as a watch knows it.
type tracked struct {
	last  *Process
	heard time.Time // by this process's clock
	dead  bool
}

// tracker decides which processes are alive.
type tracker struct {
	ttl, grace time.Duration
	seen       time.Time // since when the bucket can be seen without a break
	list       map[string]*tracked
}

func newTracker(ttl time.Duration) *tracker {
	return &tracker{ttl: ttl + ttl/6, grace: ttl / 6, seen: time.Now(), list: map[string]*tracked{}}
}

// blind notes that the bucket cannot be seen at this moment.
func (k *tracker) blind() { k.seen = time.Now() }

// announced notes an announcement. It reports whether the process counted as dead.
func (k *tracker) announced(p *Process) (returned bool) {
	old := k.list[p.ID]
	k.list[p.ID] = &tracked{last: p, heard: time.Now()}
	return old != nil && old.dead && old.last.StartedAt.Equal(p.StartedAt)
}

// left forgets a process that said that it ends.
func (k *tracker) left(id string) (known bool) {
	old := k.list[id]
	delete(k.list, id)
	return old != nil && !old.dead
}

// expired returns the processes that have not been heard for too long. It remembers
// those that are dead for an hour, in case they return.
func (k *tracker) expired() (died []*tracked) {
	now := time.Now()
	for id, p := range k.list {
		switch {
		case p.dead && now.Sub(p.heard) > time.Hour:
			delete(k.list, id)
		case !p.dead && now.Sub(p.heard) >= k.ttl && now.Sub(k.seen) >= k.ttl+k.grace:
			died = append(died, p)
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

// watch is Watch. bury gets each process that disappeared, and returned each that was
// reported so and lives.
func (f *Fleet) watch(ctx context.Context, tell func(Change), bury func(Process, time.Time), returned func(Process)) error {
	to := stream.Sink[Process](tell)
	known := newTracker(f.cfg.TTL)
	look := time.NewTicker(f.cfg.TTL / 12)
	defer look.Stop()
	synced, began := false, false
	var watch jetstream.KeyWatcher
	var updates <-chan jetstream.KeyValueEntry
	var kv jetstream.KeyValue
	var born time.Time // when the server made the bucket that is watched
	end := func() {
		if watch != nil {
			_ = watch.Stop()
			watch, updates = nil, nil
		}
	}
	defer end()
	var again time.Time
	for {
		if watch == nil && time.Now().After(again) {
			var err error
			if kv, err = bucket(ctx, f.js, f.cfg); err == nil {
				born, err = madeAt(ctx, kv)
			}
			if err == nil {
				watch, err = kv.WatchAll(ctx)
			}
			switch {
			case err == nil:
				updates, began = watch.Updates(), true
				known.blind()
			case !began:
				return fmt.Errorf("presence: watch: %w", err)
			}
			again = time.Now().Add(retry)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
			if watch == nil || !f.js.Conn().IsConnected() {
				known.blind()
				continue
			}
			died := known.expired()
			if len(died) == 0 {
				continue
			}
			// A watch of a bucket that the server has lost reports nothing.
			if now, err := madeAt(ctx, kv); err != nil || !now.Equal(born) {
				end()
				known.blind()
				continue
			}
			for _, p := range died {
				p.dead = true
				bury(*p.last, p.heard)
				to.Delete(p.last.ID)
			}
		case e, ok := <-updates:
			switch {
			case !ok: // the server has lost the bucket
				end()
			case e == nil:
				if !synced {
					synced = true
					to.Sync()
				}
			case e.Operation() != jetstream.KeyValuePut:
				if f.removed(e) && known.left(e.Key()) {
					to.Delete(e.Key())
				}
			default:
				p, alive := f.read(e)
				if alive && known.announced(p) {
					returned(*p)
				}
				to.Put(p.ID, *p)
			}
		}
	}
}

// describeEnd returns the event of an end that the process announces itself.
func describeEnd(r lifecycle.Report) (class, cause string) {
	class = EndClean
	worst := func(c string) {
		order := EndClean + " " + EndFailed + " " + EndCut + " " + EndHung
		if strings.Index(order, c) > strings.Index(order, class) {
			class = c
		}
	}
	parts := []string{cmp.Or(r.Reason, "it finished")}
	for _, list := range []struct {
		kind     string
		outcomes []lifecycle.Outcome
	}{{"unit", r.Units}, {"drainer", r.Drainers}, {"hook", r.Hooks}} {
		for _, o := range list.outcomes {
			switch o.Result {
			case lifecycle.ResultAbandoned:
				worst(EndHung)
			case lifecycle.ResultFailed, lifecycle.ResultPanicked:
				worst(EndFailed)
			case lifecycle.ResultSkipped:
				if list.kind != "hook" {
					continue
				}
				worst(EndCut)
			default:
				continue
			}
			parts = append(parts, list.kind+" "+o.String())
		}
	}
	if r.CutRequests > 0 {
		worst(EndCut)
		parts = append(parts, fmt.Sprintf("%d requests were cut", r.CutRequests))
	}
	if len(r.Left) > 0 {
		worst(EndHung)
		parts = append(parts, "abandoned: "+strings.Join(r.Left, ", "))
	}
	return class, strings.Join(parts, "; ")
}
