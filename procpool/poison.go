package procpool

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Poison bounds what queries can do that kill the workers they are given to.
//
// A worker that ends by itself while it has a query may have died of the query. The
// pool gives an idempotent query that has streamed nothing to an extra worker, which
// it starts beyond MaxWorkers for this query alone, one such worker at a time. A
// query that is answered there is cleared. A query that kills this worker too is
// poison: it ends with a [*PoisonError], and the pool rejects all queries of its
// fingerprint for a while. A query that may run only once ends with its
// [*CrashError]; the next one of its fingerprint goes to an extra worker.
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
	// Window. While a caller has spent them, the pool rejects its queries with
	// [ErrDeaths]. A death that was cleared does not count. Defaults to 5; Off
	// sets no limit. Queries without a caller have no limit.
	Deaths int `koanf:"deaths"`
	// Window is the time after which a caller has all its Deaths again; they come
	// back one by one. Defaults to 1 minute.
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
	Deaths      int       `json:"deaths"`           // of workers
	Refused     bool      `json:"refused"`          // false while one death may have another cause: queries run alone
	Last        string    `json:"last"`             // the error of the last death
	Until       time.Time `json:"until"`            // then the pool forgets it
}

// memory is what a pool remembers of deaths. The pool's lock guards it.
type memory struct {
	cfg     Poison
	prints  map[string]*Poisoned
	callers map[string]*budget
}

// budget is what a caller has left: a bucket that refills. It may be below zero,
// because several queries of a caller may run when the first kills its worker.
type budget struct {
	left float64
	at   time.Time // when left was right
}

func newMemory(cfg Poison) *memory {
	return &memory{cfg: cfg, prints: make(map[string]*Poisoned), callers: make(map[string]*budget)}
}

// about returns what is known of a fingerprint, nil for nothing.
func (m *memory) about(print string, now time.Time) *Poisoned {
	known := m.prints[print]
	if known != nil && !now.Before(known.Until) {
		delete(m.prints, print)
		return nil
	}
	return known
}

// died records a death. alone says that an extra worker has died, which had this query
// only: that proves that the query kills.
func (m *memory) died(print, caller string, alone bool, why error, now time.Time) *Poisoned {
	known := m.about(print, now)
	if known == nil {
		if len(m.prints) >= m.cfg.Remember {
			m.forgetOne()
		}
		known = &Poisoned{Fingerprint: print}
		m.prints[print] = known
	}
	known.Caller, known.Last = caller, why.Error()
	known.Deaths++
	known.Refused = known.Refused || alone
	known.Until = now.Add(m.cfg.For)
	return known
}

// forgetOne forgets the oldest fingerprint: one that is not refused when there is one.
func (m *memory) forgetOne() {
	var oldest *Poisoned
	for _, p := range m.prints {
		if oldest == nil || !p.Refused && oldest.Refused || p.Refused == oldest.Refused && p.Until.Before(oldest.Until) {
			oldest = p
		}
	}
	delete(m.prints, oldest.Fingerprint)
}

// clear forgets a fingerprint unless it is refused.
func (m *memory) clear(print string) {
	if known := m.prints[print]; known != nil && !known.Refused {
		delete(m.prints, print)
	}
}

// charge takes deaths from a caller's budget, and gives them back when n is negative.
func (m *memory) charge(caller string, n float64, now time.Time) {
	if caller == "" || m.cfg.Deaths == Off || n == 0 {
		return
	}
	b := m.refilled(caller, now)
	if b == nil {
		if n < 0 {
			return
		}
		if len(m.callers) >= m.cfg.Remember {
			fullest := "" // it loses least
			for name, other := range m.callers {
				if fullest == "" || other.left > m.callers[fullest].left {
					fullest = name
				}
			}
			delete(m.callers, fullest)
		}
		b = &budget{left: float64(m.cfg.Deaths), at: now}
		m.callers[caller] = b
	}
	b.left = min(max(b.left-n, -float64(m.cfg.Deaths)), float64(m.cfg.Deaths))
}

// refilled returns a caller's budget now, nil when it is full.
func (m *memory) refilled(caller string, now time.Time) *budget {
	b := m.callers[caller]
	if b == nil {
		return nil
	}
	b.left += now.Sub(b.at).Seconds() / m.cfg.Window.Seconds() * float64(m.cfg.Deaths)
	b.at = now
	if b.left >= float64(m.cfg.Deaths) {
		delete(m.callers, caller)
		return nil
	}
	return b
}

// spent returns how long a caller has to wait, 0 when it need not.
func (m *memory) spent(caller string, now time.Time) time.Duration {
	if caller == "" || len(m.callers) == 0 {
		return 0
	}
	b := m.refilled(caller, now)
	if b == nil || b.left >= 1 {
		return 0
	}
	return max(time.Duration((1-b.left)/float64(m.cfg.Deaths)*float64(m.cfg.Window)), time.Millisecond)
}

// sweep forgets what is over.
func (m *memory) sweep(now time.Time) {
	for print := range m.prints {
		m.about(print, now)
	}
	for caller := range m.callers {
		m.refilled(caller, now)
	}
}

// list returns the fingerprints, those that are refused first, the newest first.
func (m *memory) list(now time.Time) []Poisoned {
	var out []Poisoned
	for print := range m.prints {
		if known := m.about(print, now); known != nil {
			out = append(out, *known)
		}
	}
	slices.SortFunc(out, func(a, b Poisoned) int {
		if a.Refused != b.Refused {
			if a.Refused {
				return -1
			}
			return 1
		}
		return cmp.Or(b.Until.Compare(a.Until), cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	return out
}

// printOf is the fingerprint of a query whose caller has not set one.
func printOf(payload json.RawMessage, data []byte) string {
	h := sha256.New()
	h.Write(payload)
	if len(data) > 0 {
		h.Write([]byte{0}) // not JSON: no payload is like this one with its bytes
		h.Write(data)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
