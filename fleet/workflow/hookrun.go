package workflow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
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

// hookPause is the pause before a hook is run again after its run has failed.
var hookPause = worker.Backoff{Min: 50 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.2}

// roomPause is the pause between two looks for room in the queue.
var roomPause = worker.Backoff{Min: 50 * time.Millisecond, Max: 50 * time.Millisecond}

const (
	// maxWaiting is how many reactions a run holds in memory, as a revision each. The rest
	// stays in the journal, also for entities that could go on.
	maxWaiting = 1 << 18
	// saveEvery is how often a run stores its progress: what a crash repeats.
	saveEvery = time.Second
	// maxAbandoned is how many calls of a hook may ignore the end of their context. Then the
	// hook is not called until one of them returns.
	maxAbandoned = 1024
	// maxSpans is how many spans of missing writes a hook remembers.
	maxSpans = 512
	// maxStored is how many spans of done writes, and how many counts of failures, a hook
	// stores. It keeps the record of its progress below 100 KB, also when every reaction fails.
	maxStored = 4096
)

// hookMemory is what the runs of a hook in one process share.
type hookMemory struct {
	by        string                // names the runs
	abandoned map[string]*call.Call // calls that ignore the end of their context, by key
	progress  *hookProgress         // of the last run; nil before the first
}

// runHook runs a hook until ctx ends.
func (m *Manager) runHook(ctx context.Context, r *registration, h *Hook) {
	log := m.log.With("workflow", r.workflow, "hook", h.Name)
	lastLogged, memory := "", &hookMemory{by: nuid.Next(), abandoned: make(map[string]*call.Call)}
	for n := 1; ctx.Err() == nil; n++ {
		began := time.Now()
		err := natserr.Plain(runHookOnce(ctx, r, h, memory, log))
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > hookPause.Max {
			n, lastLogged = 1, ""
		}
		if err != nil && err.Error() != lastLogged {
			lastLogged = err.Error()
			log.Warn("cannot run a hook; trying again", "error", err)
		}
		_ = hookPause.Sleep(ctx, n)
	}
}

// hookRun is one run of a hook, from its stored progress on.
type hookRun struct {
	r       *registration
	h       *Hook
	log     *slog.Logger
	journal *bucket
	store   *hookStore
	queue   *lanes.Queue[written]
	fail    context.CancelCauseFunc

	mu        sync.Mutex // guards the fields below
	progress  *hookProgress
	changed   bool                  // since it was stored
	abandoned map[string]*call.Call // of earlier runs too
}

// written is a write that the hook reacts to. It has no content, because an entity whose
// reactions fail may have many waiting ones. The hook reads the write again when its turn comes.
type written struct {
	revision uint64
	at       time.Time
}

// runHookOnce runs a hook until ctx ends or something other than the hook fails.
func runHookOnce(ctx context.Context, r *registration, h *Hook, memory *hookMemory, log *slog.Logger) error {
	if err := r.bucket.checkJournal(ctx); err != nil {
		return err
	}
	store, err := r.hookStore(ctx, h.Name)
	if err != nil {
		return err
	}
	store.by = memory.by
	run := &hookRun{
		r:         r,
		h:         h,
		log:       log,
		journal:   r.bucket.journal(),
		store:     store,
		queue:     lanes.New[written](),
		abandoned: memory.abandoned,
	}
	if err := run.begin(ctx, memory.progress); err != nil {
		return err
	}
	memory.progress = run.progress
	own, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	run.fail = fail
	var parts sync.WaitGroup
	parts.Go(func() { fail(run.read(own)) })
	parts.Go(func() { run.saveRegularly(own) })
	lanes.Runner[written]{
		Workers:  h.Concurrency,
		Attempts: h.Attempts,
		Backoff:  h.Backoff,
		Handle:   run.handle,
		Failed:   run.failed,
		Dead:     run.dead,
		Done:     run.done,
	}.Run(own, run.queue)
	err = context.Cause(own)
	fail(nil)
	run.queue.Close()
	parts.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	if saved := run.save(last); err == nil || ctx.Err() != nil {
		err = saved
	}
	return err
}

// read reads the journal and queues what the hook wants, until ctx ends.
func (run *hookRun) read(ctx context.Context) error {
	run.mu.Lock()
	at := written{revision: run.progress.Done.Floor()}
	run.mu.Unlock()
	for {
		if err := run.readFrom(ctx, &at); err != nil {
			return err
		}
	}
}

