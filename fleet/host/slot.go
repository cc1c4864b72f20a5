package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// slot runs a group, or one worker without a group, on the host that owns it. It
// has the programs and the runner that feeds them. One goroutine owns it.
type slot struct {
	host *Host
	name string
	wake chan struct{} // of size 1
	quit chan struct{}
	gone chan struct{} // closed when the slot has released everything

	mu      sync.Mutex // guards the fields from records to status
	records []*Record  // the wanted members
	faults  map[string]error
	applied map[string]uint64 // revision of each record that was tried
	tried   bool
	asks    uint64           // number of the newest request to try failed workers again
	heard   uint64           // number of the newest request that the slot has carried out
	status  map[string]bool  // ids of members whose program is loaded
	broken  map[tally]broken // found by the runner

	turn atomic.Uint64             // counts messages
	part atomic.Pointer[partition] // of the newest runner

	handles atomic.Pointer[runner] // the newest runner

	// Only the owning goroutine uses the fields below.
	loaded      []*member
	covered     []string // topics that the slot's consumer is known to take
	runner      *runner
	soon        time.Duration          // after which a canary may end, 0 for none
	quarantines map[string]*quarantine // by worker
	eager       map[string]int         // by worker: the generation whose code was found broken, which is loaded before its first message
}

// member is a worker with its program.
type member struct {
	record  *Record
	program engine.Program
	limits  engine.Limits
	turn    *atomic.Uint64 // the slot's turn when it last got a message; the lowest is next
	counts  *Counts
	veil    *veil // hides its secrets
	web     *web  // sends its requests
	kills   *kills
	slow    *atomic.Bool // its last message took long
	canary  *canary      // of the worker, nil for none
	onTrial bool         // it is the canary itself
	tokens  *bucket      // of its rate
}

func newSlot(h *Host, name string) *slot {
	return &slot{host: h, name: name, wake: make(chan struct{}, 1), quit: make(chan struct{}), gone: make(chan struct{}),
		faults: make(map[string]error), applied: make(map[string]uint64), status: make(map[string]bool), broken: make(map[tally]broken), quarantines: make(map[string]*quarantine), eager: make(map[string]int)}
}

// want replaces the records that the slot should run, and wakes the slot.
func (s *slot) want(records []*Record) {
	s.mu.Lock()
	s.records = records
	s.mu.Unlock()
	s.nudge()
}

func (s *slot) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// ask makes the slot try failed workers again. It returns the number of the request
// for [slot.hasTried].
func (s *slot) ask() uint64 {
	s.mu.Lock()
	s.asks++
	n := s.asks
	s.mu.Unlock()
	s.nudge()
	return n
}

