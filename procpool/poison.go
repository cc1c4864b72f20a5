package procpool

import (
	"encoding/json"
	"hash/maphash"
	"maps"
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

// Poisoned is a fingerprint that a pool remembers because workers died of its queries.
type Poisoned struct {
	Fingerprint string    `json:"fingerprint"`
	Caller      string    `json:"caller,omitempty"` // of the last query
	Deaths      int       `json:"deaths"`           // of workers that had no other query
	Refused     bool      `json:"refused"`          // false while queries run alone
	Last        string    `json:"last"`             // the error of the last death
	Until       time.Time `json:"until"`            // then the pool forgets it
}

// knownLocked returns what the pool remembers of a fingerprint, nil for nothing.
func (p *Pool) knownLocked(print string, now time.Time) *Poisoned {
	if known := p.poisoned[print]; known != nil && now.Before(known.Until) {
		return known
	}
	return nil
}

// recordDeathLocked records a death of a worker that had one query. refuse says that it was an
// extra worker.
func (p *Pool) recordDeathLocked(q *Query, refuse bool, why error, now time.Time) *Poisoned {
	known := p.knownLocked(q.print, now)
	if known == nil {
		known = &Poisoned{Fingerprint: q.print}
		p.poisoned[q.print] = known
	}
	known.Caller, known.Last = q.caller, why.Error()
	known.Deaths++
	known.Refused = known.Refused || refuse
	known.Until = now.Add(p.cfg.Poison.For)
	return known
}

// owner is the caller that the query's deaths count against, or else its session.
func (q *Query) owner() string {
	if q.caller == "" && q.keyed {
		return q.key
	}
	return q.caller
}

// deathsLocked returns the deaths that count against an owner, oldest first.
func (p *Pool) deathsLocked(owner string, now time.Time) []time.Time {
	all := p.blamed[owner]
	isOver := func(at time.Time) bool { return now.Sub(at) >= p.cfg.Poison.Window }
	for len(all) > 0 && isOver(all[0]) {
		all = all[1:]
	}
	return all
}

// waitAfterDeathsLocked returns how long an owner has to wait, 0 when it need not.
func (p *Pool) waitAfterDeathsLocked(owner string, now time.Time) time.Duration {
	all, most := p.deathsLocked(owner, now), p.cfg.Poison.Deaths
	if most == Off || len(all) < most {
		return 0
	}
	return all[len(all)-most].Add(p.cfg.Poison.Window).Sub(now)
}

// forgetLocked forgets the deaths that are over.
func (p *Pool) forgetLocked(now time.Time) {
	maps.DeleteFunc(p.poisoned, func(_ string, known *Poisoned) bool { return !now.Before(known.Until) })
	maps.DeleteFunc(p.blamed, func(owner string, _ []time.Time) bool { return len(p.deathsLocked(owner, now)) == 0 })
	maps.DeleteFunc(p.nextAlone, func(_ string, since time.Time) bool { return now.Sub(since) >= p.cfg.Poison.For })
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
