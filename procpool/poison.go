package procpool

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"time"
)

// Poison bounds what queries can do that kill the workers they are given to.
//
// A query that a worker had when it ended by itself runs again, alone, when it may run
// again: it is idempotent, it has streamed nothing, and it does not need the session of
// a [Key] that ended with the worker. Queries run alone in one extra worker beyond
// MaxWorkers, one after the other; it lives while there are any.
//
// A death counts against a query only when the worker had no other. Then the next
// queries of its fingerprint run alone too, until one is answered. A query that kills the
// extra worker is poison: it ends with a [*PoisonError], and the pool rejects its
// fingerprint for a while. A query that may not run again ends with its [*CrashError].
// When it was not the only one in the worker, nothing counts against it; the next query of
// its caller, or of its fingerprint when it has no caller, runs alone.
//
// A death that the pool caused is not the query's: an eviction, a worker that did
// not confirm a cancel, a stop.
type Poison struct {
	// Remember bounds the fingerprints and the callers that the pool remembers. It
	// forgets the oldest to make room. Defaults to 1000.
	Remember int `koanf:"remember"`
	// For is how long the pool remembers a fingerprint. Defaults to 10 minutes.
	For time.Duration `koanf:"for"`
	// Deaths is how many workers the queries of one [Caller] may kill within
	// Window. While that many count, the pool rejects the caller's queries with
	// [ErrDeaths]. Defaults to 5; Off sets no limit. The caller of a query with a [Key]
	// and without a Caller is its key; other queries without a caller have no limit.
	Deaths int `koanf:"deaths"`
	// Window is how long a death counts against a caller. Defaults to 1 minute.
	Window time.Duration `koanf:"window"`
}

func (c Poison) withDefaults() Poison {
	or(&c.Remember, 1000)
	or(&c.For, 10*time.Minute)
	or(&c.Deaths, 5)
	or(&c.Window, time.Minute)
	return c
}

func (c Poison) validate() error {
	var errs []error
	if c.Remember < 1 {
		errs = append(errs, fmt.Errorf("Poison.Remember is %d, want 1 or more", c.Remember))
	}
	if c.For < 0 {
		errs = append(errs, fmt.Errorf("Poison.For is %v, want more than 0", c.For))
	}
	if c.Deaths < Off {
		errs = append(errs, fmt.Errorf("Poison.Deaths is %d, want 1 or more, or Off", c.Deaths))
	}
	if c.Window < 0 {
		errs = append(errs, fmt.Errorf("Poison.Window is %v, want more than 0", c.Window))
	}
	return errors.Join(errs...)
}

// Poisoned is a fingerprint that a pool remembers because workers died of its queries.
type Poisoned struct {
	Fingerprint string    `json:"fingerprint"`
	Caller      string    `json:"caller,omitempty"` // of the last query
	Deaths      int       `json:"deaths"`           // of workers that had no other query
	Refused     bool      `json:"refused"`          // false while queries run alone
	Last        string    `json:"last"`             // the error of the last death
	Until       time.Time `json:"until"`            // then the pool forgets it
}

// memory is what a pool remembers of deaths. The pool's lock guards it.
type memory struct {
	cfg       Poison
	prints    map[string]*Poisoned
	deaths    map[string][]time.Time // the deaths that count, by owner, oldest first
	nextAlone map[string]time.Time   // owners and fingerprints whose next query runs alone, with the time of the death
}

func newMemory(cfg Poison) *memory {
	return &memory{
		cfg:       cfg,
		prints:    make(map[string]*Poisoned),
		deaths:    make(map[string][]time.Time),
		nextAlone: make(map[string]time.Time),
	}
}

// about returns what is known of a fingerprint, nil for nothing.
func (m *memory) about(print string, now time.Time) *Poisoned {
	if known := m.prints[print]; known != nil && now.Before(known.Until) {
		return known
	}
	delete(m.prints, print)
	return nil
}

// recordDeath records a death of a worker that had one query. refuse says that it was an
// extra worker.
func (m *memory) recordDeath(print, caller string, refuse bool, why error, now time.Time) *Poisoned {
	known := m.about(print, now)
	if known == nil {
		forgetOne(m.prints, m.cfg.Remember, func(a, b *Poisoned) bool { // one that is not refused when there is one
			return a.Refused != b.Refused && b.Refused || a.Refused == b.Refused && a.Until.Before(b.Until)
		})
		known = &Poisoned{Fingerprint: print}
		m.prints[print] = known
	}
	known.Caller, known.Last = caller, why.Error()
	known.Deaths++
	known.Refused = known.Refused || refuse
	known.Until = now.Add(m.cfg.For)
	return known
}

