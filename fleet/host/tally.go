package host

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync/atomic"
)

// tally names a worker's version.
type tally struct {
	id         string
	generation int
}

// Counts are the outcomes of the messages of one version of a worker, on this host
// since it started. Failed counts attempts. LoadsFailed counts failed loads of the
// code. Discarded counts outputs without a topic of a worker without an output topic.
// Evicted counts dead letters that were removed because there were too many.
type Counts struct {
	Succeeded, Failed, DeadLetters, LoadsFailed, Discarded, Evicted atomic.Uint64

	recent atomic.Pointer[recent] // nil until it has handled a message
}

func (h *Host) counts(r *Record) *Counts {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := tally{r.ID, r.Generation}
	if h.tallies[key] == nil {
		h.tallies[key] = new(Counts)
	}
	return h.tallies[key]
}

// Tally is a row of [Host.Tallies].
type Tally struct {
	Worker                                                          string
	Generation                                                      int
	Succeeded, Failed, DeadLetters, LoadsFailed, Discarded, Evicted uint64
}

// Tallies returns the counts of every version that ran on this host, sorted.
func (h *Host) Tallies() []Tally {
	h.mu.Lock()
	defer h.mu.Unlock()
	rows := make([]Tally, 0, len(h.tallies))
	for key, c := range h.tallies {
		rows = append(rows, Tally{key.id, key.generation, c.Succeeded.Load(), c.Failed.Load(), c.DeadLetters.Load(), c.LoadsFailed.Load(), c.Discarded.Load(), c.Evicted.Load()})
	}
	slices.SortFunc(rows, func(a, b Tally) int {
		return cmp.Or(strings.Compare(a.Worker, b.Worker), cmp.Compare(a.Generation, b.Generation))
	})
	return rows
}

// letterStored bounds the letters of a worker now and then. It is called after each
// letter that this host has stored.
func (h *Host) letterStored(ctx context.Context, worker string) {
	h.mu.Lock()
	n := h.lettered[worker]
	h.lettered[worker] = n + 1
	rec := h.known[worker]
	h.mu.Unlock()
	if n%max(1, min(64, h.cfg.MaxDeadLetters/10)) != 0 {
		return
	}
	evicted, err := h.letters.bound(ctx, worker, h.cfg.MaxDeadLetters)
	switch {
	case err != nil:
		h.log.Warn("hosted worker", "worker", worker, "err", err)
	case evicted > 0:
		h.log.Warn("hosted worker: it has too many dead letters; the oldest are removed", "worker", worker, "removed", evicted, "kept", h.cfg.MaxDeadLetters)
		if rec != nil {
			h.counts(rec).Evicted.Add(uint64(evicted))
		}
	}
}
