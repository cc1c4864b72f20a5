package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Activity is what a worker did in the last minutes on the host that runs it.
type Activity struct {
	Host              string        `json:"host"`
	Window            time.Duration `json:"window"` // how long the counts below go back; at most 5 min
	Succeeded, Failed uint64        // handled messages, and attempts that failed
	// Half of the handlers' runs took less than P50 and 95 of 100 less than P95, within a
	// fifth. Longest is the longest run. They are 0 when there was none.
	P50, P95, Longest time.Duration
	Versions          []Tally // of this worker since the host has run it, the newest version last
}

// Bounds of what is kept for each version that has handled a message.
const (
	slice    = 30 * time.Second
	slices5m = 10            // together 5 min
	finest   = 1 << 16       // nanoseconds: the first bucket
	perTwice = 4             // buckets from one time to twice that time
	buckets  = 22 * perTwice // the last one has all from 3 min on
)

// recent counts the runs of a version's handler in the last minutes. A version that has
// handled nothing has none.
type recent struct {
	mu    sync.Mutex // guards everything below
	began time.Time
	part  [slices5m]part
}

// part is what happened in one slice of time.
type part struct {
	number            int64 // of the slice, since 1970
	succeeded, failed uint32
	took              [buckets]uint32
	longest           time.Duration
}

// ran notes one run of the handler.
func (c *Counts) ran(now time.Time, took time.Duration, failed bool) {
	r := c.recent.Load()
	if r == nil {
		c.recent.CompareAndSwap(nil, &recent{began: now.Add(-took)})
		r = c.recent.Load()
	}
	number := now.UnixNano() / int64(slice)
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &r.part[number%slices5m]
	if p.number != number {
		*p = part{number: number}
	}
	if failed {
		p.failed++
	} else {
		p.succeeded++
	}
	p.took[bucketOf(took)]++
	p.longest = max(p.longest, took)
}

// bucketOf returns the bucket of a time: the first one whose end is not below it.
func bucketOf(took time.Duration) int {
	if took <= finest {
		return 0
	}
	return min(buckets-1, int(math.Ceil(perTwice*math.Log2(float64(took)/finest))))
}

func endOf(bucket int) time.Duration {
	return time.Duration(finest * math.Exp2(float64(bucket)/perTwice))
}

// add adds what happened in the last minutes to a, and its times to took.
func (r *recent) add(now time.Time, a *Activity, took *[buckets]uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest := now.UnixNano()/int64(slice) - slices5m + 1
	a.Window = max(a.Window, min(now.Sub(r.began), now.Sub(time.Unix(0, oldest*int64(slice)))))
	for i := range r.part {
		p := &r.part[i]
		if p.number < oldest {
			continue
		}
		a.Succeeded += uint64(p.succeeded)
		a.Failed += uint64(p.failed)
		a.Longest = max(a.Longest, p.longest)
		for b, n := range p.took {
			took[b] += uint64(n)
		}
	}
}

// local returns the activity of a worker that this host runs.
func (h *Host) local(id string, now time.Time) (*Activity, bool) {
	if !slices.Contains(h.Local(), id) {
		return nil, false
	}
	a := &Activity{Host: h.cfg.HostID}
	var took [buckets]uint64
	h.mu.Lock()
	for _, c := range h.tallies[id] {
		if r := c.recent.Load(); r != nil {
			r.add(now, a, &took)
		}
	}
	a.Versions = h.talliesLocked(id)
	h.mu.Unlock()
	a.P50, a.P95 = quantile(&took, 0.5, a.Longest), quantile(&took, 0.95, a.Longest)
	return a, true
}

// quantile returns the end of the bucket that has the run at this share, and never more
// than the longest run.
func quantile(took *[buckets]uint64, share float64, longest time.Duration) time.Duration {
	all := uint64(0)
	for _, n := range took {
		all += n
	}
	if all == 0 {
		return 0
	}
	rank, seen := uint64(math.Ceil(share*float64(all))), uint64(0)
	for b, n := range took {
		if seen += n; seen >= rank {
			return min(endOf(b), longest)
		}
	}
	return longest
}

// askSubject is where hosts answer questions about the workers that they run.
func (h *Host) askSubject() string { return h.subject("ask") + "activity" }

// answerQuestions answers questions about the workers that this host runs, until the
// subscription ends. A host says nothing about workers that other hosts run.
func (h *Host) answerQuestions() (*nats.Subscription, error) {
	return h.nc.Subscribe(h.askSubject(), func(m *nats.Msg) {
		if m.Reply == "" {
			return
		}
		a, here := h.local(string(m.Data), time.Now())
		if !here {
			return
		}
		if text, err := json.Marshal(a); err == nil {
			_ = m.Respond(text) // the caller waits no longer than askWithin
		}
	})
}

// askWithin is how long Activity waits for an answer. The hosts answer at once.
const askWithin = time.Second

// Activity asks the host that runs a worker what it did in the last minutes. It returns
// nil when no host answers within a second: the worker does not run, or the host is away.
func (h *Host) Activity(ctx context.Context, id string) (*Activity, error) {
	if _, err := h.Get(ctx, id); err != nil {
		return nil, fmt.Errorf("activity: %w", err)
	}
	asking, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	m, err := h.nc.RequestWithContext(asking, h.askSubject(), []byte(id))
	switch {
	case errors.Is(err, nats.ErrNoResponders), err != nil && asking.Err() != nil && ctx.Err() == nil:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("worker %s: activity: %w", id, err)
	}
	a := new(Activity)
	if err := json.Unmarshal(m.Data, a); err != nil {
		return nil, fmt.Errorf("worker %s: activity: %w", id, err)
	}
	return a, nil
}