// readFrom reads what is behind the last write that was read. It returns no error when it is to
// begin again there: after a reconnect, because the server may have sent messages to the lost
// connection and does not send them again, and after a wait for room in the queue.
func (run *hookRun) readFrom(ctx context.Context, last *written) error {
	reconnects := run.journal.nc.Stats().Reconnects
	reqCtx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	stream, err := run.journal.js.Stream(reqCtx, run.journal.stream)
	if err != nil {
		return err
	}
	if !last.at.IsZero() { // the journal may have been replaced while the connection was lost
		isRead, err := run.hasRead(reqCtx, *last, stream.CachedInfo().State)
		if err != nil {
			return err
		}
		if !isRead { // the next run finds out what to do
			return fmt.Errorf("the journal %s is not the one that was read", run.journal.stream)
		}
	}
	consumer, err := stream.CreateConsumer(reqCtx, jetstream.ConsumerConfig{
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       last.revision + 1,
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: run.journal.pace.Of(time.Minute),
	})
	if err != nil {
		return err
	}
	info := consumer.CachedInfo()
	defer run.journal.deleteConsumer(info.Name)
	p, err := run.journal.pull(info.Name, info.NumPending, nil, false)
	if err != nil {
		return err
	}
	defer p.from.Close()
	isFull := false
	for {
		// The server forgets a consumer that is not asked for a minute.
		if isFull && p.from.Expected() == 0 {
			return nil
		}
		msg, meta, err := p.next(ctx)
		if err != nil {
			return fmt.Errorf("read %s: %w", run.journal.stream, err)
		}
		if msg == nil && run.journal.nc.Stats().Reconnects != reconnects {
			return nil
		}
		if msg == nil {
			continue
		}
		e := newEntry(run.journal.key(msg.Subject), meta.Sequence.Stream, meta.Timestamp, msg.Header, msg.Data)
		if e.revision > last.revision+1 {
			run.missed(last.revision+1, e.revision-1)
		}
		*last = written{e.revision, e.at}
		run.queue.Hold(e.key, e.paused()) // each write of a paused entity says so
		for run.queue.Len() >= maxWaiting {
			isFull = true
			if roomPause.Sleep(ctx, 1) != nil {
				return context.Cause(ctx)
			}
		}
		if wanted, failures := run.accept(e); wanted {
			if err := run.queue.Add(e.key, *last, failures); err != nil {
				return err
			}
		}
	}
}

// missed notes that the journal does not have some writes.
func (run *hookRun) missed(first, last uint64) {
	run.mu.Lock()
	defer run.mu.Unlock()
	run.progress.Done.Skip(first, last)
	run.progress.Missing.Skip(first, last)
	if run.progress.Missing.Gaps() > maxSpans {
		run.progress.Missing.Raise(first) // a write that is not missing may count as missing, but never the reverse
	}
	run.changed = true
}

// accept reports whether the hook reacts to an entry that it has not done yet, and how
// often the reaction has failed before.
func (run *hookRun) accept(e *entry) (wanted bool, failures int) {
	run.mu.Lock()
	defer run.mu.Unlock()
	if run.progress.Done.Has(e.revision) {
		return false, 0
	}
	if !run.h.wants(run.r, e) {
		run.progress.done(written{e.revision, e.at})
		run.changed = true
		return false, 0
	}
	return true, run.progress.Failed[e.revision]
}

// handle makes one call of the hook.
func (run *hookRun) handle(ctx context.Context, t *lanes.Task[written]) error {
	e, err := run.journal.at(ctx, t.Value.revision)
	if isNotFound(err) {
		return run.checkForgotten(ctx, t.Value.revision)
	}
	if err != nil {
		return lanes.Uncounted(err)
	}
	run.mu.Lock()
	maps.DeleteFunc(run.abandoned, func(_ string, c *call.Call) bool { ended, _ := c.Ended(); return ended })
	earlier, many := run.abandoned[e.key], len(run.abandoned) >= maxAbandoned
	gap := e.change > 0 && run.progress.Missing.Has(e.change)
	run.mu.Unlock()
	if earlier != nil {
		return lanes.Uncounted(errors.New("the call before has not returned"))
	}
	if many {
		return lanes.Uncounted(fmt.Errorf("%d calls have not returned", maxAbandoned))
	}
	if err := run.checkPaused(ctx, e.key); err != nil {
		return lanes.Uncounted(err)
	}
	re := run.r.reaction(e, func(revision uint64) (*entry, error) { return run.journal.at(ctx, revision) })
	re.Attempt, re.Gap = t.Failed+1, gap
	abandoned, err := run.h.call(ctx, re)
	if abandoned != nil {
		run.mu.Lock()
		run.abandoned[e.key] = abandoned
		run.mu.Unlock()
	}
	if err != nil && ctx.Err() == nil {
		attrs := append(re.Trace.Attrs(), slog.String("key", t.Key), slog.Uint64("revision", t.Value.revision),
			slog.Int("attempt", re.Attempt), slog.Any("error", err))
		run.log.LogAttrs(ctx, slog.LevelInfo, "a hook failed", attrs...)
	}
	return err
}

