package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/worker"
)

// startOver is how long a host waits between two sessions.
var startOver = worker.Backoff{Min: time.Second, Max: time.Second}

// serve runs a started host. It returns when ctx has ended and every goroutine of the
// host has returned.
func (h *Host) serve(ctx context.Context) error {
	// Handlers may finish after ctx has ended.
	work, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	h.mu.Lock()
	h.began = time.Now()
	h.mu.Unlock()
	sweeping, stopSweeps := context.WithCancel(work)
	h.running.Add(1)
	call.Go("sweeps of hosted workers", func() error { return h.sweepRegularly(sweeping) }, func(err error) {
		if err != nil {
			h.log.Error("hosted workers: the sweeps of this host have ended by themselves", "error", err)
		}
		h.running.Done()
	})
	questions, err := h.answerQuestions()
	if err != nil {
		h.log.Warn("hosts: this host answers no questions about its workers", "host", h.cfg.HostID, "error", err)
	} else {
		defer func() { _ = questions.Unsubscribe() }() // fails when the connection is closed
	}
	lastLogged := ""
	for {
		began := time.Now()
		if err = h.session(ctx, work); ctx.Err() != nil {
			break
		}
		if time.Since(began) > time.Minute { // it worked
			lastLogged = ""
		}
		if err = natserr.Plain(err); err.Error() != lastLogged {
			h.log.Warn("hosts: start over", "host", h.cfg.HostID, "error", err)
			lastLogged = err.Error()
		}
		h.checkRecoveryTime(err)
		_ = startOver.Sleep(ctx, 1)
	}
	h.draining.Store(true)
	h.endSlots(work)
	stopSweeps()
	h.running.Wait()
	if h.ready.Load() {
		h.leave(work)
	}
	return nil
}

// handOver gives up the membership of a host that drains, once its last slot has ended: from
// then on the other hosts have its workers.
func (h *Host) handOver(ctx context.Context) {
	h.mu.Lock()
	ended := h.draining.Load() && len(h.slots) == 0
	h.mu.Unlock()
	if ended {
		h.leave(ctx)
	}
}

// leave gives up the membership.
func (h *Host) leave(ctx context.Context) {
	if h.left {
		return
	}
	h.left = true
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := h.members.leave(ctx); err != nil {
		h.log.Warn("hosts: the other hosts have to wait until the lease runs out", "host", h.cfg.HostID, "error", natserr.Plain(err))
	}
}

// checkRecoveryTime marks recovery as failed once it has taken longer than AcquireTimeout.
func (h *Host) checkRecoveryTime(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.recovery == recoveryRuns && time.Since(h.began) > h.cfg.AcquireTimeout {
		h.fault = fmt.Errorf("recovery of hosted workers did not end within %v: %w",
			h.cfg.AcquireTimeout, errors.Join(err, context.DeadlineExceeded))
	}
}

// session follows the records and the members until one of the watches breaks, or ctx ends: then it
// returns nil.
func (h *Host) session(ctx, work context.Context) error {
	attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := h.ensureAgain(attempt); err != nil {
		return err
	}
	if !h.left {
		if err := h.members.beat(attempt); err != nil && !errors.Is(err, errReplaced) {
			return fmt.Errorf("announce this host: %w", err)
		}
	}
	hosts, err := h.members.kv.WatchAll(work)
	if err != nil {
		return fmt.Errorf("watch the hosts: %w", err)
	}
	defer func() { _ = hosts.Stop() }()
	recs, err := h.records.kv.WatchAll(work)
	if err != nil {
		return fmt.Errorf("watch the workers: %w", err)
	}
	defer func() { _ = recs.Stop() }()
	beat := time.NewTicker(h.cfg.LeaseTTL / 3)
	defer beat.Stop()
	var assignFrom time.Time         // when the slots may be assigned again
	var assignLater <-chan time.Time // set while an assignment waits until assignFrom
	// These are new for each session, so that removed records do not stay.
	known, broken := make(map[string]*Record), make(map[string]error)
	hostsRead, recordsRead := false, false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
			if h.left {
				continue
			}
			if err := h.beat(ctx); err != nil {
				return err // the watches are of the old store
			}
		case <-h.wake:
		case <-assignLater:
			assignLater = nil
		case entry, ok := <-hosts.Updates():
			if !ok {
				return errors.New("the watch of the hosts has ended")
			}
			if entry == nil {
				hostsRead = true
			} else {
				h.members.observe(entry)
			}
		case entry, ok := <-recs.Updates():
			if !ok {
				return errors.New("the watch of the workers has ended")
			}
			if entry == nil {
				recordsRead = true
				h.mu.Lock()
				h.known, h.broken = known, broken
				for id := range h.tallies {
					h.keepCountsLocked(id, known[id])
				}
				h.mu.Unlock()
			} else {
				h.observe(entry, known, broken)
			}
		}
		isUpToDate := hostsRead && recordsRead && len(recs.Updates()) == 0
		if isUpToDate && assignLater == nil {
			if wait := time.Until(assignFrom); wait > 0 {
				assignLater = time.After(wait)
			} else {
				began := time.Now()
				h.assign(work)
				h.recovered()
				h.handOver(work)
				assignFrom = nextAssignment(began, time.Now())
			}
		}
		h.checkRecoveryTime(nil)
	}
}

