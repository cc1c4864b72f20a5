package workflow

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"
)

// Degraded returns the records of a workflow that the Manager cannot work with, by
// key: they do not decode, or are in a phase that the table does not have. Lists
// contain records of the last kind too, as active entities. Each record says what is
// wrong with it. When neither a record's name nor the form of its key tells its
// workflow, it counts as the first workflow's.
func (m *Manager) Degraded(ctx context.Context, workflow string) (records []Record, err error) {
	defer wrap(&err, "degraded %s", workflow)
	r, err := m.registration(workflow)
	if err != nil {
		return nil, err
	}
	v, err := r.viewed(ctx)
	if err != nil {
		return nil, err
	}
	var found []entity
	v.mu.RLock()
	for _, en := range v.indexes[workflow].degraded {
		found = append(found, *en)
	}
	v.mu.RUnlock()
	records = make([]Record, len(found))
	for i := range found {
		records[i] = found[i].record(r, nil)
	}
	slices.SortFunc(records, func(a, b Record) int { return strings.Compare(a.Key, b.Key) })
	return records, nil
}

// Migrate writes every record of a workflow whose version is older than this
// process's. It returns how many it wrote. It skips a record that another writer
// changes meanwhile, because that write migrates it too. A record that fails to migrate
// stays as it is; Migrate joins the errors of all such records.
func (m *Manager) Migrate(ctx context.Context, workflow string) (written int, err error) {
	defer wrap(&err, "migrate %s", workflow)
	r, err := m.registration(workflow)
	if err != nil {
		return 0, err
	}
	v, err := r.viewed(ctx)
	if err == nil {
		err = v.catchUp(ctx, time.Now())
	}
	if err != nil {
		return 0, err
	}
	var ids []string
	var errs []error
	v.mu.RLock()
	for _, en := range v.indexes[workflow].degraded {
		if !en.decoded {
			errs = append(errs, en.degraded)
		}
	}
	v.mu.RUnlock()
	err = v.scan(ctx, &selection{r: r}, func(en *entity) bool {
		if version, err := versionOf(en.version); err == nil && version < r.version {
			ids = append(ids, en.id)
		}
		return true
	})
	if err != nil {
		return 0, err
	}
	for _, id := range ids {
		if ctx.Err() != nil {
			errs = append(errs, context.Cause(ctx))
			break
		}
		err := m.mutate(ctx, r, id, writeOptions{}, func(_ string, cur *entry) (meta, error) {
			if version, err := versionOf(cur.version); err == nil && version >= r.version {
				return meta{}, errMigrated
			}
			return meta{}, nil
		}, nil)
		switch {
		case err == nil:
			written++
		case errors.Is(err, errMigrated), errors.Is(err, ErrEntityNotFound):
		default:
			errs = append(errs, err)
		}
	}
	return written, errors.Join(errs...)
}

var errMigrated = errors.New("migrated")
