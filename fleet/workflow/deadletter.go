package workflow

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

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

func (s *hookStore) putLetter(ctx context.Context, d DeadLetter) error {
	data, err := json.Marshal(d)
	if err != nil {
		return err
	}
	_, err = s.kv.Put(ctx, s.letters+strconv.FormatUint(d.Revision, 10), data)
	return err
}

// readLetters returns the dead letters, by revision.
func (s *hookStore) readLetters(ctx context.Context) ([]DeadLetter, error) {
	lister, err := s.kv.ListKeysFiltered(ctx, s.letters+">")
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
	slices.SortFunc(letters, func(a, b DeadLetter) int { return cmp.Compare(a.Revision, b.Revision) })
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
		if letters, err = store.readLetters(ctx); err == nil {
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
	key := store.letters + strconv.FormatUint(revision, 10)
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
