package host

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
)

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
	return h.countsLocked(r.codeVersion())
}

func (h *Host) countsLocked(of codeVersion) *Counts {
	versions := h.tallies[of.worker.id]
	if versions == nil {
		versions = make(map[codeVersion]*Counts)
		h.tallies[of.worker.id] = versions
	}
	if versions[of] == nil {
		versions[of] = new(Counts)
	}
	return versions[of]
}

// countLetter counts the dead letter of a message that a version gave up, on this host or on another one.
func (h *Host) countLetter(of codeVersion) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if rec := h.known[of.worker.id]; rec != nil && rec.workerUID() == of.worker { // or it was deleted meanwhile
		h.countsLocked(of).DeadLetters.Add(1)
	}
}

// keepCountsLocked forgets the counts under an id except those of the versions in the history of r, the
// worker that has the id now. nil is for none.
func (h *Host) keepCountsLocked(id string, r *Record) {
	maps.DeleteFunc(h.tallies[id], func(v codeVersion, _ *Counts) bool {
		return r == nil || v.worker != r.workerUID() || len(r.History) > 0 && v.generation < r.History[0].Generation
	})
	if len(h.tallies[id]) == 0 {
		delete(h.tallies, id)
	}
}

// Tally is a row of [Host.Tallies].
type Tally struct {
	Worker                                                          string
	Generation                                                      int
	Succeeded, Failed, DeadLetters, LoadsFailed, Discarded, Evicted uint64
}

// Tallies returns the counts of every version that ran on this host and that its worker can go back to,
// sorted.
func (h *Host) Tallies() []Tally {
	h.mu.Lock()
	defer h.mu.Unlock()
	var rows []Tally
	for _, id := range slices.Sorted(maps.Keys(h.tallies)) {
		rows = append(rows, h.talliesLocked(id)...)
	}
	return rows
}

func (h *Host) talliesLocked(id string) (rows []Tally) {
	for key, c := range h.tallies[id] {
		rows = append(rows, Tally{
			Worker:      id,
			Generation:  key.generation,
			Succeeded:   c.Succeeded.Load(),
			Failed:      c.Failed.Load(),
			DeadLetters: c.DeadLetters.Load(),
			LoadsFailed: c.LoadsFailed.Load(),
			Discarded:   c.Discarded.Load(),
			Evicted:     c.Evicted.Load(),
		})
	}
	slices.SortFunc(rows, func(a, b Tally) int { return cmp.Compare(a.Generation, b.Generation) })
	return rows
}