// forgetOne makes room for one more when m has as many as it may have.
func forgetOne[V any](m map[string]V, most int, first func(a, b V) bool) {
	if len(m) < most {
		return
	}
	oldest := ""
	for name := range m {
		if oldest == "" || first(m[name], m[oldest]) {
			oldest = name
		}
	}
	delete(m, oldest)
}

// countDeath counts a death against an owner.
func (m *memory) countDeath(owner string, now time.Time) {
	if owner == "" || m.cfg.Deaths == Off {
		return
	}
	if m.recentDeaths(owner, now) == nil {
		forgetOne(m.deaths, m.cfg.Remember, func(a, b []time.Time) bool { return a[len(a)-1].Before(b[len(b)-1]) })
	}
	m.deaths[owner] = append(m.deaths[owner], now)
}

// takeBackDeaths takes back the last n deaths, of a query that was cleared.
func (m *memory) takeBackDeaths(owner string, n int, now time.Time) {
	all := m.recentDeaths(owner, now)
	if m.deaths[owner] = all[:max(len(all)-n, 0)]; len(all) <= n {
		delete(m.deaths, owner)
	}
}

// recentDeaths returns the deaths that count against an owner.
func (m *memory) recentDeaths(owner string, now time.Time) []time.Time {
	all := m.deaths[owner]
	for len(all) > 0 && now.Sub(all[0]) >= m.cfg.Window {
		all = all[1:]
	}
	if len(all) == 0 {
		delete(m.deaths, owner)
		return nil
	}
	m.deaths[owner] = all
	return all
}

// waitAfterDeaths returns how long an owner has to wait, 0 when it need not.
func (m *memory) waitAfterDeaths(owner string, now time.Time) time.Duration {
	all := m.recentDeaths(owner, now)
	if len(all) == 0 || len(all) < m.cfg.Deaths {
		return 0
	}
	return all[len(all)-m.cfg.Deaths].Add(m.cfg.Window).Sub(now)
}

// runNextAlone makes the next query of an owner, or of a fingerprint, run alone. Without it a
// query that may not run again, and that shares its worker, would never run alone: a caller that
// sends a different one each time could kill workers for ever, and no death would count.
func (m *memory) runNextAlone(name string, now time.Time) {
	forgetOne(m.nextAlone, m.cfg.Remember, time.Time.Before)
	m.nextAlone[name] = now
}

// sweep forgets what is over.
func (m *memory) sweep(now time.Time) {
	for print := range m.prints {
		m.about(print, now)
	}
	for owner := range m.deaths {
		m.recentDeaths(owner, now)
	}
	for name, since := range m.nextAlone {
		if now.Sub(since) >= m.cfg.For {
			delete(m.nextAlone, name)
		}
	}
}

// list returns the fingerprints: refused ones first, and within that the newest first.
func (m *memory) list(now time.Time) []Poisoned {
	var out []Poisoned
	for print := range m.prints {
		if known := m.about(print, now); known != nil {
			out = append(out, *known)
		}
	}
	place := map[bool]int{true: 0, false: 1}
	slices.SortFunc(out, func(a, b Poisoned) int {
		return cmp.Or(place[a.Refused]-place[b.Refused], b.Until.Compare(a.Until), cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	return out
}

// fingerprint is a hash of all that a worker sees of a query whose caller has not set one. Its
// seed is the pool's, so a caller cannot choose queries that have the same.
func (q *Query) fingerprint() string {
	var h maphash.Hash
	h.SetSeed(q.pool.seed)
	h.Write(q.payload)
	if len(q.data) > 0 || len(q.about.Metadata) > 0 || q.keyed {
		about, _ := json.Marshal([]any{len(q.data), q.about.Metadata, q.keyed, q.key}) // texts can be marshalled
		// JSON has no zero byte, so a payload alone never equals a payload with what follows.
		h.WriteByte(0)
		h.Write(about)
		h.Write(q.data)
	}
	return strconv.FormatUint(h.Sum64(), 16)
}
