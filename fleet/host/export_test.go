package host

import (
	"context"
	"errors"
	"time"
)

// Owner exports owner.
var Owner = owner

// Leaving returns how many slots are ending.
func (h *Host) Leaving() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, s := range h.slots {
		if s.ending.Err() != nil {
			n++
		}
	}
	return n
}

// Members returns the hosts that this one believes alive, and itself.
func (h *Host) Members() []string { return h.members.live() }

// Applied reports whether the slot of a worker has acted on a record in which the
// worker is in this state.
func (h *Host) Applied(id string, phase State) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.slots {
		s.mu.Lock()
		for _, rec := range s.records {
			if rec.ID == id && rec.State == phase && s.workers[id] != nil && s.workers[id].applied == rec.revision {
				s.mu.Unlock()
				return true
			}
		}
		s.mu.Unlock()
	}
	return false
}

// Supersede claims a slot, as a host that takes it over does, and handles nothing.
func (h *Host) Supersede(ctx context.Context, slot string) error {
	if err := h.ensure(ctx); err != nil {
		return err
	}
	for {
		fence, err := h.states.claim(ctx, slot, h.cfg.HostID)
		if err == nil {
			_, err = h.slotLog(slot, fence).open(ctx, h.cfg.HostID)
		}
		if !errors.Is(err, ErrStale) { // the holder has claimed it again in between
			return err
		}
	}
}

// Sweep removes what is left of deleted workers.
func (h *Host) Sweep(ctx context.Context) error { return h.sweep(ctx, 0) }

// Advance makes the clock of the server later for this host.
func (h *Host) Advance(by time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []*timers
	for _, s := range h.slots {
		if p := s.partition.Load(); p != nil {
			p.timers.taking.Lock() // one that has the earlier time would put off the next look
			all = append(all, p.timers)
		}
	}
	h.states.ahead.Add(int64(by))
	for _, ts := range all {
		ts.taking.Unlock()
		ts.mu.Lock()
		ts.lookNowLocked()
		ts.mu.Unlock()
	}
}

// Trust makes the host trust its lease, or not, as after beats that succeeded or failed.
func (h *Host) Trust(lease bool) {
	h.members.mu.Lock()
	defer h.members.mu.Unlock()
	h.members.kept = time.Time{}
	if lease {
		h.members.kept = time.Now()
	}
}

// SourceOf exports sourceOf.
var SourceOf = sourceOf
