package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// slot runs a group, or one worker without a group, on the host that owns it. It has the
// programs and the runner that feeds them. One goroutine owns it.
type slot struct {
	host *Host
	name string
	wake fsm.Wake
	quit chan struct{}
	gone chan struct{} // closed when the slot has released everything

	turn      atomic.Uint64             // counts messages
	partition atomic.Pointer[partition] // of the newest runner

	mu       sync.Mutex               // guards the fields from records to answered
	records  []*Record                // the wanted members
	workers  map[string]*workerStatus // by id
	tried    bool
	asked    uint64 // number of the newest request to try failed workers again
	answered uint64 // number of the newest request that the slot has carried out

	// Only the owning goroutine uses the fields below.
	loaded    []*member
	covered   []string // topics that the slot's consumer is known to take
	runner    *runner
	canaryDue time.Duration // after which a canary may end, 0 for none
}

// workerStatus is what a slot knows about one of its workers. The slot's mutex guards it.
type workerStatus struct {
	loaded  bool
	fault   error
	applied uint64 // revision of the record that was tried
	trouble *trouble
}

// codeVersion names the code of one worker.
type codeVersion struct {
	worker     workerUID
	generation int
}

func (r *Record) codeVersion() codeVersion { return codeVersion{r.workerUID(), r.Generation} }

// member is a worker with its program.
type member struct {
	record   *Record
	program  engine.Program
	printer  *printer // of the program
	limits   engine.Limits
	turn     *atomic.Uint64 // the slot's turn when it last got a message; the lowest is next
	counts   *Counts
	redactor *redactor
	web      *web          // sends its requests
	kills    *atomic.Int64 // messages that ended the process of the code
	slow     *atomic.Bool  // its last message took long, or it has had none
	canary   *canary       // of the worker, nil for none
	isCanary bool
	tokens   *rate.Limiter // nil when it has no rate
}

func newSlot(h *Host, name string) *slot {
	return &slot{
		host:    h,
		name:    name,
		wake:    fsm.NewWake(),
		quit:    make(chan struct{}),
		gone:    make(chan struct{}),
		workers: make(map[string]*workerStatus),
	}
}

// want replaces the records that the slot should run, and wakes the slot.
func (s *slot) want(records []*Record) {
	s.mu.Lock()
	s.records = records
	s.mu.Unlock()
	s.wake.Notify()
}

// ask makes the slot try failed workers again. It returns the number of the request for
// [slot.hasTried].
func (s *slot) ask() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.workers {
		if w.trouble != nil {
			w.trouble.until = time.Time{}
		}
	}
	s.asked++
	s.wake.Notify()
	return s.asked
}

// hasTried reports whether the slot has carried out request n, or is ending and never will.
func (s *slot) hasTried(n uint64) bool {
	if isClosed(s.quit) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answered >= n
}

func (s *slot) workerLocked(id string) *workerStatus {
	w := s.workers[id]
	if w == nil {
		w = new(workerStatus)
		s.workers[id] = w
	}
	return w
}

// retryLoad is how long a slot waits before it tries again after an error.
const retryLoad = 5 * time.Second

// run applies the wanted records until quit is closed, and then releases everything. ctx ends
// only when the host has stopped all its slots.
func (s *slot) run(ctx context.Context) {
	defer close(s.gone)
	defer s.release(ctx)
	for {
		wait := time.Minute // another host that believed it owned the slot may have held messages
		if err := s.tryApply(ctx); err != nil {
			if !errors.Is(err, errDeploying) {
				s.host.log.Warn("hosted worker", "slot", s.name, "error", err)
			}
			wait = retryLoad
		} else if s.canaryDue > 0 {
			wait = min(wait, s.canaryDue)
		}
		var ended <-chan struct{}
		if s.runner != nil {
			ended = s.runner.ended
		}
		select {
		case <-s.wake:
		case <-time.After(wait):
		case <-ended:
			s.dropRunner(ctx)
		case <-s.quit:
			return
		}
	}
}

