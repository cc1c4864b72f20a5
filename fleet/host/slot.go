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
	gone chan struct{} // closed when the slot has released everything

	// ending ends when the slot is to end. It ends what the slot has begun, such as a load, and not
	// the message that its runner handles.
	ending context.Context
	end    context.CancelFunc

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

func newSlot(ctx context.Context, h *Host, name string) *slot {
	s := &slot{
		host:    h,
		name:    name,
		wake:    fsm.NewWake(),
		gone:    make(chan struct{}),
		workers: make(map[string]*workerStatus),
	}
	s.ending, s.end = context.WithCancel(ctx)
	return s
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
			w.trouble.wait, w.trouble.until = 0, time.Time{}
		}
	}
	s.asked++
	s.wake.Notify()
	return s.asked
}

// hasTried reports whether the slot has carried out request n, or is ending and never will.
func (s *slot) hasTried(n uint64) bool {
	if s.ending.Err() != nil {
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

// run applies the wanted records until ending ends, and then releases everything. ctx ends only when
// the host has stopped all its slots.
func (s *slot) run(ctx context.Context) {
	defer close(s.gone)
	defer s.release(ctx)
	defer s.end()
	for {
		wait := time.Minute // another host that believed it owned the slot may have held messages
		err := s.tryApply()
		if s.ending.Err() != nil {
			return
		}
		if err != nil {
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
			s.runnerEnded()
		case <-s.ending.Done():
			return
		}
	}
}

// runnerEnded drops a runner that ended by itself, or because its members are to change.
func (s *slot) runnerEnded() {
	r := s.runner
	s.drop(r)
	if r.err != nil && !r.isAbandoned() {
		s.host.log.Warn("hosted worker: consume", "slot", s.name, "error", r.err)
		select {
		case <-time.After(100 * time.Millisecond): // the server may be away
		case <-s.ending.Done():
		}
	}
}

// drop forgets a runner that has ended, and closes the programs that only it used. An abandoned runner
// still uses its programs and closes them when its handler returns: the slot loads new ones.
func (s *slot) drop(r *runner) {
	s.runner = nil
	if r.isAbandoned() {
		s.closeUnused(s.loaded, r.members)
		s.loaded = nil
		return
	}
	s.closeUnused(r.members, s.loaded)
}

// tryApply calls apply and returns a panic as an error.
func (s *slot) tryApply() error {
	s.mu.Lock()
	records, asked := s.records, s.asked
	s.mu.Unlock()
	returned := false
	err := call.Do("slot "+s.name, func() error {
		err := s.apply(s.ending, records, asked)
		returned = true
		return err
	})
	if !returned { // apply panicked; callers wait for this try, so count it
		s.hasApplied(nil, asked)
	}
	return err
}

// apply loads the programs of the wanted records, gives them to a runner, and erases workers that are
// being deleted. It returns all errors, joined. While a runner with other members still handles its
// message, apply has done only a part: the slot calls it again when that runner has ended.
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
			if ctx.Err() == nil { // otherwise err may come from the end of the slot, not from the code
				s.note(rec, m != nil, err)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("worker %s: %w", rec.ID, err))
			}
			if m != nil {
				m, err = s.withCanary(ctx, rec, m)
				next, errs = append(next, m), append(errs, err)
			}
		}
	}
	settled, err := s.swap(ctx, next)
	if errs = append(errs, err); !settled || ctx.Err() != nil {
		return errors.Join(errs...)
	}
	errs = append(errs, s.publishHeld(ctx, next))
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
		if _, _, err := s.host.consumer(ctx, records[0], wanted, true); err != nil {
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
		if ctx.Err() == nil {
			s.codeFailed(rec, err)
			_, _ = s.troubleOf(rec) // its wait begins
		}
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

// swap starts a runner for the members, and first ends a runner that has others. It does not wait for
// the message which that one handles, and reports false until it has ended. Without members it waits, as
// long as a worker that is stopped may take. swap closes the programs that no member uses any more.
func (s *slot) swap(ctx context.Context, next []*member) (settled bool, err error) {
	old, r := s.loaded, s.runner
	if r != nil && !r.halting.Load() && slices.EqualFunc(r.members, next, isSame) {
		return true, nil
	}
	s.loaded = next
	if r != nil {
		s.closeUnused(old, slices.Concat(next, r.members))
		r.halt()
		if len(next) == 0 {
			s.stopRunner(context.WithoutCancel(ctx))
		}
		return len(next) == 0, nil
	}
	s.closeUnused(old, next)
	if len(next) > 0 {
		s.runner, err = s.start(ctx, next)
	}
	return true, err
}

// isSame reports whether two members are the same for a runner.
func isSame(a, b *member) bool {
	sameRecord := a.record.workerUID() == b.record.workerUID() && a.record.revision == b.record.revision
	return sameRecord && a.program == b.program && a.canary == b.canary
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

// stopRunner ends the runner after the message that it handles, within DrainTimeout. The runner gives
// back the messages that wait.
func (s *slot) stopRunner(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.host.cfg.DrainTimeout)
	defer cancel()
	s.runner.stop(ctx)
	s.drop(s.runner)
}

// release ends the runner and closes the programs.
func (s *slot) release(ctx context.Context) {
	if s.runner != nil {
		s.stopRunner(ctx)
	}
	s.closeUnused(s.loaded, nil)
	s.loaded = nil
}
