package workflow

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/internal/lanes"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Hooks runs the hooks of every workflow that is registered when it is called. It
// returns nil when ctx ends, and ErrClosed after Close. One process should run it:
//
//	app.Lead("hooks", lease, mgr.Hooks)
//
// The context of each call ends with ctx; Hooks waits a second for a call that ignores
// that. When the server is away or a journal cannot be used, Hooks logs that once, keeps
// trying, and goes on where it was.
func (m *Manager) Hooks(ctx context.Context) error {
	if m.isClosed() {
		return fmt.Errorf("hooks: %w", ErrClosed)
	}
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(m.alive, cancel)
	defer stop()
	var hooks sync.WaitGroup
	for _, r := range m.all() {
		for i := range r.hooks {
			hooks.Go(func() { m.runHook(own, r, &r.hooks[i]) })
		}
	}
	<-own.Done()
	hooks.Wait()
	if ctx.Err() == nil {
		return fmt.Errorf("hooks: %w", ErrClosed)
	}
	return nil
}

// hookPause is the pause before a hook is run again after it could not be.
var hookPause = worker.Backoff{Min: 50 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.2}

// runHook runs a hook until ctx ends.
func (m *Manager) runHook(ctx context.Context, r *registration, h *Hook) {
	said, memory := "", &hookMemory{stuck: make(map[string]*call.Call)}
	for n := 1; ctx.Err() == nil; n++ {
		began := time.Now()
		err := m.hookSession(ctx, r, h, memory)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > hookPause.Max {
			n, said = 1, ""
		}
		if err != nil && err.Error() != said {
			said = err.Error()
			m.log.Warn("cannot run a hook; trying again", "workflow", r.workflow, "hook", h.Name, "error", err)
		}
		_ = hookPause.Sleep(ctx, n)
	}
}

const (
	// keyRoom is how many reactions of one entity a session holds in memory, and
	// queueRoom how many of all. The rest stays in the journal.
	keyRoom, queueRoom = 16, 1 << 14
	// saveEvery is how often a session stores its progress: what a crash repeats.
	saveEvery = time.Second
	// maxStuck is how many calls of a hook may ignore the end of their context before
	// no others are made.
	maxStuck = 1024
	// maxSpans is how many spans of missing writes a hook remembers.
	maxSpans = 512
)

// session is one run of a hook, from one state on.
type session struct {
	m     *Manager
	r     *registration
	h     *Hook
	from  *bucket // the journal
	store *hookStore
	queue *lanes.Queue[*entry]
	room  chan struct{} // of size 1: a reaction was ended
	fail  context.CancelCauseFunc

	mu      sync.Mutex // guards the fields below
	state   *hookState
	changed bool
	held    map[string]int        // reactions of a key in the queue
	behind  map[string]uint64     // the last reaction of a key that was left in the journal
	stuck   map[string]*call.Call // calls that ignore the end of their context, of earlier sessions too
}

// hookSession runs a hook until ctx ends or something fails that is not the hook's.
func (m *Manager) hookSession(ctx context.Context, r *registration, h *Hook, memory *hookMemory) error {
	if err := r.bucket.checkJournal(ctx); err != nil {
		return err
	}
	store, err := r.hookStore(ctx, h.Name)
	if err != nil {
		return err
	}
	s := &session{m: m, r: r, h: h, from: r.bucket.journal(), store: store, queue: lanes.New[*entry](0), room: make(chan struct{}, 1),
		held: make(map[string]int), behind: make(map[string]uint64), stuck: memory.stuck}
	if err := s.begin(ctx, memory.state); err != nil {
		return err
	}
	memory.state = s.state
	own, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s.fail = fail
	var parts sync.WaitGroup
	parts.Go(func() { fail(s.read(own)) })
	parts.Go(func() { s.keep(own) })
	lanes.Runner[*entry]{
		Workers: h.Concurrency, Attempts: h.Attempts, Backoff: h.Backoff,
		Handle: s.handle, Failed: s.failed, Dead: s.dead, Done: func(t *lanes.Task[*entry]) { s.done(own, t) },
	}.Run(own, s.queue)
	err = context.Cause(own)
	fail(nil)
	s.queue.Close()
	parts.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	if saved := s.save(last); err == nil || ctx.Err() != nil {
		err = saved
	}
	return err
}

