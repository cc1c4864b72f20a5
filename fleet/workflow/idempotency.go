package workflow

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// WithKey gives a write an idempotency key, for a caller that may crash or lose the
// answer and then asks again, from any process: the write with that key happens once. A
// later write of the same entity with the same key writes nothing and returns nil, also
// when it is not the same verb. [WithRevision] gets the revision of the first.
//
//	key := "order-77/ship" // the same after a restart
//	err := orders.Transition(ctx, "77", "shipped", workflow.TransitionSourceComponent, "", workflow.WithKey(key))
//
// Every write of an entity carries its last 16 keys, deletions too, so the check is part
// of the compare-and-set. Older keys are looked up in the entity's history: an entity
// with so many needs a [Journal]. So are the keys of an entity that another program has
// written or deleted. An empty key is no key.
func WithKey(key string) WriteOption {
	return func(w *writing) {
		if w.key = ""; key != "" {
			w.key = keyHash(key)
		}
	}
}

// Landed answers a caller that does not know whether its write with [WithKey] happened:
// the revision of that write, and whether there is one. It asks the server. It returns
// ErrOutcomeUnknown when the entity's history does not go back far enough to say no.
func (m *Manager) Landed(ctx context.Context, workflow, entityID, key string) (revision uint64, landed bool, err error) {
	fail := func(err error) (uint64, bool, error) {
		return 0, false, fmt.Errorf("look for a write of %s %q: %w", workflow, entityID, err)
	}
	r, err := m.registration(workflow)
	if err != nil {
		return fail(err)
	}
	at, err := r.key(entityID)
	if err != nil {
		return fail(err)
	}
	cur, err := r.bucket.last(ctx, at)
	if isNotFound(err) && !r.journaled {
		return 0, false, nil
	}
	if err != nil && !isNotFound(err) {
		return fail(err)
	}
	if revision, landed = cur.landed(keyHash(key)); landed {
		return revision, true, nil
	}
	revision, cut, err := r.search(ctx, at, keyHash(key))
	switch {
	case err != nil:
		return fail(err)
	case revision != 0:
		return revision, true, nil
	case cut:
		return fail(fmt.Errorf("%w: its history is not complete", ErrOutcomeUnknown))
	}
	return 0, false, nil
}

// headerKeys has the last keys of an entity's writes, oldest first, separated by commas:
// a hash, and the revision but for the key of this very write.
const headerKeys = "Lifecycle-Keys"

// maxKeys is how many keys a write carries.
const maxKeys = 16

// keyHash makes a key short and fit for a header.
func keyHash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// lostKeys stands for the keys that a write of another program did not carry on. The
// history has them.
const lostKeys = "?@0"

// keyHeader returns the header of the entity's keys.
func (e *entry) keyHeader() string {
	if e.known != nil {
		return e.known.keys
	}
	if header := e.get(headerKeys); header != "" || e.get(headerOp) != "" {
		return header
	}
	return lostKeys
}

func (e *entry) keys() []string {
	if e == nil {
		return nil
	}
	if header := e.keyHeader(); header != "" {
		return strings.Split(header, ",")
	}
	return nil
}

// landed returns the revision of the write with a key, as far as the entry knows it.
func (e *entry) landed(hash string) (revision uint64, ok bool) {
	for _, known := range e.keys() {
		of, at, earlier := strings.Cut(known, "@")
		if of != hash {
			continue
		}
		if !earlier {
			return e.revision, true
		}
		if n, err := strconv.ParseUint(at, 10, 64); err == nil {
			return n, true
		}
	}
	return 0, false
}

// keysAfter returns the header of the write that follows cur.
func keysAfter(cur *entry, hash string) string {
	keys := cur.keys()
	for i, known := range keys {
		if !strings.Contains(known, "@") {
			keys[i] = known + "@" + strconv.FormatUint(cur.revision, 10)
		}
	}
	if hash != "" {
		keys = append(keys, hash)
	}
	return strings.Join(keys[max(0, len(keys)-maxKeys):], ",")
}

// search looks for the write with a key in an entity's history. cut says that the
// history is not complete.
func (r *registration) search(ctx context.Context, key, hash string) (revision uint64, cut bool, err error) {
	last := uint64(0)
	err = r.revisions(ctx, key, 1, func(e *entry) bool {
		if before, known := e.predecessor(); known && before != 0 && before != last || last == 0 && e.erased() {
			cut = true
		}
		last = e.revision
		revision, _ = e.landed(hash)
		return revision == 0
	})
	return revision, cut, err
}

// landedError says that the write with this key has happened. It is not returned to
// callers.
type landedError struct{ revision uint64 }

func (e *landedError) Error() string {
	return fmt.Sprintf("it has happened as revision %d", e.revision)
}

// already returns a landedError when the write with w's key has happened.
func (w *writing) already(cur *entry) error {
	if w.key == "" {
		return nil
	}
	if revision, ok := cur.landed(w.key); ok {
		return &landedError{revision}
	}
	return nil
}

// searches reports whether the history has to tell that the write with w's key has not
// happened.
func (w *writing) searches(cur *entry) bool {
	if w.key == "" || w.searched != 0 && w.searched == revisionOf(cur) {
		return false
	}
	keys := cur.keys()
	return len(keys) >= maxKeys && w.searched == 0 || slices.Contains(keys, lostKeys)
}

// older looks for w's key among those that the record no longer carries.
func (w *writing) older(ctx context.Context, r *registration, key string, cur *entry) error {
	if !w.searches(cur) {
		return nil
	}
	revision, cut, err := r.search(ctx, key, w.key)
	switch {
	case err != nil:
		return err
	case revision != 0:
		return &landedError{revision}
	case cut:
		return fmt.Errorf("%w: whether the write with this key has happened: the entity's history is not complete", ErrOutcomeUnknown)
	}
	w.searched = revisionOf(cur)
	return nil
}

// keyed turns the error of a write that has happened into its result. cur is the record.
func (o *operation) keyed(cur *entry, err error) error {
	landed, ok := err.(*landedError) //nolint:errorlint // it is never wrapped
	if !ok {
		return err
	}
	if o.w.revision != nil {
		*o.w.revision = landed.revision
	}
	if o.w.result != nil && !cur.deleted() {
		*o.w.result, err = o.r.decode(cur)
		return err
	}
	return nil
}
