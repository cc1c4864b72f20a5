package presence

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/internal/eventlog"
)

// clerk writes into the journal what happened to processes that cannot write it
// themselves. Adding an event never waits: when a host with many processes dies, the watch
// goes on.
type clerk struct {
	f    *Fleet
	wake chan struct{} // of size 1

	mu      sync.Mutex // guards the fields below
	waiting []entry
	dropped int

	journal *eventlog.Log // used by run only
}

// entry is an event of a process.
type entry struct {
	p     Process
	e     Event
	since time.Time
}

// maxEntries is how many events may wait.
const maxEntries = 20_000

func newClerk(f *Fleet) *clerk { return &clerk{f: f, wake: make(chan struct{}, 1)} }

func (c *clerk) add(p Process, e Event) {
	e.Service, e.Process, e.Version, e.Host = p.Service, p.ID, p.Version, p.Host
	c.mu.Lock()
	if len(c.waiting) < maxEntries {
		c.waiting = append(c.waiting, entry{p, e, time.Now()})
	} else {
		c.dropped++
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// run writes until ctx ends. What cannot be stored waits.
func (c *clerk) run(ctx context.Context) {
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		}
		c.mu.Lock()
		list := c.waiting
		c.waiting = nil
		c.mu.Unlock()
		var err error
		for len(list) > 0 && err == nil {
			if err = c.write(ctx, list[0]); err == nil {
				list = list[1:]
			}
		}
		c.mu.Lock()
		c.waiting = append(list, c.waiting...)
		dropped := c.dropped
		c.dropped = 0
		c.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing, dropped > 0:
			c.f.cfg.Log.Warn("presence: what happened to processes that disappeared cannot be stored in the journal; it waits", "journal", c.f.cfg.Journal, "waiting", len(list), "dropped", dropped, "error", err)
		case err == nil && failing:
			c.f.cfg.Log.Info("presence: events are stored in the journal again", "journal", c.f.cfg.Journal)
		}
		if failing = err != nil; !failing {
			continue
		}
		pause := time.NewTimer(retry)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// write stores one event under an id that the journal takes only once.
func (c *clerk) write(ctx context.Context, x entry) (err error) {
	if x.e.Kind == "lost" {
		x.e = c.f.ended(ctx, x.p, x.e)
	}
	ctx, cancel := context.WithTimeout(ctx, retry)
	defer cancel()
	if c.journal == nil {
		if c.journal, err = openJournal(ctx, c.f.js, c.f.cfg); err != nil {
			c.journal = nil
			return err
		}
	}
	x.e.Waited += time.Since(x.since)
	data, err := x.e.encode()
	if err != nil {
		return err
	}
	err = c.journal.Append(ctx, eventSubject(c.f.cfg, x.e), fmt.Sprintf("%s.%s.%d", x.e.Kind, x.p.ID, x.p.StartedAt.UnixNano()), data)
	switch {
	case natserr.TooLarge(err): // for a stream that was made with other limits: those behind it must not wait
		c.f.cfg.Log.Warn("presence: the journal does not take an event of a process that disappeared", "journal", c.f.cfg.Journal, "process", x.p.ID, "error", err)
		return nil
	case err != nil:
		c.journal = nil // a server that restarts may have lost it
	}
	return err
}