// beat renews the lease of this host. It returns an error when the server has lost its buckets.
func (h *Host) beat(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, h.cfg.LeaseTTL/3)
	defer cancel()
	err := h.members.beat(within)
	if err != nil && !errors.Is(err, errReplaced) {
		if ctx.Err() != nil {
			return nil // the host stops
		}
		h.log.Warn("hosts: the heartbeat failed", "host", h.cfg.HostID, "error", natserr.Plain(err))
		look, stop := context.WithTimeout(ctx, h.cfg.LeaseTTL/3)
		defer stop()
		if _, missing := h.js.KeyValue(look, h.cfg.Name+"_MEMBERS"); !errors.Is(missing, jetstream.ErrBucketNotFound) {
			return nil // the server is away, or slow
		}
		err = errReplaced
	}
	if err != nil {
		h.log.Error("hosts: the server has lost the hosted workers that it stored: this host makes their buckets and streams anew",
			"host", h.cfg.HostID, "error", err)
	}
	return err
}

// beatOnce is beat for a host that stops. A server that does not answer delays the stop little.
func (h *Host) beatOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.LeaseTTL/10)
	defer cancel()
	err := h.members.beat(ctx)
	if err != nil && !errors.Is(err, errReplaced) {
		h.log.Warn("hosts: the heartbeat failed", "host", h.cfg.HostID, "error", natserr.Plain(err))
		return nil
	}
	return err
}

// observe notes an entry of the watch of the workers.
func (h *Host) observe(entry jetstream.KeyValueEntry, known map[string]*Record, broken map[string]error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(broken, entry.Key())
	if entry.Operation() != jetstream.KeyValuePut {
		delete(known, entry.Key())
		h.keepCountsLocked(entry.Key(), nil)
		return
	}
	r, err := decode(entry)
	if err == nil && !h.records.table.Has(r.State) {
		err = fmt.Errorf("record %s, revision %d: the state %q is not in the table", entry.Key(), entry.Revision(), r.State)
	}
	if err != nil {
		// The worker goes on with its last valid record.
		broken[entry.Key()] = err
		h.log.Error("hosted worker: its record cannot be read", "error", err)
		return
	}
	known[r.ID] = r
	h.keepCountsLocked(r.ID, r)
}

// assign starts or updates each slot that belongs to this host, and ends the slots that do
// not.
func (h *Host) assign(work context.Context) {
	h.mu.Lock()
	wanted := h.wantedSlotsLocked()
	for name, s := range h.slots {
		if wanted[name] == nil {
			s.end()
		}
		if isClosed(s.gone) { // if the slot is wanted again, the loop below makes a new one
			delete(h.slots, name)
		}
	}
	for name, records := range wanted {
		slices.SortFunc(records, func(a, b *Record) int { return strings.Compare(a.ID, b.ID) })
		s := h.slots[name]
		if s == nil {
			h.startSlotLocked(work, name, records)
			continue
		}
		if s.ending.Err() != nil {
			continue // assign makes a new one when it has ended
		}
		s.mu.Lock()
		same := slices.Equal(s.records, records)
		s.mu.Unlock()
		if !same {
			s.want(records)
		}
	}
	h.mu.Unlock()
	h.changed()
}

// wantedSlotsLocked returns the records of the slots that belong to this host.
func (h *Host) wantedSlotsLocked() map[string][]*Record {
	wanted := make(map[string][]*Record)
	if h.recovery == recoveryOff || h.draining.Load() || !h.members.held() {
		return wanted
	}
	hosts := h.members.live()
	for _, r := range h.known {
		if name := r.slot(); owner(hosts, name) == h.cfg.HostID {
			wanted[name] = append(wanted[name], r)
		}
	}
	return wanted
}

// startSlotLocked starts a slot.
func (h *Host) startSlotLocked(work context.Context, name string, records []*Record) {
	s := newSlot(work, h, name)
	s.records = records
	h.slots[name] = s
	call.Go("slot "+name, func() error { s.run(work); return nil }, func(err error) {
		if err != nil {
			h.log.Error("hosted worker: the slot ended by itself", "slot", name, "error", err)
			time.AfterFunc(retryLoad, h.wake.Notify) // wait before assign makes a new one
		} else {
			h.wake.Notify()
		}
		h.changed()
	})
}

// recovered ends the first recovery once the host has tried to start every slot.
func (h *Host) recovered() {
	h.mu.Lock()
	defer func() {
		h.mu.Unlock()
		h.changed()
	}()
	if h.recovery != recoveryRuns {
		return
	}
	for _, s := range h.slots {
		s.mu.Lock()
		tried := s.tried
		s.mu.Unlock()
		if !tried {
			return
		}
	}
	h.recovery, h.fault = recoveryDone, nil
}

// endSlots ends every slot and waits until all have ended. It renews the lease until then, so that no other
// host takes a worker whose message is not finished.
func (h *Host) endSlots(work context.Context) {
	h.mu.Lock()
	slots := make([]*slot, 0, len(h.slots))
	for _, s := range h.slots {
		s.end()
		slots = append(slots, s)
	}
	h.mu.Unlock()
	beat := time.NewTicker(h.cfg.LeaseTTL / 6)
	defer beat.Stop()
	for _, s := range slots {
		for !isClosed(s.gone) {
			select {
			case <-s.gone:
			case <-beat.C:
				_ = h.beatOnce(work) // a store that was replaced changes nothing for a host that ends
			}
		}
	}
	h.mu.Lock()
	clear(h.slots)
	h.mu.Unlock()
	h.changed()
}

// nextAssignment returns when the slots may be assigned again after an assignment. It keeps
// the assignments of a host with many slots, each of which looks at all of them, below a
// fifth of a processor, or 100 ms apart.
func nextAssignment(began, ended time.Time) time.Time {
	return ended.Add(min(4*ended.Sub(began), 100*time.Millisecond))
}
