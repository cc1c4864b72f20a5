package host

import (
	"cmp"
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
		rows = append(rows, Tally{
			Worker:      key.id,
			Generation:  key.generation,
			Succeeded:   c.Succeeded.Load(),
			Failed:      c.Failed.Load(),
			DeadLetters: c.DeadLetters.Load(),
			LoadsFailed: c.LoadsFailed.Load(),
			Discarded:   c.Discarded.Load(),
			Evicted:     c.Evicted.Load(),
		})
	}
	slices.SortFunc(rows, func(a, b Tally) int {
		return cmp.Or(strings.Compare(a.Worker, b.Worker), cmp.Compare(a.Generation, b.Generation))
	})
	return rows
}
