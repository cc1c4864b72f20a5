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
type Counts struct {
	Succeeded, Failed, DeadLetters, LoadsFailed, Discarded atomic.Uint64
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
	Worker                                                 string
	Generation                                             int
	Succeeded, Failed, DeadLetters, LoadsFailed, Discarded uint64
}

// Tallies returns the counts of every version that ran on this host, sorted.
func (h *Host) Tallies() []Tally {
	h.mu.Lock()
	defer h.mu.Unlock()
	rows := make([]Tally, 0, len(h.tallies))
	for key, c := range h.tallies {
		rows = append(rows, Tally{key.id, key.generation, c.Succeeded.Load(), c.Failed.Load(), c.DeadLetters.Load(), c.LoadsFailed.Load(), c.Discarded.Load()})
	}
	slices.SortFunc(rows, func(a, b Tally) int {
		return cmp.Or(strings.Compare(a.Worker, b.Worker), cmp.Compare(a.Generation, b.Generation))
	})
	return rows
}
