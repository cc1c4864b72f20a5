package workflow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Archive removes entities that have been in a terminal phase for at least the time
// after, by the server's clock, from the bucket and so from every view. Their history
// stays in the [Journal], which the workflow must have, with the removal as the last
// event. It returns how many it has removed, also with an error.
//
// It removes an entity only when the journal has its last write, and not when the entity
// was written meanwhile. [Manager.Get] with [Removed] returns an archived entity's last
// record, and [Manager.Forget] removes its history. The id may be used again. Run it now and then,
// in one process; a later call goes on where an earlier one ended.
func (m *Manager) Archive(ctx context.Context, workflow string, after time.Duration) (archived int, err error) {
	defer wrap(&err, "archive entities of %s", workflow)
	r, err := m.registration(workflow)
	if err != nil {
		return archived, err
	}
	if !r.journaled {
		return archived, fmt.Errorf("%w: register the workflow with WithJournal", ErrJournal)
	}
	if after < 0 {
		return archived, fmt.Errorf("after is %v, want 0 or more", after)
	}
	if err := m.clock.look(ctx, r.bucket); err != nil {
		return archived, err
	}
	before := m.clock.Now().Add(-after)
	for _, phase := range r.table.TerminalPhases() {
		for next := ""; ; {
			page, err := m.Query(ctx, workflow, ListOptions{Phase: phase, Limit: archivePage, After: next})
			if err != nil {
				return archived, err
			}
			n, err := m.archivePage(ctx, r, page.Records, before)
			archived += n
			if err != nil {
				return archived, err
			}
			if next = page.Next; next == "" {
				break
			}
		}
	}
	return archived, nil
}

const archivePage = 256

// archivePage archives the records that are old enough.
func (m *Manager) archivePage(ctx context.Context, r *registration, records []Record, before time.Time) (archived int, err error) {
	if err := r.bucket.checkJournal(ctx); err != nil {
		return 0, err
	}
	for _, rec := range records {
		if rec.Degraded != nil || rec.Since.After(before) {
			continue
		}
		if _, err := r.bucket.journal().at(ctx, rec.Revision); isNotFound(err) {
			continue // the journal lags: next time
		} else if err != nil {
			return archived, err
		}
		err := m.remove(ctx, r, rec.EntityID, writeOptions{match: &rec.Revision}, meta{note: "archived", removal: r.bucket.archival()})
		switch {
		case errors.Is(err, ErrRevisionMismatch), errors.Is(err, ErrEntityNotFound): // it was written meanwhile
		case err != nil:
			return archived, fmt.Errorf("%q: %w", rec.EntityID, err)
		default:
			archived++
		}
	}
	return archived, nil
}

// Forget removes the history of an entity that was deleted or archived from the bucket
// and the journal, for good: for a retention that ends, or a person who asks for it.
// Hooks that have not read it yet see a gap. Of an entity with more revisions than the
// bucket keeps, or revisions of other programs, a marker stays that says it was deleted: a
// server that is killed can bring back revisions which it had replaced. A second call
// removes those. Forget returns
// ErrEntityExists for an entity that is not deleted.
func (m *Manager) Forget(ctx context.Context, workflow, entityID string) (err error) {
	defer wrap(&err, "forget %s %q", workflow, entityID)
	r, key, err := m.locate(workflow, entityID)
	if err != nil {
		return err
	}
	bucket, err := r.bucket.js.Stream(ctx, r.bucket.stream)
	if err != nil {
		return err
	}
	upTo := bucket.CachedInfo().State.LastSeq + 1 // what is written from now on stays
	cur, err := r.bucket.last(ctx, key)
	if err != nil && !isNotFound(err) {
		return err
	}
	if cur != nil && !cur.deleted() {
		return ErrEntityExists
	}
	if cur != nil {
		upTo = cur.revision + 1
	}
	streams := []string{r.bucket.stream}
	if r.journaled {
		streams = append(streams, r.bucket.journalName())
	}
	whole, n, last := true, int64(0), uint64(0) // the revisions, from the first one on
	err = r.revisions(ctx, key, func(e *entry) bool {
		whole, n, last = whole && e.chained && e.on == last, n+1, e.revision
		return true
	})
	if err != nil {
		return err
	}
	if limit := bucket.CachedInfo().Config.MaxMsgsPerSubject; limit > 0 && n > limit {
		whole = false // the server has replaced some
	}
	for _, name := range streams {
		stream, err := r.bucket.js.Stream(ctx, name)
		if err != nil {
			return err
		}
		end := upTo
		if name == r.bucket.stream && cur != nil && !whole {
			end = cur.revision
		}
		if err := stream.Purge(ctx, jetstream.WithPurgeSubject(r.bucket.subject(key)), jetstream.WithPurgeSequence(end)); err != nil {
			return fmt.Errorf("purge %s: %w", name, err)
		}
	}
	return nil
}