// dropRunner drops a runner that ended by itself. If the runner was abandoned, its handler
// still runs in the programs, and the slot loads new ones.
func (s *slot) dropRunner(ctx context.Context) {
	r := s.runner
	s.runner = nil
	if r.isAbandoned() {
		s.loaded = nil // the runner closes them when it returns
		return
	}
	if r.err != nil {
		s.host.log.Warn("hosted worker: consume", "slot", s.name, "error", r.err)
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
	records, asked := s.records, s.asked
	s.mu.Unlock()
	returned := false
	err := call.Do("slot "+s.name, func() error {
		err := s.apply(ctx, records, asked)
		returned = true
		return err
	})
	if !returned { // apply panicked; callers wait for this try, so count it
		s.hasApplied(nil, asked)
	}
	return err
}

// apply loads the programs of the wanted records, gives them to the runner, and erases
// workers that are being deleted. It returns all errors, joined.
func (s *slot) apply(ctx context.Context, records []*Record, asked uint64) error {
	errs := []error{s.cover(ctx, records)}
	next := make([]*member, 0, len(records))
	var leaving []*Record
	deploying := false
	s.canaryDue = 0
	for _, rec := range records {
		switch {
		case rec.State.leaving():
			leaving = append(leaving, rec)
		case !rec.State.wanted():
		case rec.deploying():
			deploying = true // its creator will set it Running, or undo the creation
		default:
			m, err := s.member(ctx, rec)
			s.note(rec, m != nil, err)
			if err != nil {
				errs = append(errs, fmt.Errorf("worker %s: %w", rec.ID, err))
			}
			if m != nil {
				m, err = s.withCanary(ctx, rec, m)
				next, errs = append(next, m), append(errs, err)
			}
		}
	}
	errs = append(errs, s.swap(ctx, next), s.publishHeld(ctx, next))
	s.hasApplied(records, asked)
	s.host.wake.Notify()
	for _, rec := range leaving {
		errs = append(errs, s.erase(ctx, rec))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if deploying {
		return errDeploying
	}
	return nil
}

// hasApplied notes that records were tried, and a request to try them again. It forgets
// workers that left.
func (s *slot) hasApplied(records []*Record, asked uint64) {
	s.mu.Lock()
	for id, w := range s.workers {
		at := slices.IndexFunc(records, func(r *Record) bool { return r.ID == id })
		switch {
		case records == nil:
		case at < 0:
			delete(s.workers, id)
		case !records[at].State.wanted():
			w.fault, w.trouble = nil, nil
		}
		w.loaded = slices.ContainsFunc(s.loaded, func(m *member) bool { return m.record.ID == id })
	}
	for _, rec := range records {
		s.workerLocked(rec.ID).applied = rec.revision
	}
	s.tried, s.answered = true, asked
	s.mu.Unlock()
	s.host.changed()
}

// erase removes what is stored of a worker that is being deleted.
func (s *slot) erase(ctx context.Context, rec *Record) error {
	var others []*Record
	if rec.Group != "" { // read again, so that a worker created just now keeps its consumer
		var err error
		if others, err = s.host.group(ctx, rec); err != nil {
			return err
		}
	}
	return s.host.erase(ctx, rec, others)
}

// cover updates the consumer of a group whose members have changed, and the consumer of a
// worker whose creation this host finishes.
func (s *slot) cover(ctx context.Context, records []*Record) error {
	records = slices.DeleteFunc(slices.Clone(records), func(r *Record) bool {
		return r.State.leaving() || r.deploying()
	})
	wanted := topics(records)
	finish := slices.ContainsFunc(records, func(r *Record) bool { return r.State == StateDeploying })
	if slices.Equal(wanted, s.covered) || !finish && !isGroup(s.name) {
		return nil
	}
	if len(records) > 0 {
		if _, err := s.host.consumer(ctx, records[0], wanted, true); err != nil {
			return err
		}
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

// note stores the outcome of loading a worker, in the slot and in the worker's record.
func (s *slot) note(rec *Record, loaded bool, err error) {
	s.mu.Lock()
	w := s.workerLocked(rec.ID)
	w.fault, w.loaded = err, w.loaded || loaded
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
	by := Change{By: s.host.cfg.HostID, Note: reason}
	_, writeErr := s.host.records.update(ctx, rec.ID, by, func(r *Record) (bool, error) {
		same := r.UID == rec.UID && r.Digest == rec.Digest && r.State.wanted()
		if !same || r.State == want {
			return false, nil // an operator has stopped or updated it meanwhile; the slot tries again then
		}
		r.State, r.Reason = want, reason
		return true, nil
	})
	if writeErr != nil && !errors.Is(writeErr, ErrNotFound) {
		s.host.log.Warn("hosted worker: note its state", "worker", rec.ID, "state", want, "error", writeErr)
	}
}

// member returns the member for rec. It reuses the loaded program if that has rec's generation, and
// loads the code otherwise. It returns an error when it cannot load the code, or while code that failed
// may not be tried again, together with the old member if that has other code.
func (s *slot) member(ctx context.Context, rec *Record) (*member, error) {
	var old, same *member
	for _, m := range s.loaded {
		switch {
		case m.record.workerUID() != rec.workerUID():
		case m.record.Generation == rec.Generation:
			same = m
		default:
			old = m
		}
	}
	failed, err := s.troubleOf(rec)
	if err != nil {
		return old, err
	}
	if same != nil {
		again := *same // a copy, so that the runner never sees a record change
		again.record = rec
		if rec.Rate != same.record.Rate {
			again.tokens = newTokens(rec.Rate)
		}
		return &again, nil
	}
	lines := s.host.printer(rec)
	program, err := s.host.load(ctx, rec, !failed, lines) // code that failed is loaded before its first message
	if err != nil {
		s.codeFailed(rec, err)
		return old, err
	}
	return s.newMember(rec, program, lines), nil
}

func (s *slot) newMember(rec *Record, program engine.Program, lines *printer) *member {
	means, _ := s.host.granted(rec) // the load has looked
	m := &member{
		record:   rec,
		program:  program,
		printer:  lines,
		limits:   s.host.limits(rec),
		turn:     new(atomic.Uint64),
		counts:   s.host.counts(rec),
		redactor: means.redactor,
		web:      means.web,
		kills:    new(atomic.Int64),
		slow:     new(atomic.Bool),
		tokens:   newTokens(rec.Rate),
	}
	m.slow.Store(true)
	return m
}

// swap gives the runner its members between two messages and closes the programs that no
// member uses any more. Without members it ends the runner.
func (s *slot) swap(ctx context.Context, next []*member) error {
	old := s.loaded
	s.loaded = next
	if s.runner != nil && len(next) > 0 && !otherRate(old, next) && s.runner.swap(next) {
		s.closeUnused(old, next)
		return nil
	}
	if s.haltRunner(ctx) {
		// The abandoned runner still uses its programs and closes them when it returns. The next
		// round loads new ones. These are programs that the runner never had.
		s.closeUnused(next, old)
		s.loaded = nil
		s.wake.Notify()
		return nil
	}
	s.closeUnused(old, next)
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

// otherRate reports whether a member has another rate than before. Then a new runner begins:
// messages may wait in the old one for hours.
func otherRate(old, next []*member) bool {
	return slices.ContainsFunc(old, func(m *member) bool {
		return slices.ContainsFunc(next, func(n *member) bool { return n.program == m.program && n.tokens != m.tokens })
	})
}

// closeUnused closes the programs of members that others do not use.
func (s *slot) closeUnused(members, others []*member) {
	others = withCanaries(others)
	for _, m := range withCanaries(members) {
		if !slices.ContainsFunc(others, func(o *member) bool { return o.program == m.program }) {
			s.host.closeProgram(m.record.ID, m.program)
		}
	}
}

// haltRunner ends the runner after the message that it handles. The runner gives back the
// messages that wait. haltRunner reports whether the runner was abandoned.
func (s *slot) haltRunner(ctx context.Context) (abandoned bool) {
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
	if s.haltRunner(ctx) {
		return // the runner closes its programs when it returns
	}
	s.closeUnused(s.loaded, nil)
	s.loaded = nil
}
