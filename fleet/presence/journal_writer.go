package presence

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/internal/eventlog"
	"github.com/pleme-io/lifecycle-go/fsm"
)

// journalWriter writes events to the journal: the events of its own process, or, in an
// operators' server, events of processes that can no longer write. Adding an event
// never waits. When there are too many it drops the new ones, except "exit" and "joined", and
// counts them.
type journalWriter struct {
	cfg    Config
	js     jetstream.JetStream
	most   int           // events that may wait
	limit  *rate.Limiter // of the events that are added; nil for none
	writer string        // begins the ids of the records
	wake   fsm.Wake      // makes run flush once more

	mu      sync.Mutex // guards the fields below
	waiting []pendingEvent
	added   int
	dropped int64
}

// pendingEvent is an event that the journal does not have yet. The journal takes an id only
// once: a write whose answer is lost is tried again.
type pendingEvent struct {
	event    Event
	since    time.Time
	id       string
	complete func(context.Context, Event) Event // called once before the event is stored; nil for none
}

// maxAsked is how many events are completed at once: the platform may answer slowly.
const maxAsked = 16

// newJournalWriter returns a journalWriter; run stores the events. It returns nil, which
// takes events and stores none, when the fleet keeps no journal.
func newJournalWriter(js jetstream.JetStream, cfg Config, most int, limit *rate.Limiter) *journalWriter {
	if cfg.Journal == JournalOff {
		return nil
	}
	return &journalWriter{cfg: cfg, js: js, most: most, limit: limit, writer: rand.Text(), wake: fsm.NewWake()}
}

func (w *journalWriter) add(e Event) { w.addCompleted(e, nil) }

func (w *journalWriter) addCompleted(e Event, complete func(context.Context, Event) Event) {
	if w == nil {
		return
	}
	now := time.Now()
	vital := e.Kind == "exit" || e.Kind == "joined"
	w.mu.Lock()
	w.added++
	if full := len(w.waiting) >= w.most || w.limit != nil && !w.limit.AllowN(now, 1); full && !vital {
		w.dropped++
	} else {
		w.waiting = append(w.waiting, pendingEvent{e, now, cmp.Or(e.once, fmt.Sprint(w.writer, ".", w.added)), complete})
	}
	w.mu.Unlock()
	w.wake.Notify()
}

// flush stores the events that wait, in order, and then an event like the given one for
// those that were dropped. After an error the rest waits.
func (w *journalWriter) flush(ctx context.Context, like Event) error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	list, dropped := w.waiting, w.dropped
	w.waiting, w.dropped = nil, 0
	w.mu.Unlock()
	list, refused, err := w.store(ctx, list)
	if dropped += refused; err == nil && dropped > 0 {
		w.cfg.Logger.Warn("presence: events are missing in the journal", "journal", w.cfg.Journal, "dropped", dropped)
		if like.Process != "" {
			like.Kind, like.Count, like.Cause = "dropped", dropped, "more events than the journal takes from one process"
			list, _, err = w.store(ctx, []pendingEvent{{event: like, since: time.Now(), id: rand.Text()}})
		}
		dropped = 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting, w.dropped = slices.Concat(list, w.waiting), w.dropped+dropped
	return err
}

// store stores events. It returns the events that wait after an error, and how many the stream
// refuses for ever: the ones behind those must not wait. It looks for the end of a process after the
// platform has answered, which may take long.
func (w *journalWriter) store(ctx context.Context, list []pendingEvent) (rest []pendingEvent, refused int64, err error) {
	if len(list) == 0 {
		return nil, 0, nil
	}
	journal, err := openJournal(ctx, w.js, w.cfg)
	if err != nil {
		return list, 0, err
	}
	var asked errgroup.Group
	asked.SetLimit(maxAsked)
	for i := range list {
		if x := &list[i]; x.complete != nil {
			asked.Go(func() error { x.event, x.complete = x.complete(ctx, x.event), nil; return nil })
		}
	}
	_ = asked.Wait() // no function returns an error
	ends, err := w.ends(ctx, journal, list)
	if err != nil { // the events are stored nevertheless
		w.cfg.Logger.Warn("presence: a process that is noted as lost may have noted its end",
			"journal", w.cfg.Journal, "error", err)
	}
	list = slices.DeleteFunc(list, func(x pendingEvent) bool {
		return x.event.Kind == "lost" && ends[lifeOf(x.event)].After(x.event.seen)
	})
	for i, x := range list {
		x.event.Waited += time.Since(x.since)
		switch err := journal.Append(ctx, eventSubject(w.cfg, x.event), x.id, x.event.encode()); {
		case natserr.TooLarge(err): // for a stream that was made with other limits
			refused++
		case err != nil:
			return list[i:], refused, err
		}
	}
	return nil, refused, nil
}

// life names a life of a process.
type life struct{ process, began string }

// lifeOf returns the life that an event "exit" or "lost" ends.
func lifeOf(e Event) life { return life{e.Process, e.Life.UTC().Format(time.RFC3339Nano)} }

// ends returns when lives have ended, by the journal: all that have since the last announcement of
// one in the list that was lost. A reader that was cut off does not see that the process has removed
// its entry, or that another reader has noted it as lost.
func (w *journalWriter) ends(
	ctx context.Context, journal *eventlog.Log, list []pendingEvent,
) (map[life]time.Time, error) {
	var seen []time.Time
	for _, x := range list {
		if x.event.Kind == "lost" {
			seen = append(seen, x.event.seen)
		}
	}
	if len(seen) == 0 {
		return nil, nil
	}
	ends := make(map[life]time.Time)
	q := EventQuery{Kinds: []string{"exit", "lost"}, Since: slices.MinFunc(seen, time.Time.Compare), Limit: 1000}
	for {
		page, next, err := eventsOf(ctx, journal, w.cfg, q)
		for _, e := range page {
			if e.At.After(ends[lifeOf(e)]) {
				ends[lifeOf(e)] = e.At
			}
		}
		if next == 0 || err != nil {
			return ends, err
		}
		q.Before = next
	}
}

// run stores events until ctx ends. While the journal cannot be reached they wait.
func (w *journalWriter) run(ctx context.Context, like Event) {
	if w == nil {
		return
	}
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		err := w.flush(ctx, like)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failed:
			w.cfg.Logger.Warn("presence: events cannot be stored in the journal; they wait", "journal", w.cfg.Journal, "error", err)
		case err == nil && failed:
			w.cfg.Logger.Info("presence: events are stored in the journal again", "journal", w.cfg.Journal)
		}
		failed = err != nil
		wait := pace
		if failed {
			wait = retry
			w.wake.Notify()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}
