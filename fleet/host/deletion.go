package host

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/worker"
)

// Delete waits until a worker has finished the message that it handles, and then
// removes its consumer, its state, its timers, its code and its record. Messages that wait for
// the worker go unhandled. Outputs that could not be published yet become dead
// letters. Its dead letters stay. The worker's host carries out the
// deletion. When no host runs, Delete carries it out itself, and also when the
// worker's host has not done so after DrainTimeout and two LeaseTTLs. Delete returns
// when the worker is gone. When ctx ends first it returns an error, and the hosts
// continue the deletion. For a worker that is being deleted already it waits for the
// end.
func (h *Host) Delete(ctx context.Context, id string, opts ...Option) error {
	return h.delete(ctx, id, "", optionsOf(opts))
}

// delete deletes the worker that has both id and uid. An empty uid matches any.
func (h *Host) delete(ctx context.Context, id, uid string, o options) error {
	rec, err := h.change(ctx, id, o, func(r *Record) (bool, error) {
		if uid != "" && r.UID != uid {
			return false, fmt.Errorf("worker %s: %w: the id belongs to a newer worker", id, ErrNotFound)
		}
		changed := !r.State.leaving()
		if changed {
			r.State = StateDeleting
		}
		return changed, nil
	})
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	alone := time.Now().Add(h.cfg.DrainTimeout + 2*h.cfg.LeaseTTL) // from then on this call deletes it
	wait := worker.Backoff{Min: 20 * time.Millisecond, Max: 250 * time.Millisecond}
	for looks := 1; ; looks++ {
		now, err := h.records.get(ctx, id)
		if errors.Is(err, ErrNotFound) || err == nil && now.UID != rec.UID {
			return nil
		}
		hasNoHosts := false
		if err == nil {
			hasNoHosts, err = h.noHosts(ctx)
		}
		if err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		if hasNoHosts || time.Now().After(alone) {
			group, err := h.group(ctx, now)
			if err == nil {
				err = h.erase(ctx, now, group)
			}
			if err != nil {
				return fmt.Errorf("delete: %w", err)
			}
			return nil
		}
		if err := wait.Sleep(ctx, looks); err != nil {
			return fmt.Errorf("delete worker %s: the hosts continue: %w", id, err)
		}
	}
}

// noHosts reports whether the fleet has no host.
func (h *Host) noHosts(ctx context.Context) (bool, error) {
	keys, err := h.members.kv.ListKeys(ctx)
	if err != nil {
		return false, err
	}
	n := 0
	for range keys.Keys() {
		n++
	}
	return n == 0, nil
}

// forget makes this host drop the values of a worker that it has not written yet.
func (h *Host) forget(rec *Record) {
	h.mu.Lock()
	s := h.slots[rec.slot()]
	h.mu.Unlock()
	if s == nil {
		return
	}
	if p := s.partition.Load(); p != nil {
		of := rec.workerUID()
		p.cache.forget(h.states.valuesOf(of))
		p.cache.forget(h.states.timersOf(s.name, of))
		p.timers.forget(of)
	}
}

// dropLog removes the log of a slot that has no worker any more. Outputs that were committed
// and not published become dead letters.
func (h *Host) dropLog(ctx context.Context, slot string) error {
	l := h.slotLog(slot, 0)
	entries, err := l.read(ctx, math.MaxUint64)
	if err != nil {
		return err
	}
	outputs, _ := l.unsent(entries)
	for _, o := range outputs {
		if err := h.storeOutput(ctx, o, errors.New("its worker was deleted before it was published")); err != nil {
			return err
		}
	}
	return h.logs.Purge(ctx, jetstream.WithPurgeSubject(l.subject))
}

// erase removes the consumer, the state, the code and the record of a worker that no
// host runs any more. others are the other workers of its slot. The caller may repeat
// a call that failed halfway.
func (h *Host) erase(ctx context.Context, rec *Record, others []*Record) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	others = slices.DeleteFunc(others, func(r *Record) bool { return r.State.leaving() })
	if err := h.leaveSlot(ctx, rec, others); err != nil {
		return fmt.Errorf("worker %s: %w", rec.ID, err)
	}
	if err := h.states.purge(ctx, rec); err != nil {
		return fmt.Errorf("worker %s: remove its state: %w", rec.ID, err)
	}
	if err := h.code.drop(ctx, rec); err != nil {
		return fmt.Errorf("worker %s: remove its code: %w", rec.ID, err)
	}
	if err := h.lines.drop(ctx, rec); err != nil {
		return fmt.Errorf("worker %s: remove its log: %w", rec.ID, err)
	}
	rec, err := h.records.update(ctx, rec.ID, Change{By: h.cfg.HostID}, func(r *Record) (bool, error) {
		if r.UID != rec.UID {
			return false, ErrNotFound
		}
		changed := r.State != StateDeleted
		r.State = StateDeleted
		return changed, nil
	})
	if err == nil {
		err = h.records.remove(ctx, rec)
	}
	if errors.Is(err, ErrNotFound) {
		return nil // another host did it
	}
	return err
}

// leaveSlot takes a worker out of its slot, and removes a slot that has no others.
func (h *Host) leaveSlot(ctx context.Context, rec *Record, others []*Record) error {
	if len(others) > 0 {
		if _, _, err := h.consumer(ctx, rec, topics(others), false); err != nil {
			return fmt.Errorf("remove its topic from the consumer: %w", err)
		}
		h.forget(rec)
		return h.letters.dropHeld(ctx, rec.slot(), topics(others))
	}
	if err := h.unsubscribe(ctx, rec); err != nil {
		return fmt.Errorf("remove its consumer: %w", err)
	}
	if err := h.letters.dropHeld(ctx, rec.slot(), nil); err != nil {
		return err
	}
	err := h.dropLog(ctx, rec.slot())
	if err == nil { // a holder that is still stalled finds another sequence than its own, and cannot write
		err = h.states.stream.Purge(ctx, jetstream.WithPurgeSubject(h.states.fenceSubject(rec.slot())))
	}
	if err != nil {
		return fmt.Errorf("remove its log: %w", err)
	}
	return nil
}
