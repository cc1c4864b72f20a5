package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/internal/lanes"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// errSuperseded says that another process has begun to run a hook.
var errSuperseded = errors.New("another process runs it")

// hookState is what outlives the processes that run a hook: one key of the hooks'
// bucket. It is written with the revision that was read, so a process that was replaced
// cannot set it back.
type hookState struct {
	Progress lanes.Progress `json:"progress"`
	// Missing are writes that the journal does not have.
	Missing lanes.Progress `json:"missing"`
	// Failed counts the failures of reactions that are not done.
	Failed map[uint64]int `json:"failed,omitempty"`
	// Mark is a write that the journal must have: otherwise it is another one.
	Mark     uint64    `json:"mark"`
	MarkedAt time.Time `json:"marked_at,omitzero"`

	revision uint64 // of the key
}

// hookMemory is what the sessions of one process share.
type hookMemory struct {
	stuck map[string]*call.Call // calls that ignore the end of their context
	state *hookState            // of the last session; nil before the first
}

// DeadLetter is a reaction whose attempts are used up.
type DeadLetter struct {
	// ID is the reaction's.
	ID string `json:"id"`
	// Hook is the hook's name.
	Hook string `json:"hook"`
	// Key is the entity's key in the bucket, and Revision the write reacted to.
	Key      string `json:"key"`
	Revision uint64 `json:"revision"`
	// Attempts is how often it was tried, and Error the last failure.
	Attempts int    `json:"attempts"`
	Error    string `json:"error"`
	// At is when it was given up, by that process's clock.
	At time.Time `json:"at"`
}

// hookStore is a hook's part of the hooks' bucket.
type hookStore struct {
	kv    jetstream.KeyValue
	state string
	dead  string // the prefix of the keys of its dead letters
}

func (r *registration) hookStore(ctx context.Context, hook string) (*hookStore, error) {
	kv, err := r.bucket.js.KeyValue(ctx, hooksOf(r.name))
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, fmt.Errorf("bucket %s: %w: declare it to the broker, see workflow.HookBucket", hooksOf(r.name), err)
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", hooksOf(r.name), err)
	}
	// A workflow's name can have any character, a key cannot.
	of := strings.ToLower(fmt.Sprintf("%x", r.workflow)) + "." + hook
	return &hookStore{kv: kv, state: "state." + of, dead: "dead." + of + "."}, nil
}

// load returns the state, nil when the hook has never run.
func (s *hookStore) load(ctx context.Context) (*hookState, error) {
	e, err := s.kv.Get(ctx, s.state)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil //nolint:nilnil // there is none, which is no error
	}
	if err != nil {
		return nil, fmt.Errorf("read a hook's progress: %w", err)
	}
	state := &hookState{revision: e.Revision()}
	if err := json.Unmarshal(e.Value(), state); err != nil {
		return nil, fmt.Errorf("read a hook's progress: %s: %w", s.state, err)
	}
	return state, nil
}

// save returns errSuperseded when the state was written by another process since it was
// loaded.
func (s *hookStore) save(ctx context.Context, state *hookState) error {
	data, err := json.Marshal(state)
	if err != nil {
		return err
	}
	var revision uint64
	if state.revision == 0 { // the key may have been deleted before
		revision, err = s.kv.Create(ctx, s.state, data)
	} else {
		revision, err = s.kv.Update(ctx, s.state, data, state.revision)
	}
	if natserr.Conflict(err) {
		return errSuperseded
	}
	if err != nil {
		return fmt.Errorf("store a hook's progress: %w", err)
	}
	state.revision = revision
	return nil
}

// begin loads the hook's state, or makes a new one. last is that of this process's
// session before, nil for none: when another program has removed what was stored, the
// hook goes on from there.
func (s *session) begin(ctx context.Context, last *hookState) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	state, err := s.store.load(ctx)
	if err != nil {
		return err
	}
	stream, err := s.r.bucket.js.Stream(ctx, s.from.stream)
	if err != nil {
		return fmt.Errorf("look at the journal of %s: %w", s.r.name, err)
	}
	journal := stream.CachedInfo().State
	if state == nil && last != nil {
		s.m.log.Warn("the progress of a hook was removed: going on with what this process knows", "workflow", s.r.workflow, "hook", s.h.Name)
		last.revision = 0
		if err := s.store.save(ctx, last); err != nil {
			return err
		}
		state = last
	}
	if state == nil {
		state = &hookState{}
		if !s.h.Replay {
			state.Progress = lanes.From(journal.LastSeq)
		}
		s.state = state
		return s.store.save(ctx, state) // from now on it misses nothing
	}
	s.state = state
	if state.Mark == 0 || state.Mark < journal.FirstSeq {
		return nil
	}
	e, err := s.from.at(ctx, state.Mark)
	if err == nil && e.at.Equal(state.MarkedAt) || isNotFound(err) && state.Mark <= journal.LastSeq {
		return nil
	}
	if err != nil && !isNotFound(err) {
		return err
	}
	// It is the journal of another bucket, or of an earlier state of this one. What the
	// hook has seen before has the same IDs.
	s.m.log.Warn("the journal is not the one that a hook has read: reading all of it", "workflow", s.r.workflow, "hook", s.h.Name)
	*state = hookState{Missing: lanes.From(max(journal.FirstSeq, 1) - 1), revision: state.revision}
	return s.store.save(ctx, state)
}

