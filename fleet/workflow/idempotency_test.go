package workflow_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// TestAWriteWithAKeyHappensOnce retries each verb as a client does that has crashed.
func TestAWriteWithAKeyHappensOnce(t *testing.T) {
	r := journaled(t)
	ctx := testContext(t)
	count := func(m *Mission) error { m.Count++; return nil }
	steps := []struct {
		key string
		do  func(r *rig, opts ...workflow.WriteOption) error
	}{
		{"create", func(r *rig, opts ...workflow.WriteOption) error {
			return r.missions.Create(ctx, &Mission{ID: "m1", State: "planning"}, opts...)
		}},
		{"count", func(r *rig, opts ...workflow.WriteOption) error { return r.missions.Update(ctx, "m1", count, opts...) }},
		{"fly", func(r *rig, opts ...workflow.WriteOption) error {
			return r.missions.Transition(ctx, "m1", "flying", "rule", "", opts...)
		}},
		{"delete", func(r *rig, opts ...workflow.WriteOption) error { return r.missions.Delete(ctx, "m1", opts...) }},
		{"again", func(r *rig, opts ...workflow.WriteOption) error {
			return r.missions.Create(ctx, &Mission{ID: "m1", State: "planning"}, opts...)
		}},
	}
	revisions := make([]uint64, len(steps))
	for i, s := range steps {
		if _, landed, err := r.Landed(ctx, survey, "m1", s.key); landed || err != nil {
			t.Errorf("%s has landed before it was made: %v", s.key, err)
		}
		must(t, s.do(r, workflow.WithKey(s.key), workflow.WithRevision(&revisions[i])))
		for j, earlier := range steps[:i+1] {
			for _, from := range []*rig{r, rigOn(t, r.b, workflow.WithJournal())} {
				var at uint64
				if err := earlier.do(from, workflow.WithKey(earlier.key), workflow.WithRevision(&at)); err != nil || at != revisions[j] {
					t.Errorf("%s after %s: revision %d, %v; want %d", earlier.key, s.key, at, err, revisions[j])
				}
			}
			if at, landed, err := r.Landed(ctx, survey, "m1", earlier.key); !landed || at != revisions[j] || err != nil {
				t.Errorf("%s after %s: %d, %v, %v; want %d", earlier.key, s.key, at, landed, err, revisions[j])
			}
		}
	}
}

// TestKeysOfManyWriters: two clients use each key at once, among writers without keys,
// and there are more keys than a write carries.
func TestKeysOfManyWriters(t *testing.T) {
	r := journaled(t)
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	r.copied(t)
	other := rigOn(t, r.b, workflow.WithJournal())
	count := func(m *Mission) error { m.Count++; return nil }
	const n = 60
	var clients sync.WaitGroup
	for c, from := range []*rig{r, other, r} {
		clients.Go(func() {
			for i := range n {
				if c == 2 {
					if err := from.missions.Update(ctx, "m1", func(m *Mission) error { m.Replicas++; return nil }); err != nil {
						t.Error(err)
					}
				} else if err := from.missions.Update(ctx, "m1", count, workflow.WithKey(fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
				if i%16 == 15 { // a journal that is more than 64 writes behind could not say no
					if err := r.awaitCopies(ctx); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	clients.Wait()
	r.copied(t)
	must(t, r.missions.Update(ctx, "m1", count, workflow.WithKey("0"))) // not carried any more
	m, err := r.missions.Get(ctx, "m1")
	must(t, err)
	if m.Count != n || m.Replicas != n {
		t.Errorf("%d of %d keys counted, %d of %d others", m.Count, n, m.Replicas, n)
	}
}

// TestKeyBeyondTheHistory has no journal: after 64 writes nothing can say no.
func TestKeyBeyondTheHistory(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	count := func(m *Mission) error { m.Count++; return nil }
	for i := range 20 {
		must(t, r.missions.Update(ctx, "m1", count, workflow.WithKey(fmt.Sprint(i))))
	}
	if _, landed, err := r.Landed(ctx, survey, "m1", "unknown"); landed || err != nil {
		t.Errorf("with a complete history: %v, %v", landed, err)
	}
	for range 70 {
		must(t, r.missions.Update(ctx, "m1", count))
	}
	if _, _, err := r.Landed(ctx, survey, "m1", "unknown"); !errors.Is(err, workflow.ErrOutcomeUnknown) {
		t.Errorf("got %v", err)
	}
	if err := r.missions.Update(ctx, "m1", count, workflow.WithKey("unknown")); !errors.Is(err, workflow.ErrOutcomeUnknown) {
		t.Errorf("got %v", err)
	}
	if _, landed, err := r.Landed(ctx, survey, "m1", "19"); !landed || err != nil {
		t.Errorf("a key that the record carries: %v, %v", landed, err)
	}
}