// read reads the journal and queues what the hook wants, until ctx ends.
func (s *session) read(ctx context.Context) error {
	attempt, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	stream, err := s.r.bucket.js.Stream(attempt, s.from.stream)
	if err != nil {
		return err
	}
	s.mu.Lock()
	at := s.state.Progress.Floor()
	s.mu.Unlock()
	consumer, err := stream.CreateConsumer(attempt, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: at + 1,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: s.from.pace.Of(time.Minute),
	})
	if err != nil {
		return err
	}
	info := consumer.CachedInfo()
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if s.from.nc.IsConnected() {
			_ = stream.DeleteConsumer(last, info.Name) // otherwise the server does it later
		}
	}()
	p, err := s.from.pull(info.Name, info.NumPending, nil)
	if err != nil {
		return err
	}
	stopped := context.AfterFunc(ctx, p.stop)
	defer func() {
		if stopped() {
			p.stop()
		}
	}()
	for n := uint64(1); ; n++ {
		msg, meta, err := p.next()
		if err != nil {
			return fmt.Errorf("read %s: %w", s.from.stream, err)
		}
		if meta.Sequence.Consumer != n {
			return fmt.Errorf("read %s: got message %d, want %d", s.from.stream, meta.Sequence.Consumer, n)
		}
		e := &entry{key: strings.TrimPrefix(msg.Subject, "$KV."+s.r.name+"."), revision: meta.Sequence.Stream, at: meta.Timestamp, header: msg.Header, data: msg.Data}
		if e.revision > at+1 {
			s.missed(at+1, e.revision-1)
		}
		at = e.revision
		for s.queue.Len() >= queueRoom {
			select {
			case <-s.room:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if add, failed := s.next(e); add {
			if err := s.queue.Add(ctx, e.key, e, failed); err != nil {
				return err
			}
		}
	}
}

// missed notes that the journal does not have some writes.
func (s *session) missed(first, last uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Progress.Skip(first, last)
	s.state.Missing.Skip(first, last)
	if s.state.Missing.Gaps() > maxSpans { // rather too many than too few
		s.state.Missing.Raise(first)
	}
	s.changed = true
}

// next decides what becomes of an entry: it is queued, left in the journal for later,
// or no concern of the hook's.
func (s *session) next(e *entry) (add bool, failed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = true
	if s.state.Progress.Has(e.revision) {
		return false, 0
	}
	if !s.h.wants(s.r, e) {
		s.doneLocked(e)
		return false, 0
	}
	if s.behind[e.key] != 0 || s.held[e.key] >= keyRoom {
		s.behind[e.key] = e.revision
		return false, 0
	}
	s.held[e.key]++
	return true, s.state.Failed[e.revision]
}

func (s *session) doneLocked(e *entry) {
	s.state.Progress.Done(e.revision)
	delete(s.state.Failed, e.revision)
	if e.revision > s.state.Mark {
		s.state.Mark, s.state.MarkedAt = e.revision, e.at
	}
	s.changed = true
}

// handle makes one call of the hook.
func (s *session) handle(ctx context.Context, t *lanes.Task[*entry]) error {
	e := t.Value
	s.mu.Lock()
	maps.DeleteFunc(s.stuck, func(_ string, c *call.Call) bool { ended, _ := c.Ended(); return ended })
	earlier, many := s.stuck[e.key], len(s.stuck) >= maxStuck
	on, known := e.predecessor()
	gap := known && on > 0 && s.state.Missing.Has(on)
	s.mu.Unlock()
	if earlier != nil {
		return lanes.Uncounted(errors.New("the call before has not returned"))
	}
	if many {
		return lanes.Uncounted(fmt.Errorf("%d calls have not returned", maxStuck))
	}
	re := s.r.reaction(e, func(rev uint64) (*entry, error) { return s.from.at(ctx, rev) })
	re.Attempt, re.Gap = t.Failed+1, gap
	c, err := s.h.call(ctx, re)
	if c != nil {
		s.mu.Lock()
		s.stuck[e.key] = c
		s.mu.Unlock()
	}
	return err
}

// call calls the hook. It returns the call if it did not end in time.
func (h *Hook) call(ctx context.Context, re Reaction) (*call.Call, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.Timeout, fmt.Errorf("the hook's timeout of %v", h.Timeout))
	defer cancel()
	c := call.Start("hook "+h.Name, func() error { return h.Do(ctx, re) })
	err := c.Wait(ctx.Done(), time.Second)
	if ended, _ := c.Ended(); !ended {
		return c, err
	}
	return nil, err
}