func (s *hookStore) bury(ctx context.Context, d DeadLetter) error {
	data, err := json.Marshal(d)
	if err != nil {
		return err
	}
	_, err = s.kv.Put(ctx, s.dead+strconv.FormatUint(d.Revision, 10), data)
	return err
}

// letters returns the dead letters, by revision.
func (s *hookStore) letters(ctx context.Context) ([]DeadLetter, error) {
	lister, err := s.kv.ListKeysFiltered(ctx, s.dead+">")
	if err != nil {
		return nil, err
	}
	defer func() { _ = lister.Stop() }()
	var letters []DeadLetter
	for key := range lister.Keys() {
		e, err := s.kv.Get(ctx, key)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			continue // redriven meanwhile
		}
		if err != nil {
			return nil, err
		}
		var d DeadLetter
		if err := json.Unmarshal(e.Value(), &d); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		letters = append(letters, d)
	}
	slices.SortFunc(letters, func(a, b DeadLetter) int {
		if a.Revision < b.Revision {
			return -1
		}
		return 1
	})
	return letters, ctx.Err()
}

// hook returns a registered hook.
func (m *Manager) hook(workflow, name string) (*registration, *Hook, error) {
	r, err := m.registration(workflow)
	if err != nil {
		return nil, nil, err
	}
	for i := range r.hooks {
		if r.hooks[i].Name == name {
			return r, &r.hooks[i], nil
		}
	}
	return nil, nil, fmt.Errorf("workflow %q has no hook %q", workflow, name)
}

// DeadLetters returns the reactions that a hook has given up, oldest write first.
func (m *Manager) DeadLetters(ctx context.Context, workflow, hook string) ([]DeadLetter, error) {
	r, h, err := m.hook(workflow, hook)
	if err != nil {
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	store, err := r.hookStore(ctx, h.Name)
	if err == nil {
		var letters []DeadLetter
		if letters, err = store.letters(ctx); err == nil {
			return letters, nil
		}
	}
	return nil, fmt.Errorf("dead letters of hook %q of %s: %w", hook, workflow, err)
}

// Redrive calls a hook once more for a dead letter, in this process, and removes the
// letter when the hook returns nil. It returns the hook's error, and ErrEntityNotFound
// when there is no such letter or the journal no longer has its write. Later reactions
// of the entity were tried before it: see [Reaction].
func (m *Manager) Redrive(ctx context.Context, workflow, hook string, revision uint64) error {
	fail := func(err error) error {
		return fmt.Errorf("redrive revision %d for hook %q of %s: %w", revision, hook, workflow, err)
	}
	r, h, err := m.hook(workflow, hook)
	if err != nil {
		return fail(err)
	}
	store, err := r.hookStore(ctx, h.Name)
	if err != nil {
		return fail(err)
	}
	key := store.dead + strconv.FormatUint(revision, 10)
	if _, err := store.kv.Get(ctx, key); errors.Is(err, jetstream.ErrKeyNotFound) {
		return fail(fmt.Errorf("%w: there is no such letter", ErrEntityNotFound))
	} else if err != nil {
		return fail(err)
	}
	journal := r.bucket.journal()
	e, err := journal.at(ctx, revision)
	if err != nil {
		return fail(err)
	}
	re := r.reaction(e, func(rev uint64) (*entry, error) { return journal.at(ctx, rev) })
	re.Attempt = 1
	if _, err := h.call(ctx, re); err != nil {
		return fail(err)
	}
	if err := store.kv.Purge(ctx, key); err != nil {
		return fail(fmt.Errorf("the hook has run, and its letter could not be removed: %w", err))
	}
	return nil
}
