package workflow

import (
	"slices"
	"strings"
	"time"
)

// ViewStatus describes this process's view of one bucket.
type ViewStatus struct {
	// Bucket is the bucket's name.
	Bucket string
	// Ready reports whether the view has read the bucket.
	Ready bool
	// Entities is the number of entities in the view.
	Entities int
	// AsOf is a time, by this process's clock, at which the bucket was as the view has
	// it, apart from later writes. It is zero for a view that is not ready.
	AsOf time.Time
	// Waiting is how many writes of this process wait until the journal has an earlier change of
	// phase: see [Journal].
	Waiting int
	// Trouble says why the view does not follow the bucket. It is empty for one that
	// does.
	Trouble string
}

// Views describes the views, sorted by bucket.
func (m *Manager) Views() []ViewStatus {
	m.mu.RLock()
	views := make([]ViewStatus, 0, len(m.buckets))
	for _, b := range m.buckets {
		v := b.view
		v.mu.RLock()
		if len(v.indexes) == 0 { // no workflow of the bucket is viewed
			v.mu.RUnlock()
			continue
		}
		views = append(views, ViewStatus{
			Bucket:   b.name,
			Ready:    v.ready,
			Entities: len(v.entities),
			AsOf:     v.asOf(),
			Waiting:  int(b.waiting.Load()),
			Trouble:  v.follow.trouble(),
		})
		v.mu.RUnlock()
	}
	m.mu.RUnlock()
	slices.SortFunc(views, func(a, b ViewStatus) int { return strings.Compare(a.Bucket, b.Bucket) })
	return views
}
