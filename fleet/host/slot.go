package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/internal/safe"
)

// slot is a group, or a worker that is in none, on the host that it belongs to:
// the programs, and the runner that feeds them. One goroutine owns it.
type slot struct {
	host *Host
	name string
	wake chan struct{} // of size 1
	quit chan struct{}
	gone chan struct{} // closed when the slot has let go of everything

	mu      sync.Mutex // guards what follows
	records []*Record  // what is wanted
	faults  map[string]error
	applied map[string]uint64 // revision of each record that was tried
	tried   bool
	asks    uint64          // how often it was asked to try again what failed
	heard   uint64          // and which of those it has done
	status  map[string]bool // ids of members whose program is loaded

	turn atomic.Uint64 // counts messages

	// The owner's alone.
	loaded  []*member
	covered []string // topics that its consumer is known to take
	runner  *runner
}

// member is a worker with its program.
type member struct {
	record  *Record
	program engine.Program
	limits  engine.Limits
	turn    *atomic.Uint64 // when it last handled a message: the least recent one is next
	counts  *Counts
}

func newSlot(h *Host, name string) *slot {
	return &slot{host: h, name: name, wake: make(chan struct{}, 1), quit: make(chan struct{}), gone: make(chan struct{}),
		faults: make(map[string]error), applied: make(map[string]uint64), status: make(map[string]bool)}
}

// want says what the slot is to be.
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

// ask has the slot try again what failed; [slot.hasTried] says when it has done
// what was asked.
func (s *slot) ask() uint64 {
	s.mu.Lock()
	s.asks++
	n := s.asks
	s.mu.Unlock()
	s.nudge()
	return n
}

// hasTried reports whether ask number n was done, or never will be.
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

// retryLoad is how long a slot waits before it tries again what failed.
const retryLoad = 5 * time.Second

