package presence

import (
	"crypto/ed25519"
	"fmt"
	"slices"
	"sync"
	"time"
)

// book remembers which key announces which process. The first key that announces an id
// holds it (trust on first use). Another key may take the id over, because a process that
// was killed and started again has a new key. When the earlier key then announces itself
// again, its process was not dead: it holds the id again, and the other key is a rival.
// A key counts its announcements, so that an old one that is stored again is no news.
//
// It may be used concurrently.
type book struct {
	ttl time.Duration

	mu    sync.Mutex // guards the fields below
	ids   map[string]*holder
	swept time.Time
}

// holder is who announces one id.
type holder struct {
	held
	revision uint64    // of its last entry
	heard    time.Time // by this process's clock
	left     bool      // it has said that it ends
	last     *Process  // as it was announced last, nil when that is not kept; not changed once it is here
	before   []held    // keys that held the id, and may still live; the latest last
	rivals   []string  // keys that claimed the id while this one lived
	wrong    string    // what is wrong with the id's entry
	wrongAt  time.Time
	opened   *opened // the announcement that last is of, nil for none
}

// held is a key and the number of its last announcement.
type held struct {
	key    string
	number uint64
}

const (
	maxHolders = 100_000
	maxOthers  = 8         // of before, and of rivals
	keepLeft   = time.Hour // a key that has left is remembered for so long
)

func newBook(ttl time.Duration) *book {
	return &book{ttl: ttl, ids: make(map[string]*holder)}
}

// announced judges an announcement of p whose signature holds, and keeps both when it is
// news. It returns p, or what was announced before when it refuses p; Suspect says why.
// alive reports whether it is a sign of life. The caller must not change p any more.
func (b *book) announced(now time.Time, p *Process, o *opened, revision uint64) (_ *Process, alive bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k, n := o.key, p.Number
	h := b.ids[p.ID]
	switch {
	case h == nil:
		h = b.addLocked(now, p.ID)
		h.key = k
		if gap := p.SeenAt.Sub(p.AnnouncedAt).Round(time.Second); gap.Abs() > b.ttl+maxClockGap {
			h.accuse(now, fmt.Sprintf("its clock is %v off, or it is an old announcement that another client has stored again", gap))
		}
	case k == h.key && n <= h.number:
		if revision <= h.revision { // it was read before
			p.Suspect = h.suspect(now, b.ttl)
			return p, !h.left
		}
		return h.refuse(now, p.ID, "another client has stored an old announcement again")
	case k == h.key:
	case slices.Contains(h.rivals, k) && !h.left && now.Sub(h.heard) < b.ttl:
		return h.refuse(now, p.ID, "two processes announce themselves under this id, or another client forges its announcements")
	default:
		i := slices.IndexFunc(h.before, func(o held) bool { return o.key == k })
		if i >= 0 && n <= h.before[i].number {
			return h.refuse(now, p.ID, "another client has stored an announcement of an earlier life again")
		}
		old, lives := h.held, !h.left && now.Sub(h.heard) < b.ttl
		if i >= 0 {
			h.before = slices.Delete(h.before, i, i+1)
			h.rivals = bounded(append(h.rivals, old.key))
			h.accuse(now, "two processes announce themselves under this id, or another client forges its announcements")
		} else if lives {
			h.before = bounded(append(h.before, old))
		} else {
			h.before, h.rivals = nil, nil
		}
		h.key, h.left = k, false
	}
	h.number, h.revision, h.heard = n, revision, now
	p.Suspect = h.suspect(now, b.ttl)
	h.last, h.opened = p, o
	return p, true
}

// forged notes an entry that the process of that id has not written, and returns what is
// known of the process. known is false when nothing is.
func (b *book) forged(now time.Time, id, why string) (p *Process, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.ids[id]
	if h == nil || h.left || now.Sub(h.heard) >= b.ttl {
		return &Process{ID: id, Suspect: why}, false
	}
	p, _ = h.refuse(now, id, why)
	return p, true
}

// opened returns the announcement of an id that is kept, and the process as it was then or
// as of a later beat. Without one it returns nil.
func (b *book) opened(id string) (*Process, *opened) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.ids[id]; h != nil {
		return h.last, h.opened
	}
	return nil, nil
}

// gone judges the removal of an entry; farewell is the process's sealed number. It
// reports whether the process has left.
func (b *book) gone(id string, key ed25519.PublicKey, number uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.ids[id]
	if h == nil {
		return true // nothing signed was ever seen of it
	}
	if string(key) != h.key || number < h.number {
		return false
	}
	h.left, h.number, h.last, h.opened = true, number, nil, nil
	return true
}

// key returns the public key of the process that holds an id, nil when it is not known.
func (b *book) key(id string) ed25519.PublicKey {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h := b.ids[id]; h != nil {
		return ed25519.PublicKey(h.held.key)
	}
	return nil
}

func (b *book) addLocked(now time.Time, id string) *holder {
	full := len(b.ids) >= maxHolders
	if age := now.Sub(b.swept); age > time.Minute || age > time.Second && full {
		b.swept = now
		for id, h := range b.ids {
			if age := now.Sub(h.heard); age > keepLeft || full && age >= b.ttl {
				delete(b.ids, id)
			} else if age >= 2*b.ttl {
				h.last, h.opened = nil, nil
			}
		}
	}
	h := &holder{}
	if len(b.ids) < maxHolders {
		b.ids[id] = h
	}
	return h
}

func (h *holder) accuse(now time.Time, why string) { h.wrong, h.wrongAt = why, now }

// suspect is the accusation for as long as it is recent.
func (h *holder) suspect(now time.Time, ttl time.Duration) string {
	if h.wrong != "" && now.Sub(h.wrongAt) < 2*ttl {
		return h.wrong
	}
	return ""
}

// refuse accuses, and returns what was announced before.
func (h *holder) refuse(now time.Time, id, why string) (*Process, bool) {
	h.accuse(now, why)
	p := new(Process)
	if h.last != nil {
		*p = *h.last
	}
	p.ID, p.Suspect = id, why
	return p, false
}

// bounded drops the oldest of too many.
func bounded[T any](list []T) []T { return list[max(0, len(list)-maxOthers):] }
