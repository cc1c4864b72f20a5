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

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
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

// putLetter stores a dead letter. One that is there, of a process that was killed or of a journal
// before this one, is removed first: see removeLetter.
func (s *hookStore) putLetter(ctx context.Context, d DeadLetter) error {
	data, err := json.Marshal(d)
	if err != nil {
		return err
	}
	key := s.letters + strconv.FormatUint(d.Revision, 10)
	_, err = s.kv.Create(ctx, key, data)
	if errors.Is(err, jetstream.ErrKeyExists) {
		if err = s.removeLetter(ctx, key); err == nil {
			_, err = s.kv.Create(ctx, key, data)
		}
	}
	return err
}

// removeLetter removes a letter from the stream and leaves no mark. A server that is killed would bring
// the letter back once a mark in its place had expired.
func (s *hookStore) removeLetter(ctx context.Context, key string) error {
	stream, err := s.bucket.js.Stream(ctx, s.bucket.stream)
	if err != nil {
		return natserr.Plain(err)
	}
	return stream.Purge(ctx, jetstream.WithPurgeSubject(s.bucket.subject(key)))
}

// readLetters returns the dead letters, by revision.
func (s *hookStore) readLetters(ctx context.Context) ([]DeadLetter, error) {
	keys, err := s.letterKeys(ctx)
	if err != nil {
		return nil, err
	}
	var letters []DeadLetter
	for _, key := range keys {
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
	return letters, nil
}

func (s *hookStore) letterKeys(ctx context.Context) (keys []string, err error) {
	lister, err := s.kv.ListKeysFiltered(ctx, s.letters+">")
	if err != nil {
		return nil, err
	}
	defer func() { _ = lister.Stop() }()
	for key := range lister.Keys() {
		keys = append(keys, key)
	}
	return keys, ctx.Err()
}

// HookStatus describes a hook, as far as the server knows it.
type HookStatus struct {
	// Workflow and Hook are the names.
	Workflow, Hook string
	// Waiting is how many writes of the bucket the hook has not looked at, or has not reacted to
	// with success. It is 0 for a hook that has never run.
	Waiting uint64
	// Failing is how many of its reactions have failed and are tried again, at most 1000, and
	// Failures how often the worst of them has.
	Failing, Failures int
	// DeadLetters is how many reactions it has given up.
	DeadLetters int
}

// HookStatuses describes the hooks of a workflow, in the order of their registration. It asks
// the server.
func (m *Manager) HookStatuses(ctx context.Context, workflow string) (statuses []HookStatus, err error) {
	defer wrap(&err, "hooks of %s", workflow)
	r, err := m.registration(workflow)
	if err != nil {
		return nil, err
	}
	var last uint64
	for _, h := range r.hooks {
		if last == 0 {
			stream, err := r.bucket.js.Stream(ctx, r.bucket.stream)
			if err != nil {
				return nil, natserr.Plain(err)
			}
			last = stream.CachedInfo().State.LastSeq
		}
		store, err := r.hookStore(ctx, h.Name)
		if err != nil {
			return nil, err
		}
		s := HookStatus{Workflow: r.workflow, Hook: h.Name}
		p, err := store.load(ctx)
		if err != nil {
			return nil, err
		}
		if p != nil {
			s.Waiting = p.Done.Behind(last)
			s.Failing = len(p.Failed)
			for _, times := range p.Failed {
				s.Failures = max(s.Failures, times)
			}
		}
		letters, err := store.letterKeys(ctx)
		if err != nil {
			return nil, natserr.Plain(err)
		}
		s.DeadLetters = len(letters)
		statuses = append(statuses, s)
	}
	return statuses, nil
}

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
func (m *Manager) DeadLetters(ctx context.Context, workflow, hook string) (letters []DeadLetter, err error) {
	defer wrap(&err, "dead letters of hook %q of %s", hook, workflow)
	r, h, err := m.hook(workflow, hook)
	if err != nil {
		return nil, err
	}
	store, err := r.hookStore(ctx, h.Name)
	if err != nil {
		return nil, err
	}
	return store.readLetters(ctx)
}

// storedLetter is a dead letter, and where it is.
type storedLetter struct {
	registration *registration
	hook         *Hook
	store        *hookStore
	key          string
	reaction     string // its ID
}

// letter finds a dead letter. It returns ErrEntityNotFound when there is none.
func (m *Manager) letter(ctx context.Context, workflow, hook string, revision uint64) (l storedLetter, err error) {
	if l.registration, l.hook, err = m.hook(workflow, hook); err != nil {
		return l, err
	}
	if l.store, err = l.registration.hookStore(ctx, l.hook.Name); err != nil {
		return l, err
	}
	l.key = l.store.letters + strconv.FormatUint(revision, 10)
	stored, err := l.store.kv.Get(ctx, l.key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return l, fmt.Errorf("%w: there is no such letter", ErrEntityNotFound)
	}
	if err != nil {
		return l, err
	}
	var d DeadLetter
	err = json.Unmarshal(stored.Value(), &d)
	l.reaction = d.ID
	return l, err
}

// Redrive calls a hook once more for a dead letter, in this process, and removes the
// letter when the hook returns nil. It returns the hook's error, ErrEntityNotFound when there
// is no such letter or the journal no longer has its write, and ErrJournal when the letter is of
// a journal before this one. Later reactions
// of the entity were tried before it: see [Reaction].
func (m *Manager) Redrive(ctx context.Context, workflow, hook string, revision uint64) (err error) {
	defer wrap(&err, "redrive revision %d for hook %q of %s", revision, hook, workflow)
	l, err := m.letter(ctx, workflow, hook, revision)
	if err != nil {
		return err
	}
	r, h := l.registration, l.hook
	journal := r.bucket.journal()
	e, err := journal.at(ctx, revision)
	if err != nil {
		return err
	}
	re := r.reaction(e, func(rev uint64) (*entry, error) { return journal.at(ctx, rev) })
	if re.ID != l.reaction { // a journal that was made anew or restored counts from 1 again
		return fmt.Errorf("%w: reaction %s is of a journal before this one: discard its letter", ErrJournal, l.reaction)
	}
	re.Attempt = 1
	if _, err := h.call(ctx, re); err != nil {
		return err
	}
	if err := l.store.removeLetter(ctx, l.key); err != nil {
		return fmt.Errorf("the hook has run, and its letter could not be removed: %w", err)
	}
	return nil
}

// Discard removes a dead letter of a hook for good. It returns ErrEntityNotFound when there is no
// such letter.
func (m *Manager) Discard(ctx context.Context, workflow, hook string, revision uint64) (err error) {
	defer wrap(&err, "discard revision %d of hook %q of %s", revision, hook, workflow)
	l, err := m.letter(ctx, workflow, hook, revision)
	if err != nil {
		return err
	}
	return l.store.removeLetter(ctx, l.key)
}
