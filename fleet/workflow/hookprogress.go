package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/internal/lanes"
)

// errSuperseded says that another process has begun to run a hook.
var errSuperseded = errors.New("another process runs it")

// hookProgress is what outlives the processes that run a hook: one key of the hooks'
// bucket. It is written with the revision that was read, so a process that was replaced
// cannot set it back.
type hookProgress struct {
	// By names the runs of a hook, one after the other in one process, that have written it.
	By string `json:"by,omitempty"`
	// Done are the writes of the journal that need no more calls. Of the spans between
	// reactions that fail or wait, only the first maxStored are stored: after a restart the
	// hook repeats what is in the others.
	Done lanes.Progress `json:"progress"`
	// Failed counts the failures of reactions that are not done, maxStored of them. After a
	// restart the others have all of their attempts again.
	Failed map[uint64]int `json:"failed,omitempty"`
	// Mark is a write that the journal must have: otherwise it is another one.
	Mark     uint64    `json:"mark"`
	MarkedAt time.Time `json:"marked_at,omitzero"`

	revision uint64 // of the key
}

// done notes that a write needs no more calls.
func (p *hookProgress) done(w written) {
	p.Done.Done(w.revision)
	delete(p.Failed, w.revision)
	if w.revision > p.Mark {
		p.Mark, p.MarkedAt = w.revision, w.at
	}
}

// failed notes how often a reaction has failed.
func (p *hookProgress) failed(revision uint64, times int) {
	if p.Failed == nil {
		p.Failed = make(map[uint64]int)
	}
	if _, known := p.Failed[revision]; known || len(p.Failed) < maxStored {
		p.Failed[revision] = times
	}
}

// stored returns a copy of the progress as the hooks' bucket gets it.
func (p *hookProgress) stored() *hookProgress {
	c := *p
	c.Done, c.Failed = p.Done.First(maxStored), maps.Clone(p.Failed)
	return &c
}

// hookStore is a hook's part of the hooks' bucket.
type hookStore struct {
	kv       jetstream.KeyValue
	bucket   *bucket // the same, to read from its leader
	by       string  // names the runs that use it; "" for a reader
	progress string  // the key of its progress
	letters  string  // the prefix of the keys of its dead letters
}

func (r *registration) hookStore(ctx context.Context, hook string) (*hookStore, error) {
	kv, err := r.bucket.js.KeyValue(ctx, hooksOf(r.name))
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, fmt.Errorf("bucket %s: %w: declare it to the broker, see workflow.HookBucket", hooksOf(r.name), err)
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", hooksOf(r.name), natserr.Plain(err))
	}
	// A workflow's name can have any character, a key cannot.
	of := strings.ToLower(fmt.Sprintf("%x", r.workflow)) + "." + hook
	b := r.bucket
	return &hookStore{
		kv:       kv,
		bucket:   &bucket{js: b.js, nc: b.nc, name: hooksOf(b.name), stream: "KV_" + hooksOf(b.name), api: b.api, pace: b.pace},
		progress: "state." + of,
		letters:  "dead." + of + ".",
	}, nil
}

// load returns the progress, nil when the hook has never run. A replica that lags would give an
// older one, and with it calls that have ended.
func (s *hookStore) load(ctx context.Context) (*hookProgress, error) {
	msg, err := s.bucket.get(ctx, getRequest{Last: s.bucket.subject(s.progress)})
	if isNotFound(err) || err == nil && msg.Header.Get("KV-Operation") != "" { // deleted
		return nil, nil //nolint:nilnil // there is none, which is not an error
	}
	if err != nil {
		return nil, fmt.Errorf("read a hook's progress: %w", err)
	}
	p := &hookProgress{revision: msg.Sequence}
	if err := json.Unmarshal(msg.Data, p); err != nil {
		return nil, fmt.Errorf("read a hook's progress: %s: %w", s.progress, err)
	}
	return p, nil
}