// run is the slot's life. ctx ends only when the host's time to drain is over.
func (s *slot) run(ctx context.Context) {
	defer close(s.gone)
	defer s.release(ctx)
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	for {
		retry.Reset(time.Minute) // a host that thought the slot its own may have held something
		if err := s.apply(ctx); err != nil {
			if !errors.Is(err, errDeploying) {
				s.host.log.Warn("hosted worker", "slot", s.name, "err", err)
			}
			retry.Reset(retryLoad)
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

// again lets go of a runner that ended by itself. Where it was left behind the
// programs are loaded anew: theirs still runs, somewhere.
func (s *slot) again(ctx context.Context) {
	r := s.runner
	s.runner = nil
	if r.left() {
		s.loaded = nil // the runner closes them when it returns
		return
	}
	if r.err != nil {
		s.host.log.Warn("hosted worker: consume", "slot", s.name, "err", r.err)
		select {
		case <-time.After(100 * time.Millisecond): // a server that is away
		case <-s.quit:
		case <-ctx.Done():
		}
	}
}

// apply makes the slot what it is wanted to be.
func (s *slot) apply(ctx context.Context) error {
	s.mu.Lock()
	records, asks := s.records, s.asks
	s.mu.Unlock()
	var errs []error
	next := make([]*member, 0, len(records))
	var leaving []*Record
	again := false
	if err := s.cover(ctx, records); err != nil {
		errs = append(errs, err)
	}
	for _, rec := range records {
		if rec.State == PhaseDeleting || rec.State == PhaseDeleted {
			leaving = append(leaving, rec)
		}
		if !rec.State.wanted() {
			continue
		}
		if rec.deploying() {
			again = true // whoever creates it is about to set it Running, or to undo it
			continue
		}
		m, err := s.member(ctx, rec)
		s.note(rec, m != nil, err)
		if err != nil {
			errs = append(errs, fmt.Errorf("worker %s: %w", rec.ID, err))
		}
		if m != nil {
			next = append(next, m)
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
		if rec.Group != "" { // asked for anew: one that was just created is not to lose its consumer
			others, err = s.host.group(ctx, rec)
		}
		if err == nil {
			err = s.host.bury(ctx, rec, others)
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

// cover sees to the consumer of a group whose members have changed, and to that
// of a creation that is to be finished.
func (s *slot) cover(ctx context.Context, records []*Record) error {
	records = slices.DeleteFunc(slices.Clone(records), func(r *Record) bool {
		return r.State == PhaseDeleting || r.State == PhaseDeleted || r.deploying()
	})
	wanted := topics(records)
	finish := slices.ContainsFunc(records, func(r *Record) bool { return r.State == PhaseDeploying })
	if slices.Equal(wanted, s.covered) || !finish && !strings.HasPrefix(s.name, "g-") {
		return nil
	}
	if err := s.host.cover(ctx, s.name, records); err != nil {
		return err
	}
	s.covered = wanted
	return nil
}

// deploying reports whether whoever creates r may still be at it.
func (r *Record) deploying() bool {
	return r.State == PhaseDeploying && time.Since(r.Changed.At) < deployTime
}

// deployTime is how long a creation may take before the slot's host finishes it.
const deployTime = 30 * time.Second

var errDeploying = errors.New("a worker is being created")

// note keeps what came of loading a worker, here and in its record.
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
	want, reason := PhaseRunning, ""
	if err != nil {
		want, reason = PhaseFailed, clip(err.Error(), 1000)
	}
	if rec.State == want {
		return // of several reasons the first one stands, or each would be a change to act upon
	}
	_, writeErr := s.host.records.update(ctx, rec.ID, Change{By: s.host.cfg.HostID, Note: reason}, func(r *Record) (bool, error) {
		// Somebody may have stopped or updated it meanwhile: then there will be
		// another try.
		if r.UID != rec.UID || !r.State.wanted() || r.Digest != rec.Digest || r.State == want {
			return false, nil
		}
		r.State, r.Reason = want, reason
		return true, nil
	})
	if writeErr != nil && !errors.Is(writeErr, ErrNotFound) {
		s.host.log.Warn("hosted worker: note its phase", "worker", rec.ID, "phase", want, "err", writeErr)
	}
}

// member returns rec's program, the one that is loaded when it is the right one.
// When the right one cannot be loaded it returns the error, and the old one if
// there is one.
func (s *slot) member(ctx context.Context, rec *Record) (*member, error) {
	var old *member
	for _, m := range s.loaded {
		if m.record.ID == rec.ID && m.record.UID == rec.UID {
			old = m
		}
	}
	if old != nil && old.record.Generation == rec.Generation {
		// A copy, so that the runner never sees a record change.
		same := *old
		same.record = rec
		return &same, nil
	}
	program, err := s.host.load(ctx, rec)
	if err != nil {
		return old, err
	}
	return &member{record: rec, program: program, turn: new(atomic.Uint64), limits: s.host.limits(rec), counts: s.host.counts(rec)}, nil
}

// swap gives the runner its members at a message boundary, and closes the
// programs that are no longer among them. Without members there is no runner.
func (s *slot) swap(ctx context.Context, next []*member) error {
	old := s.loaded
	s.loaded = next
	closeOld := func() {
		for _, m := range old {
			if !slices.ContainsFunc(next, func(n *member) bool { return n.program == m.program }) {
				_ = m.program.Close()
			}
		}
	}
	if s.runner != nil && len(next) > 0 {
		if s.runner.swap(next) {
			closeOld()
			return nil
		}
	}
	if s.halt(ctx) {
		// Its programs are still in use, and closed when it returns: the next
		// round loads them anew. Those that it never had are closed here.
		for _, m := range next {
			if !slices.ContainsFunc(old, func(o *member) bool { return o.program == m.program }) {
				_ = m.program.Close()
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

// halt ends the runner after the message that it handles, and gives back those
// that wait. It reports whether the runner had to be left behind.
func (s *slot) halt(ctx context.Context) (left bool) {
	r := s.runner
	if r == nil {
		return false
	}
	s.runner = nil
	ctx, cancel := context.WithTimeout(ctx, s.host.cfg.DrainTimeout)
	defer cancel()
	r.stop(ctx)
	return r.left()
}

// release lets go of everything.
func (s *slot) release(ctx context.Context) {
	if s.halt(ctx) {
		return // the runner closes its programs when it returns
	}
	for _, m := range s.loaded {
		_ = m.program.Close()
	}
	s.loaded = nil
}

// giveBack publishes again, for this group, what was held for want of a member
// that there is now.
func (s *slot) giveBack(ctx context.Context, members []*member) error {
	if !strings.HasPrefix(s.name, "g-") || len(members) == 0 {
		return nil
	}
	l := s.host.letters
	err := l.each(ctx, l.held+s.name, 1, func(d *DeadLetter) (bool, error) {
		if !slices.ContainsFunc(members, func(m *member) bool { return matches(m.record.Topic, d.Topic) }) {
			return true, nil
		}
		return true, l.redrive(ctx, d, s.name)
	})
	if err != nil {
		return fmt.Errorf("group %s: messages that were held: %w", s.name, err)
	}
	return nil
}

// start attaches to the consumer and begins to handle messages.
func (s *slot) start(ctx context.Context, members []*member) (*runner, error) {
	consumer, err := s.host.consumer(ctx, s.name, members[0].record.Stream)
	if err != nil {
		return nil, err
	}
	fence, err := s.host.states.claim(ctx, s.name, s.host.cfg.HostID)
	if err != nil {
		return nil, err
	}
	r := &runner{slot: s, host: s.host, consumer: consumer, fence: fence, sem: make(chan struct{}, 1),
		ended: make(chan struct{}), abandoned: make(chan struct{}), prefetch: s.host.cfg.Prefetch}
	r.members.Store(&members)
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	s.host.running.Add(2)
	go r.watch()
	safe.Go("slot "+s.name, r.consume, nil, r.end)
	return r, nil
}

// runner takes messages from a consumer and hands them to programs, one at a
// time.
type runner struct {
	slot     *slot
	host     *Host
	consumer jetstream.Consumer
	fence    uint64
	members  atomic.Pointer[[]*member]
	sem      chan struct{} // held while a message is handled: members change only without it
	prefetch int

	ctx    context.Context // of the handlers; ends when the runner is left behind
	cancel context.CancelCauseFunc

	began   atomic.Int64 // when the handler that runs was called, in nanoseconds; 0 when none does
	limit   atomic.Int64 // and its time limit
	message atomic.Pointer[delivery]

	halting   atomic.Bool
	iterator  atomic.Pointer[iterator]
	ended     chan struct{}
	err       error         // why, once ended is closed
	abandoned chan struct{} // closed when its handler did not return
	leave     sync.Once
}

type iterator struct{ jetstream.MessagesContext }

// delivery is a message that is being handled.
type delivery struct {
	msg    jetstream.Msg
	meta   *jetstream.MsgMetadata
	id     string
	member *member
	tries  tries        // with this delivery
	beat   atomic.Int64 // when the server last heard of it, in nanoseconds
	state  *handle
	cancel context.CancelCauseFunc
	failed atomic.Bool // the watch has answered it
}

// end is called when the goroutine has returned, in time or long after it was
// left behind.
func (r *runner) end(err error) {
	inTime := false
	r.leave.Do(func() {
		inTime = true
		r.err = err
		close(r.ended)
	})
	if !inTime {
		// What it holds is nobody else's any more.
		for _, m := range *r.members.Load() {
			_ = m.program.Close()
		}
	}
	r.cancel(nil)
	r.host.running.Done()
}

func (r *runner) left() bool {
	select {
	case <-r.abandoned:
		return true
	default:
		return false
	}
}

// swap changes the members between two messages. It reports false when the
// runner is over or was left behind.
func (r *runner) swap(next []*member) bool {
	select {
	case r.sem <- struct{}{}:
		r.members.Store(&next)
		<-r.sem
		return true
	case <-r.ended:
	case <-r.abandoned:
	}
	return false
}

// stop ends the runner after the message that it handles, or with ctx.
func (r *runner) stop(ctx context.Context) {
	r.halting.Store(true)
	if it := r.iterator.Load(); it != nil {
		it.Drain()
	}
	select {
	case <-r.ended:
		return
	case <-r.abandoned:
		return
	case <-ctx.Done():
	}
	r.cancel(ErrDetached)
	select {
	case <-r.ended:
	case <-r.abandoned:
	case <-time.After(time.Second):
		r.giveUp()
	}
}

// giveUp leaves the runner's goroutine behind.
func (r *runner) giveUp() {
	r.cancel(ErrDetached)
	r.leave.Do(func() {
		close(r.abandoned)
		close(r.ended)
		if it := r.iterator.Load(); it != nil {
			it.Stop()
		}
		r.host.log.Warn("hosted worker: its handler does not return and is left behind", "slot", r.slot.name)
	})
}

// consume handles messages until it is told to stop.
func (r *runner) consume() error {
	for !r.halting.Load() {
		it, err := r.consumer.Messages(jetstream.PullMaxMessages(r.prefetch), jetstream.PullExpiry(30*time.Second))
		if err != nil {
			return err
		}
		r.iterator.Store(&iterator{it})
		if r.halting.Load() {
			it.Drain()
		}
		err = r.drainInto(it)
		it.Stop()
		if err != nil || r.left() {
			return err
		}
	}
	return nil
}

// drainInto handles what it has. nil means that the runner halts, or that it
// wants to prefetch less or more.
func (r *runner) drainInto(it jetstream.MessagesContext) error {
	slower := false
	quick := 0 // messages in a row
	for {
		m, err := it.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("consumer %s: %w", r.slot.name, err)
		}
		if r.halting.Load() || slower {
			_ = m.Nak() // not handled, and no attempt
			continue
		}
		began := time.Now()
		r.sem <- struct{}{}
		r.one(m)
		<-r.sem
		if r.left() {
			return nil
		}
		// What waits here must have its turn well before the server asks for it.
		if took := time.Since(began); took*time.Duration(r.prefetch) > r.host.cfg.AckWait/2 && r.prefetch > 1 {
			r.prefetch = max(1, int(r.host.cfg.AckWait/4/took))
			slower = true
			it.Drain()
		} else if quick++; r.prefetch < r.host.cfg.Prefetch && quick > 8*r.prefetch && took*time.Duration(8*r.prefetch) < r.host.cfg.AckWait/4 {
			r.prefetch = min(r.host.cfg.Prefetch, 4*r.prefetch)
			it.Drain() // what waits is handled, and then more is asked for at a time
		}
	}
}

// one handles one message, and answers it.
func (r *runner) one(m jetstream.Msg) {
	meta, err := m.Metadata()
	if err != nil {
		r.host.log.Error("hosted worker: a message without metadata", "slot", r.slot.name, "err", err)
		return
	}
	header := m.Headers()
	if to := header.Get(HeaderFor); to != "" && to != r.slot.name {
		_ = m.Ack() // redriven for somebody else
		return
	}
	d := &delivery{msg: m, meta: meta, id: meta.Stream + ":" + strconv.FormatUint(meta.Sequence.Stream, 10)}
	d.member = r.pick(m.Subject())
	ctx := r.ctx
	if d.member == nil {
		r.answer(r.host.hold(ctx, r.slot.name, d), m.Ack, d)
		return
	}
	d.tries = tries{Begun: 1}
	if meta.NumDelivered > 1 {
		done, was, err := r.before(ctx, d)
		switch {
		case err != nil:
			_ = m.NakWithDelay(r.host.cfg.RetryBase)
			return
		case done:
			_ = m.Ack()
			return
		case was.Begun-was.Failed > r.host.cfg.MaxUnanswered:
			r.bury(d, was.Failed, fmt.Errorf("begun %d times and answered %d times: the hosts that had it did not live to say what came of it", was.Begun, was.Failed))
			return
		}
		// A delivery counts once a handler is about to be called. What waited
		// here and was given back was no attempt, however often.
		d.tries = tries{Begun: was.Begun + 1, Failed: was.Failed}
		if err := r.host.states.note(ctx, r.slot.name, messageKey(d), d.tries); err != nil {
			_ = m.NakWithDelay(r.host.cfg.RetryBase)
			return
		}
	}
	attempt := d.tries.Failed + 1
	if size := len(m.Data()); size > r.host.cfg.MaxMessage {
		r.bury(d, attempt, fmt.Errorf("it has %d bytes, more than the %d that a handler gets", size, r.host.cfg.MaxMessage))
		return
	}
	err = r.call(ctx, d, attempt, header)
	if d.failed.Load() {
		return // the watch has answered
	}
	if err == nil {
		d.member.counts.Succeeded.Add(1)
		_ = m.Ack() // one that is lost is delivered again, and known to be done
		return
	}
	r.fail(d, attempt, err)
}

// before looks up what earlier deliveries of a message came to.
func (r *runner) before(ctx context.Context, d *delivery) (done bool, was tries, err error) {
	key := messageKey(d)
	if done, err = r.host.states.done(ctx, r.slot.name, key); err == nil && !done {
		was, err = r.host.states.tries(ctx, r.slot.name, key)
	}
	return done, was, err
}

// messageKey names a message inside its slot: by its number and by when the
// stream got it, because a worker, or the stream itself, can be made anew under
// its old name, and the numbers begin anew with it.
func messageKey(d *delivery) string {
	return strconv.FormatUint(d.meta.Sequence.Stream, 10) + "-" + strconv.FormatInt(d.meta.Timestamp.UnixNano(), 36)
}

// pick returns the member that is to handle a message on subject: of those whose
// topic it is, the one that has waited longest.
func (r *runner) pick(subject string) *member {
	var found *member
	for _, m := range *r.members.Load() {
		if matches(m.record.Topic, subject) && (found == nil || m.turn.Load() < found.turn.Load()) {
			found = m
		}
	}
	if found != nil {
		found.turn.Store(r.slot.turn.Add(1))
	}
	return found
}

// call runs the handler, publishes what it made and writes its state.
func (r *runner) call(ctx context.Context, d *delivery, attempt int, header nats.Header) error {
	rec := d.member.record
	ctx, d.cancel = context.WithCancelCause(ctx)
	defer d.cancel(nil)
	d.state = &handle{states: r.host.states, record: rec, slot: r.slot.name, fence: r.fence}
	now := time.Now().UnixNano()
	d.beat.Store(now)
	r.message.Store(d)
	r.limit.Store(int64(d.member.limits.Time))
	r.began.Store(now)
	outputs, err := d.member.program.Handle(ctx, &engine.Message{
		Worker: rec.ID, ID: d.id, Topic: d.msg.Subject(), Attempt: attempt, Fence: r.fence, Header: header, Data: d.msg.Data(),
	}, d.state)
	if cause := context.Cause(ctx); cause != nil && (errors.Is(cause, ErrDetached) || !errors.Is(err, engine.ErrLimit)) {
		err = cause // why it was ended says more than what it made of that
	}
	if err == nil && (len(outputs) > 0 || len(d.state.order) > 0) {
		err = r.effects(ctx, d, outputs)
		if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrDetached) {
			err = cause // no attempt: the server is away, or the message is somebody else's
		}
	}
	r.began.Store(0)
	r.message.Store(nil)
	return err
}

// effects publishes, and then writes state. In this order: what is published
// twice is dropped as a duplicate, and once the state says that a message is
// done nothing of it is done again.
func (r *runner) effects(ctx context.Context, d *delivery, outputs []engine.Output) error {
	for i, o := range outputs {
		topic := o.Topic
		if topic == "" {
			topic = d.member.record.OutputTopic
		}
		if topic == "" {
			return engine.Reject(fmt.Sprintf("output %d: it has no topic, and the worker has no output topic", i))
		}
		m := nats.NewMsg(topic)
		m.Data = o.Data
		for name, values := range o.Header {
			if !strings.HasPrefix(strings.ToLower(name), "nats-") {
				m.Header[name] = values
			}
		}
		id := r.slot.name + ":" + d.meta.Stream + ":" + messageKey(d) + ":" + strconv.Itoa(i)
		if _, err := r.host.js.PublishMsg(ctx, m, jetstream.WithMsgID(id)); err != nil {
			return fmt.Errorf("publish output %d to %s: %w", i, topic, err)
		}
	}
	return d.state.commit(ctx, messageKey(d))
}

// fail has a message tried again, or gives it up.
func (r *runner) fail(d *delivery, attempt int, err error) {
	var rejected *engine.RejectError
	switch {
	case errors.Is(err, ErrDetached), errors.Is(err, ErrStale):
		// It is not the handler's fault, and no attempt. Who took over gets it.
		_ = d.msg.Nak()
		if errors.Is(err, ErrStale) {
			r.halting.Store(true) // to claim the fence again, if the slot is still ours
			if it := r.iterator.Load(); it != nil {
				it.Drain()
			}
		}
		return
	case errors.As(err, &rejected) || attempt >= r.host.cfg.attempts():
		r.bury(d, attempt, err)
		return
	}
	d.member.counts.Failed.Add(1)
	delay := r.host.cfg.RetryBase << min(attempt-1, 20)
	if delay > r.host.cfg.RetryMax || delay <= 0 {
		delay = r.host.cfg.RetryMax
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), 5*time.Second)
	defer cancel()
	if err := r.host.states.note(ctx, r.slot.name, messageKey(d), tries{Begun: d.tries.Begun, Failed: attempt}); err != nil {
		r.host.log.Warn("hosted worker: note a failure", "worker", d.member.record.ID, "message", d.id, "err", err)
	}
	r.host.log.Debug("hosted worker: message failed", "worker", d.member.record.ID, "message", d.id, "attempt", attempt, "err", err)
	_ = d.msg.NakWithDelay(delay)
}

// bury makes a dead letter of a message, and ends the original once the server
// has the letter.
func (r *runner) bury(d *delivery, attempt int, why error) {
	rec := d.member.record
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), 10*time.Second)
	defer cancel()
	err := r.host.letters.put(ctx, r.host.letters.dead+rec.ID, r.slot.name+":"+messageKey(d), &DeadLetter{
		Worker: rec.ID, Reason: why.Error(), Topic: d.msg.Subject(), Message: d.id, Attempts: attempt, Digest: rec.Digest,
		Header: d.msg.Headers(), Data: d.msg.Data(),
	})
	if err == nil {
		d.member.counts.Failed.Add(1)
		d.member.counts.DeadLetters.Add(1)
		r.host.log.Warn("hosted worker: dead letter", "worker", rec.ID, "message", d.id, "attempts", attempt, "err", why)
	}
	r.answer(err, func() error { return d.msg.TermWithReason(clip(strings.Map(printable, why.Error()), 200)) }, d)
}

// answer answers a message whose fate is stored elsewhere, or has it come again
// when it could not be.
func (r *runner) answer(err error, ok func() error, d *delivery) {
	if err == nil {
		_ = ok()
		return
	}
	r.host.log.Warn("hosted worker: message", "slot", r.slot.name, "message", d.id, "err", err)
	_ = d.msg.NakWithDelay(r.host.cfg.RetryBase)
}

// watch keeps the server and the time limit satisfied while handlers run.
func (r *runner) watch() {
	defer r.host.running.Done()
	period := min(max(r.host.cfg.AckWait/6, 10*time.Millisecond), 250*time.Millisecond)
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.look(time.Now())
		case <-r.ended:
			return
		}
	}
}

// patience is what a handler gets to return in once its context has ended.
const patience = 2 * time.Second

func (r *runner) look(now time.Time) {
	began := r.began.Load()
	d := r.message.Load()
	if began == 0 || d == nil {
		return
	}
	cfg := &r.host.cfg
	since := time.Duration(now.UnixNano() - d.beat.Load())
	switch {
	case since > cfg.AckWait*3/4 || !r.host.members.held():
		// The message may be somebody else's by now: this handler is over.
		d.cancel(ErrDetached)
		if since > cfg.AckWait+patience {
			d.failed.Store(true)
			r.giveUp()
		}
		return
	case since > cfg.AckWait/4:
		r.heartbeat(d)
	}
	ran := time.Duration(now.UnixNano() - began)
	limit := time.Duration(r.limit.Load())
	if ran > limit {
		d.cancel((engine.Limits{Time: limit}).TimeLimit())
	}
	if ran > limit+patience {
		// It ignores its context. The message is answered for it, and it gets
		// nothing more: its state is never written.
		if d.failed.CompareAndSwap(false, true) {
			r.fail(d, d.tries.Failed+1, fmt.Errorf("%w, and its handler does not return", (engine.Limits{Time: limit}).TimeLimit()))
			r.giveUp()
		}
	}
}

// heartbeat tells the server that the message is being handled, and counts only
// once the server has it.
func (r *runner) heartbeat(d *delivery) {
	sent := time.Now()
	if d.msg.InProgress() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.host.cfg.AckWait/4)
	defer cancel()
	if r.host.nc.FlushWithContext(ctx) == nil {
		d.beat.Store(sent.UnixNano())
	}
}

// matches reports whether subject matches pattern, by the rules of NATS.
func matches(pattern, subject string) bool {
	for {
		p, restP, moreP := strings.Cut(pattern, ".")
		t, restS, moreS := strings.Cut(subject, ".")
		switch {
		case p == ">":
			return t != ""
		case p != "*" && p != t:
			return false
		case !moreP || !moreS:
			return moreP == moreS
		}
		pattern, subject = restP, restS
	}
}
