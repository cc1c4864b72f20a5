package presence

import (
	"crypto/ed25519"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// registry remembers which key announces which process. The first key that announces an id
// holds it (trust on first use). Another key may take the id over, because a process that
// was killed and started again has a new key. When the earlier key then announces itself
// again, its process was not dead: it holds the id again, and the keys that came after it are rivals.
// A key counts its announcements, so that an old one that is stored again is refused.
//
// It may be used concurrently.
type registry struct {
	ttl time.Duration

	mu    sync.Mutex // guards the fields below
	ids   map[string]*holder
	swept time.Time
}

// holder is the process that holds one id.
type holder struct {
	keys     []claim  // which have announced the id, in the order in which they took it over
	at       int      // the key that holds it; those behind are rivals, those before earlier lives
	revision uint64   // of its last entry
	left     bool     // it has removed its entry
	last     *Process // its last announcement, nil when that is not kept; nothing changes it
	wrong    string   // what is wrong with the id's entry
	wrongAt  time.Time
}

// claim is a key, and the number and the time of its last announcement.
type claim struct {
	key    string
	number uint64
	heard  time.Time // by this process's clock
}

// current returns the claim of the key that holds the id.
func (h *holder) current() *claim { return &h.keys[h.at] }

// find returns the place of a key, -1 when it has not announced the id.
func (h *holder) find(key string) int {
	if h == nil {
		return -1
	}
	return slices.IndexFunc(h.keys, func(c claim) bool { return c.key == key })
}

// hasRoom reports whether the holder, which lives, remembers one more key. When there are too many it
// forgets those that were not heard for a TTL. It forgets no other: its process may live.
func (h *holder) hasRoom(now time.Time, ttl time.Duration) bool {
	if len(h.keys) > maxOthers {
		holds := h.current().key
		h.keys = slices.DeleteFunc(h.keys, func(c claim) bool { return now.Sub(c.heard) >= ttl })
		h.at = h.find(holds)
	}
	return len(h.keys) <= maxOthers
}

const (
	maxHolders = 100_000
	maxOthers  = 8         // keys of one id, besides the one that holds it
	keepLeft   = time.Hour // how long a key that has left is remembered
)

const manyKeys = "its key changes again and again: " +
	"it is started again and again, or another client forges its announcements"

const twoProcesses = "two processes announce themselves under this id, or another client forges its announcements"

func newRegistry(ttl time.Duration) *registry {
	return &registry{ttl: ttl, ids: make(map[string]*holder)}
}

// announced judges an announcement of p whose signature holds, and keeps it unless it refuses
// it. It returns p, or the announcement before when it refuses p; Suspect says why.
// alive reports whether p shows that the process lives. The caller must not change p any more.
func (r *registry) announced(now time.Time, p *Process, a announcement, revision uint64) (_ *Process, alive bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := a.stamp.Number
	h := r.ids[p.ID]
	i := h.find(a.key)
	switch {
	case h == nil:
		h = r.addLocked(now, p.ID)
		h.keys = []claim{{key: a.key}}
		if gap := p.SeenAt.Sub(p.AnnouncedAt).Round(time.Second); gap.Abs() > r.ttl+maxClockGap {
			h.accuse(now, fmt.Sprintf("its clock is %v off, "+
				"or it is an old announcement that another client has stored again", gap))
		}
	case i == h.at && n <= h.current().number:
		if revision <= h.revision { // it was read before
			p.Suspect = h.suspect(now, r.ttl)
			return p, !h.left
		}
		return h.refuse(now, p.ID, "another client has stored an old announcement again")
	case i == h.at:
	case 0 <= i && i < h.at && n <= h.keys[i].number:
		return h.refuse(now, p.ID, "another client has stored an announcement of an earlier life again")
	case 0 <= i && i < h.at:
		h.at, h.left = i, false
		h.accuse(now, h.bothWith(p))
	case !h.lives(now, r.ttl):
		h.keys, h.at, h.left = []claim{{key: a.key}}, 0, false
	case i > h.at:
		h.keys[i].heard = now
		return h.refuse(now, p.ID, h.bothWith(p))
	default:
		if !h.hasRoom(now, r.ttl) {
			return h.refuse(now, p.ID, manyKeys)
		}
		h.at++
		h.keys = slices.Insert(h.keys, h.at, claim{key: a.key})
	}
	h.current().number, h.current().heard, h.revision = n, now, revision
	p.Suspect = h.suspect(now, r.ttl)
	h.last = p
	return p, true
}

// forged notes an entry that the process of that id has not written, and returns what is
// known of the process. known is false when nothing is.
func (r *registry) forged(now time.Time, id, why string) (p *Process, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.ids[id]
	if h == nil || !h.lives(now, r.ttl) {
		return &Process{ID: id, Suspect: why}, false
	}
	p, _ = h.refuse(now, id, why)
	return p, true
}

// left judges the removal of an entry, by an announcement with its stamp. It reports whether
// the process has left.
func (r *registry) left(id string, a announcement) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.ids[id]
	if h == nil {
		return true // the registry has seen no announcement of it
	}
	holds := h.current()
	if a.key != holds.key || a.stamp.Number < holds.number {
		return false
	}
	h.left, holds.number, h.last = true, a.stamp.Number, nil
	return true
}

// key returns the public key of the process that holds an id, nil when it is not known.
func (r *registry) key(id string) ed25519.PublicKey {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.ids[id]; h != nil {
		return ed25519.PublicKey(h.current().key)
	}
	return nil
}

func (r *registry) addLocked(now time.Time, id string) *holder {
	full := len(r.ids) >= maxHolders
	if age := now.Sub(r.swept); age > time.Minute || age > time.Second && full {
		r.swept = now
		for id, h := range r.ids {
			switch age := now.Sub(h.current().heard); {
			case age > keepLeft, full && age >= r.ttl:
				delete(r.ids, id)
			case age >= 2*r.ttl:
				h.last = nil
			}
		}
	}
	h := &holder{}
	if len(r.ids) < maxHolders {
		r.ids[id] = h
	}
	return h
}

// bothWith says that p and the process of the last announcement have one id, and where each
// of them runs, in the same order whichever of the two announces itself.
func (h *holder) bothWith(p *Process) string {
	if h.last == nil || h.last.Host == p.Host && h.last.PID == p.PID {
		return twoProcesses
	}
	places := []string{fmt.Sprintf("%s, pid %d", h.last.Host, h.last.PID), fmt.Sprintf("%s, pid %d", p.Host, p.PID)}
	slices.Sort(places)
	return twoProcesses + ": " + strings.Join(places, "; ")
}

func (h *holder) accuse(now time.Time, why string) { h.wrong, h.wrongAt = why, now }

// lives reports whether the process has announced itself within the TTL and not left.
func (h *holder) lives(now time.Time, ttl time.Duration) bool {
	return !h.left && now.Sub(h.current().heard) < ttl
}

// suspect returns the accusation for as long as it is recent.
func (h *holder) suspect(now time.Time, ttl time.Duration) string {
	if h.wrong != "" && now.Sub(h.wrongAt) < 2*ttl {
		return h.wrong
	}
	return ""
}

// refuse accuses, and returns the announcement before.
func (h *holder) refuse(now time.Time, id, why string) (*Process, bool) {
	h.accuse(now, why)
	p := new(Process)
	if h.last != nil {
		*p = *h.last
	}
	p.ID, p.Suspect = id, why
	return p, false
}