// checkForgotten returns no error for a write that the journal has had: the entity was forgotten.
// A journal that was made anew may still have to copy the write.
func (run *hookRun) checkForgotten(ctx context.Context, revision uint64) error {
	stream, err := run.journal.js.Stream(ctx, run.journal.stream)
	if err == nil && stream.CachedInfo().State.LastSeq < revision {
		err = fmt.Errorf("the journal does not have write %d yet", revision)
	}
	if err == nil { // it may have copied the write just before it said how far it is
		if _, err = run.journal.at(ctx, revision); err == nil {
			err = fmt.Errorf("the journal has got write %d a moment ago", revision)
		}
	}
	if isNotFound(err) {
		return nil
	}
	return lanes.Uncounted(err)
}

// checkPaused returns an error for an entity whose record says that it is paused.
func (run *hookRun) checkPaused(ctx context.Context, key string) error {
	cur, err := run.r.bucket.last(ctx, key)
	switch {
	case isNotFound(err):
		return nil
	case err == nil && cur.paused():
		return ErrPaused
	}
	return err
}

// call calls the hook. It returns the call if it did not end in time.
func (h *Hook) call(ctx context.Context, re Reaction) (abandoned *call.Call, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.Timeout, fmt.Errorf("the hook's timeout of %v", h.Timeout))
	defer cancel()
	ctx = re.Trace.In(ctx)
	c := call.Start("hook "+h.Name, func() error { return h.Do(ctx, re) })
	err = c.Wait(ctx.Done(), time.Second)
	if ended, _ := c.Ended(); !ended {
		return c, err
	}
	return nil, err
}

func (run *hookRun) failed(_ context.Context, t *lanes.Task[written], _ error) {
	run.mu.Lock()
	defer run.mu.Unlock()
	run.progress.failed(t.Value.revision, t.Failed)
	run.changed = true
}

func (run *hookRun) dead(ctx context.Context, t *lanes.Task[written], why error) error {
	w := t.Value
	run.log.Warn("a hook has given up a reaction", "key", t.Key, "revision", w.revision, "attempts", t.Failed, "error", why)
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	return run.store.putLetter(ctx, DeadLetter{
		ID:       run.r.reactionID(t.Key, w),
		Hook:     run.h.Name,
		Key:      t.Key,
		Revision: w.revision,
		Attempts: t.Failed,
		Error:    why.Error(),
		At:       time.Now().UTC(),
	})
}

func (run *hookRun) done(t *lanes.Task[written]) {
	run.mu.Lock()
	defer run.mu.Unlock()
	run.progress.done(t.Value)
	run.changed = true
}

// saveRegularly stores the progress every saveEvery.
func (run *hookRun) saveRegularly(ctx context.Context) {
	tick := time.NewTicker(run.journal.pace.Of(saveEvery))
	defer tick.Stop()
	for warned := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		reqCtx, cancel := context.WithTimeout(ctx, answerTime)
		err := run.save(reqCtx)
		cancel()
		if errors.Is(err, errSuperseded) {
			run.fail(err)
			return
		}
		if err != nil && ctx.Err() == nil && !warned {
			run.log.Warn("cannot store a hook's progress; trying again", "error", natserr.Plain(err))
		}
		warned = err != nil
	}
}

// save stores the progress if it has changed. One call at a time.
func (run *hookRun) save(ctx context.Context) error {
	run.mu.Lock()
	if !run.changed {
		run.mu.Unlock()
		return nil
	}
	run.changed = false
	copied := run.progress.stored()
	run.mu.Unlock()
	err := run.store.save(ctx, copied)
	run.mu.Lock()
	defer run.mu.Unlock()
	if err != nil {
		run.changed = true
		return err
	}
	run.progress.revision = copied.revision
	return nil
}