// save returns errSuperseded when another process has written the progress since it was
// loaded.
func (s *hookStore) save(ctx context.Context, p *hookProgress) error {
	p.By = s.by
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	for n := 1; ; n++ {
		var revision uint64
		if p.revision == 0 { // the key may have been deleted before
			revision, err = s.kv.Create(ctx, s.progress, data)
		} else {
			revision, err = s.kv.Update(ctx, s.progress, data, p.revision)
		}
		if err == nil {
			p.revision = revision
			return nil
		}
		if !natserr.Conflict(err) {
			return fmt.Errorf("store a hook's progress: %w", err)
		}
		stored, err := s.load(ctx)
		if err != nil {
			return err
		}
		if stored == nil || !s.wrote(stored, p.revision) {
			return errSuperseded
		}
		p.revision = stored.revision
		if err := retryPause.Sleep(ctx, n); err != nil {
			return err
		}
	}
}

// wrote reports whether the stored progress is a write of these runs, at or behind the last one
// of which they know: the answer to that write was lost.
func (s *hookStore) wrote(stored *hookProgress, last uint64) bool {
	return stored.By == s.by && stored.revision >= last
}

// begin loads the hook's progress, or stores the progress of a new hook. The hook goes on from where
// this process's run before has ended when no other process has stored progress since, or when another
// program has removed what was stored.
func (run *hookRun) begin(ctx context.Context) (err error) {
	last := run.progress
	defer func() {
		if err != nil {
			run.progress = last // this run has not begun
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	p, err := run.store.load(ctx)
	if err != nil {
		return err
	}
	stream, err := run.journal.js.Stream(ctx, run.journal.stream)
	if err != nil {
		return fmt.Errorf("look at the journal of %s: %w", run.r.name, err)
	}
	journal := stream.CachedInfo().State
	if p != nil && last != nil && run.store.wrote(p, last.revision) {
		isRead, err := run.hasRead(ctx, written{last.Mark, last.MarkedAt}, journal)
		if err != nil {
			return err
		}
		if isRead { // otherwise the bucket was restored as it was when p was stored
			last.revision, run.changed = p.revision, true
			return nil
		}
	}
	switch {
	case p != nil:
		run.progress = p
		return run.checkMark(ctx, journal)
	case last != nil:
		run.log.Warn("the progress of a hook was removed: going on with what this process knows")
		last.revision = 0
	default:
		run.progress = new(hookProgress)
		if !run.h.Replay {
			run.progress.Done = lanes.From(journal.LastSeq)
		}
	}
	return run.store.save(ctx, run.progress) // from now on it misses nothing
}

// hasRead reports whether the journal is the one from which the hook has read a write, as far as
// that tells.
func (run *hookRun) hasRead(ctx context.Context, w written, journal jetstream.StreamState) (bool, error) {
	if w.revision == 0 || w.revision < journal.FirstSeq {
		return true, nil
	}
	e, err := run.journal.at(ctx, w.revision)
	if isNotFound(err) {
		wasPurged := w.revision <= journal.LastSeq
		return wasPurged, nil
	}
	return err == nil && e.at.Equal(w.at), err
}

// checkMark begins anew when the journal is not the one that the hook has read: it belongs
// to another bucket, or to an earlier state of this one. Reactions to writes that the hook
// has seen before have the same IDs. It returns an error while the journal only lags behind.
func (run *hookRun) checkMark(ctx context.Context, journal jetstream.StreamState) error {
	p := run.progress
	isRead, err := run.hasRead(ctx, written{p.Mark, p.MarkedAt}, journal)
	if err != nil || isRead {
		return err
	}
	if p.Mark > journal.LastSeq {
		of := run.r.bucket
		bucket, err := of.js.Stream(ctx, of.stream)
		if err != nil {
			return fmt.Errorf("look at the bucket %s: %w", of.name, natserr.Plain(err))
		}
		if bucket.CachedInfo().State.LastSeq >= p.Mark {
			return fmt.Errorf("%s does not have revision %d of the bucket yet", run.journal.stream, p.Mark)
		}
	}
	run.log.Warn("the journal is not the one that a hook has read: reading all of it")
	*p = hookProgress{revision: p.revision}
	return run.store.save(ctx, p)
}