func (s *session) failed(_ context.Context, t *lanes.Task[*entry], why error) {
	s.m.log.Info("a hook failed; trying again", "workflow", s.r.workflow, "hook", s.h.Name, "key", t.Key, "revision", t.Value.revision, "failures", t.Failed, "error", why)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Failed == nil {
		s.state.Failed = make(map[uint64]int)
	}
	s.state.Failed[t.Value.revision] = t.Failed
	s.changed = true
}

func (s *session) dead(ctx context.Context, t *lanes.Task[*entry], why error) error {
	e := t.Value
	s.m.log.Warn("a hook has given up a reaction", "workflow", s.r.workflow, "hook", s.h.Name, "key", t.Key, "revision", e.revision, "attempts", t.Failed, "error", why)
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	return s.store.bury(ctx, DeadLetter{
		ID: s.r.reaction(e, func(uint64) (*entry, error) { return nil, ErrEntityNotFound }).ID, Hook: s.h.Name,
		Key: e.key, Revision: e.revision, Attempts: t.Failed, Error: why.Error(), At: time.Now().UTC(),
	})
}

// done ends a reaction, and queues those that were left in the journal when it was the
// last of its key.
func (s *session) done(ctx context.Context, t *lanes.Task[*entry]) {
	s.mu.Lock()
	s.doneLocked(t.Value)
	s.held[t.Key]--
	fetch := s.held[t.Key] == 0 && s.behind[t.Key] != 0
	if s.held[t.Key] == 0 {
		delete(s.held, t.Key)
	}
	s.mu.Unlock()
	select {
	case s.room <- struct{}{}:
	default:
	}
	if !fetch {
		return
	}
	if err := s.fetch(ctx, t.Key, t.Value.revision); err != nil {
		s.fail(err)
	}
}

// fetch queues reactions of a key that were left in the journal after a revision. read
// queues none of that key meanwhile.
func (s *session) fetch(ctx context.Context, key string, after uint64) error {
	for {
		page, _, err := s.from.page(ctx, key, after+1)
		if err != nil {
			return err
		}
		var add []*entry
		s.mu.Lock()
		for _, e := range page {
			if after = e.revision; !s.state.Progress.Has(e.revision) && s.h.wants(s.r, e) {
				add = append(add, e)
			}
			if len(add) == keyRoom {
				break
			}
		}
		if len(add) > 0 {
			s.held[key] = len(add)
		}
		failed := make([]int, len(add))
		for i, e := range add {
			failed[i] = s.state.Failed[e.revision]
		}
		s.mu.Unlock()
		for i, e := range add {
			if err := s.queue.Add(ctx, key, e, failed[i]); err != nil {
				return err
			}
		}
		s.mu.Lock()
		if after >= s.behind[key] || len(page) == 0 {
			delete(s.behind, key) // from now on read queues its reactions again
		}
		ended := len(add) > 0 || s.behind[key] == 0
		s.mu.Unlock()
		if ended {
			return nil
		}
	}
}

// keep stores the progress now and then.
func (s *session) keep(ctx context.Context) {
	tick := time.NewTicker(s.from.pace.Of(saveEvery))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		attempt, cancel := context.WithTimeout(ctx, answerTime)
		err := s.save(attempt)
		cancel()
		if errors.Is(err, errSuperseded) {
			s.fail(err)
			return
		}
		if err != nil && ctx.Err() == nil {
			s.m.log.Debug("trying again", "hook", s.h.Name, "error", err)
		}
	}
}

// save stores the progress if it has changed. One call at a time.
func (s *session) save(ctx context.Context) error {
	s.mu.Lock()
	if !s.changed {
		s.mu.Unlock()
		return nil
	}
	s.changed = false
	copied := *s.state
	copied.Progress, copied.Missing, copied.Failed = s.state.Progress.Clone(), s.state.Missing.Clone(), maps.Clone(s.state.Failed)
	s.mu.Unlock()
	err := s.store.save(ctx, &copied)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.changed = true
		return err
	}
	s.state.revision = copied.revision
	return nil
}
