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
	// maxStored is how many spans of done writes, and how many counts of failures, a hook
	// stores. It keeps the record of its progress below 100 KB, also when every reaction fails.
	maxStored = 4096
)

func (m *Manager) runHook(ctx context.Context, r *registration, h *Hook) {
	run := &hookRun{
		r:         r,
		h:         h,
		log:       m.log.With("workflow", r.workflow, "hook", h.Name),
		journal:   r.bucket.journal(),
		by:        nuid.Next(),
		abandoned: make(map[string]*call.Call),
	}
	lastLogged := ""
	for n := 1; ctx.Err() == nil; n++ {
		began := time.Now()
		err := natserr.Plain(run.session(ctx))
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > hookPause.Max {
			n, lastLogged = 1, ""
		}
		if err != nil && err.Error() != lastLogged {
			lastLogged = err.Error()
			run.log.Warn("cannot run a hook; trying again", "error", err)
		}
		_ = hookPause.Sleep(ctx, n)
	}
}

// hookRun are the runs of a hook in this process, one after the other.
type hookRun struct {
	r       *registration
	h       *Hook
	log     *slog.Logger
	journal *bucket
	by      string // names the runs

	store *hookStore // this one and the next two are of the present run
	queue *lanes.Queue[written]
	fail  context.CancelCauseFunc

	mu        sync.Mutex            // guards the fields below
	progress  *hookProgress         // nil before the first run
	changed   bool                  // since it was stored
	abandoned map[string]*call.Call // calls that ignore the end of their context, by key
}

// written is a write that the hook reacts to. It has no content, because an entity whose
// reactions fail may have many waiting ones. The hook reads the write again when its turn comes.
type written struct {
	revision uint64
	at       time.Time
}

// session runs the hook until ctx ends or something other than the hook fails.
func (run *hookRun) session(ctx context.Context) error {
	err := run.r.bucket.checkJournal(ctx)
	if err != nil {
		return err
	}
	if run.store, err = run.r.hookStore(ctx, run.h.Name); err != nil {
		return err
	}
	run.store.by = run.by
	if err := run.begin(ctx); err != nil {
		return err
	}
	own, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	run.queue, run.fail = lanes.New[written](), fail
	var parts sync.WaitGroup
	parts.Go(func() { fail(run.read(own)) })
	parts.Go(func() { run.saveRegularly(own) })
	lanes.Runner[written]{
		Workers:  run.h.Concurrency,
		Attempts: run.h.Attempts,
		Backoff:  run.h.Backoff,
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
	for {
		msg, meta, err := p.next(ctx)
		switch {
		case errors.Is(err, errReconnected):
			return nil
		case err != nil:
			return fmt.Errorf("read %s: %w", run.journal.stream, err)
		case msg == nil:
			continue
		}
		e := newEntry(run.journal.key(msg.Subject), meta.Sequence.Stream, meta.Timestamp, msg.Header, msg.Data)
		if e.revision > last.revision+1 {
			run.mu.Lock()
			run.progress.Done.Skip(last.revision+1, e.revision-1) // the journal does not have them
			run.mu.Unlock()
		}
		*last = written{e.revision, e.at}
		run.queue.Hold(e.key, e.paused()) // each write of a paused entity says so
		if wanted, failures := run.accept(e); wanted {
			if err := run.queue.Add(e.key, *last, failures); err != nil {
				return err
			}
		}
		if run.queue.Len() < maxWaiting {
			continue
		}
		for run.queue.Len() > maxWaiting-pullMany { // what a request brings has room then
			if roomPause.Sleep(ctx, 1) != nil {
				return context.Cause(ctx)
			}
		}
		return nil // the server may have forgotten the consumer meanwhile
	}
}

// accept reports whether the hook reacts to an entry that it has not done yet, and how
// often the reaction has failed before. An entry that the hook does not want is done with this.
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
	earlier := run.abandoned[e.key]
	run.mu.Unlock()
	if earlier != nil {
		return lanes.Uncounted(errors.New("the call before has not returned"))
	}
	if err := run.checkPaused(ctx, e.key); err != nil {
		return lanes.Uncounted(err)
	}
	re := run.r.reaction(e, func(revision uint64) (*entry, error) { return run.journal.at(ctx, revision) })
	re.Attempt = t.Failed + 1
	if e.change > 0 {
		_, err := run.journal.at(ctx, e.change)
		if re.Gap = isNotFound(err); err != nil && !re.Gap {
			return lanes.Uncounted(err)
		}
	}
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
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	err := run.store.putLetter(ctx, DeadLetter{
		ID:       run.r.reactionID(t.Key, w),
		Hook:     run.h.Name,
		Key:      t.Key,
		Revision: w.revision,
		Attempts: t.Failed,
		Error:    why.Error(),
		At:       time.Now().UTC(),
	})
	if err == nil {
		run.log.Warn("a hook has given up a reaction", "key", t.Key, "revision", w.revision, "attempts", t.Failed, "error", why)
	}
	return err
}

func (run *hookRun) done(t *lanes.Task[written]) {
	run.mu.Lock()
	defer run.mu.Unlock()
	run.progress.done(t.Value)
	run.changed = true
}

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