// hasTried reports whether the slot has carried out request n, or is ending and
// never will.
func (s *slot) hasTried(n uint64) bool {
	select {
	case <-s.quit:
		return true
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard >= n
}

// retryLoad is how long a slot waits before it tries again after an error.
const retryLoad = 5 * time.Second

// run applies the wanted records until quit is closed, and then releases
// everything. ctx ends only when the host has stopped all its slots.
func (s *slot) run(ctx context.Context) {
	defer close(s.gone)
	defer s.release(ctx)
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	for {
		retry.Reset(time.Minute) // another host that believed it owned the slot may have held messages
		if err := s.tryApply(ctx); err != nil {
			if !errors.Is(err, errDeploying) {
				s.host.log.Warn("hosted worker", "slot", s.name, "err", err)
			}
			retry.Reset(retryLoad)
		} else if s.soon > 0 {
			retry.Reset(min(time.Minute, s.soon))
		}
		var ended <-chan struct{}
		if s.runner != nil {
			ended = s.runner.ended
		}
		select {
		case <-s.wake:
		case <-retry.C:
		case <-ended:
			s.again(ctx)
		case <-s.quit:
			return
		}
	}
}

// again drops a runner that ended by itself. If the runner was abandoned, its
// handler still runs in the programs, and the slot loads new ones.
func (s *slot) again(ctx context.Context) {
	r := s.runner
	s.runner = nil
	if r.isAbandoned() {
		s.loaded = nil // the runner closes them when it returns
		return
	}
	if r.err != nil {
		s.host.log.Warn("hosted worker: consume", "slot", s.name, "err", r.err)
		select {
		case <-time.After(100 * time.Millisecond): // the server may be away
		case <-s.quit:
		case <-ctx.Done():
		}
	}
}

// tryApply calls apply and returns a panic as an error.
func (s *slot) tryApply(ctx context.Context) error {
	s.mu.Lock()
	asks := s.asks
	s.mu.Unlock()
	returned := false
	err := call.Do("slot "+s.name, func() error {
		err := s.apply(ctx)
		returned = true
		return err
	})
	if !returned { // apply panicked; callers wait for this try, so count it
		s.mu.Lock()
		s.tried, s.heard = true, asks
		s.mu.Unlock()
		s.host.changed()
	}
	return err
}

// apply loads the programs of the wanted records, gives them to the runner, and
// erases workers that are being deleted. It returns all errors, joined.
func (s *slot) apply(ctx context.Context) error {
	s.mu.Lock()
	records, asks := s.records, s.asks
	s.mu.Unlock()
	var errs []error
	next := make([]*member, 0, len(records))
	var leaving []*Record
	again := false
	s.soon = 0
	if err := s.cover(ctx, records); err != nil {
		errs = append(errs, err)
	}
	for _, rec := range records {
		if rec.State == StateDeleting || rec.State == StateDeleted {
			leaving = append(leaving, rec)
		}
		if !rec.State.wanted() {
			continue
		}
		if rec.deploying() {
			again = true // its creator will set it Running, or undo the creation
			continue
		}
		m, err := s.member(ctx, rec, asks)
		s.note(rec, m != nil, err)
		if err != nil {
			errs = append(errs, fmt.Errorf("worker %s: %w", rec.ID, err))
		}
		if m != nil {
			m, err = s.withCanary(ctx, rec, m)
			next, errs = append(next, m), append(errs, err)
		}
	}
	errs = append(errs, s.swap(ctx, next), s.giveBack(ctx, next))
	s.mu.Lock()
	for id := range s.status {
		if !slices.ContainsFunc(next, func(m *member) bool { return m.record.ID == id }) {
			delete(s.status, id)
		}
	}
	for id := range s.faults {
		if !slices.ContainsFunc(records, func(r *Record) bool { return r.ID == id && r.State.wanted() }) {
			delete(s.faults, id)
		}
	}
	for t := range s.broken {
		if !slices.ContainsFunc(records, func(r *Record) bool { return r.ID == t.id && r.Newest().Generation >= t.generation }) {
			delete(s.broken, t)
		}
	}
	for id := range s.quarantines {
		if !slices.ContainsFunc(records, func(r *Record) bool { return r.ID == id }) {
			delete(s.quarantines, id)
			delete(s.eager, id)
		}
	}
	for _, rec := range records {
		s.applied[rec.ID] = rec.revision
	}
	s.tried, s.heard = true, asks
	s.mu.Unlock()
	s.host.changed()
	s.host.poke()
	for _, rec := range leaving {
		var others []*Record
		var err error
		if rec.Group != "" { // read again, so that a worker created just now keeps its consumer
			others, err = s.host.group(ctx, rec)
		}
		if err == nil {
			err = s.host.erase(ctx, rec, others)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	if again && len(errs) == 0 {
		errs = append(errs, errDeploying)
	}
	return errors.Join(errs...)
}

// cover updates the consumer of a group whose members have changed, and the consumer
// of a worker whose creation this host finishes.
func (s *slot) cover(ctx context.Context, records []*Record) error {
	records = slices.DeleteFunc(slices.Clone(records), func(r *Record) bool {
		return r.State == StateDeleting || r.State == StateDeleted || r.deploying()
	})
	wanted := topics(records)
	finish := slices.ContainsFunc(records, func(r *Record) bool { return r.State == StateDeploying })
	if slices.Equal(wanted, s.covered) || !finish && !strings.HasPrefix(s.name, "g-") {
		return nil
	}
	if err := s.host.cover(ctx, records); err != nil {
		return err
	}
	s.covered = wanted
	return nil
}

// deploying reports whether the creation of r may still be in progress.
func (r *Record) deploying() bool {
	return r.State == StateDeploying && time.Since(r.Changed.At) < deployTime
}

// deployTime is how long a creation may take before the slot's host finishes it.
const deployTime = 30 * time.Second

var errDeploying = errors.New("a worker is being created")

// note stores the outcome of loading a worker, in the slot and in the worker's
// record.
func (s *slot) note(rec *Record, loaded bool, err error) {
	s.mu.Lock()
	if err != nil {
		s.faults[rec.ID] = err
	} else {
		delete(s.faults, rec.ID)
	}
	if loaded {
		s.status[rec.ID] = true
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	want, reason := StateRunning, ""
	if err != nil {
		want, reason = StateFailed, text.Clip(err.Error(), 1000)
	}
	if rec.State == want {
		return // the first reason stays: a new one would change the record, and the slot would act on it
	}
	if err != nil {
		s.host.lines.add(rec, true, "load: "+reason)
	}
	_, writeErr := s.host.records.update(ctx, rec.ID, Change{By: s.host.cfg.HostID, Note: reason}, func(r *Record) (bool, error) {
		// An operator may have stopped or updated it meanwhile. The slot tries
		// again then.
		if r.UID != rec.UID || !r.State.wanted() || r.Digest != rec.Digest || r.State == want {
			return false, nil
		}
		r.State, r.Reason = want, reason
		return true, nil
	})
	if writeErr != nil && !errors.Is(writeErr, ErrNotFound) {
		s.host.log.Warn("hosted worker: note its state", "worker", rec.ID, "state", want, "err", writeErr)
	}
}

// member returns the member for rec. It reuses the loaded program if that has rec's
// generation, and loads the code otherwise. When it cannot load the code it returns
// the error, together with the old member if there is one.
func (s *slot) member(ctx context.Context, rec *Record, asks uint64) (*member, error) {
	var old *member
	for _, m := range s.loaded {
		if m.record.ID == rec.ID && m.record.UID == rec.UID {
			old = m
		}
	}
	if err := s.takeBroken(rec); err != nil {
		s.eager[rec.ID] = rec.Generation
		s.hasLoaded(rec, asks, err)
		return nil, err // the old program is of the same code
	}
	if old != nil && old.record.Generation == rec.Generation {
		// A copy, so that the runner never sees a record change.
		same := *old
		if same.record = rec; rec.Rate != old.record.Rate {
			same.tokens = new(bucket)
		}
		return &same, nil
	}
	if err := s.quarantined(rec, asks); err != nil {
		return old, err
	}
	later := s.eager[rec.ID] != rec.Generation
	program, err := s.host.load(ctx, rec, later)
	s.hasLoaded(rec, asks, err)
	if err != nil {
		return old, err
	}
	if !later {
		delete(s.eager, rec.ID)
	}
	return s.newMember(rec, program), nil
}

func (s *slot) newMember(rec *Record, program engine.Program) *member {
	means, _ := s.host.granted(rec) // the load has looked
	return &member{record: rec, program: program, veil: means.veil, web: means.web, kills: new(kills), slow: new(atomic.Bool), tokens: new(bucket), turn: new(atomic.Uint64), limits: s.host.limits(rec), counts: s.host.counts(rec)}
}

// swap gives the runner its members between two messages and closes the programs
// that no member uses any more. Without members it ends the runner.
func (s *slot) swap(ctx context.Context, next []*member) error {
	old := s.loaded
	s.loaded = next
	closeOld := func() {
		for _, m := range all(old) {
			if !slices.ContainsFunc(all(next), func(n *member) bool { return n.program == m.program }) {
				s.host.closeProgram(m.record.ID, m.program)
			}
		}
	}
	// With another rate a new runner begins: messages may wait in the old one for hours.
	paced := slices.ContainsFunc(old, func(m *member) bool {
		return slices.ContainsFunc(next, func(n *member) bool { return n.program == m.program && n.tokens != m.tokens })
	})
	if s.runner != nil && len(next) > 0 && !paced {
		if s.runner.swap(next) {
			closeOld()
			return nil
		}
	}
	if s.halt(ctx) {
		// The abandoned runner still uses its programs and closes them when it
		// returns. The next round loads new ones. swap closes the programs that
		// the runner never had.
		for _, m := range all(next) {
			if !slices.ContainsFunc(all(old), func(o *member) bool { return o.program == m.program }) {
				s.host.closeProgram(m.record.ID, m.program)
			}
		}
		s.loaded = nil
		s.nudge()
		return nil
	}
	closeOld()
	if len(next) == 0 {
		return nil
	}
	r, err := s.start(ctx, next)
	if err != nil {
		return err
	}
	s.runner = r
	return nil
}

// halt ends the runner after the message that it handles. The runner gives back the
// messages that wait. halt reports whether the runner was abandoned.
func (s *slot) halt(ctx context.Context) (abandoned bool) {
	r := s.runner
	if r == nil {
		return false
	}
	s.runner = nil
	ctx, cancel := context.WithTimeout(ctx, s.host.cfg.DrainTimeout)
	defer cancel()
	r.stop(ctx)
	return r.isAbandoned()
}

// release ends the runner and closes the programs.
func (s *slot) release(ctx context.Context) {
	if s.halt(ctx) {
		return // the runner closes its programs when it returns
	}
	for _, m := range all(s.loaded) {
		s.host.closeProgram(m.record.ID, m.program)
	}
	s.loaded = nil
}
