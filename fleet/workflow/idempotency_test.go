package workflow_test

import (
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
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
		must(t, s.do(r, workflow.Key(s.key), workflow.RevisionTo(&revisions[i])))
		for j, earlier := range steps[:i+1] {
			for _, from := range []*rig{r, rigOn(t, r.b, workflow.WithJournal())} {
				var at uint64
				if err := earlier.do(from, workflow.Key(earlier.key), workflow.RevisionTo(&at)); err != nil || at != revisions[j] {
					t.Errorf("%s after %s: revision %d, %v; want %d", earlier.key, s.key, at, err, revisions[j])
				}
			}
			if at, landed, err := r.Landed(ctx, survey, "m1", earlier.key); !landed || at != revisions[j] || err != nil {
				t.Errorf("%s after %s: %d, %v, %v; want %d", earlier.key, s.key, at, landed, err, revisions[j])
			}
		}
	}
}

// TestKeysOfManyWriters: two clients use each key at once, among writers without keys.
func TestKeysOfManyWriters(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	other := rigOn(t, r.b)
	count := func(m *Mission) error { m.Count++; return nil }
	const n = workflow.MaxKeys - 4
	var clients sync.WaitGroup
	for c, from := range []*rig{r, other, r} {
		clients.Go(func() {
			for i := range n {
				var err error
				if c == 2 {
					err = from.missions.Update(ctx, "m1", func(m *Mission) error { m.Replicas++; return nil })
				} else {
					err = from.missions.Update(ctx, "m1", count, workflow.Key(fmt.Sprint(i)))
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	clients.Wait()
	must(t, r.missions.Update(ctx, "m1", count, workflow.Key("0")))
	m, err := r.missions.Get(ctx, "m1")
	must(t, err)
	if m.Count != n || m.Replicas != n {
		t.Errorf("%d of %d keys counted, %d of %d others", m.Count, n, m.Replicas, n)
	}
}

// TestAnEntityRemembersItsLastKeys: other writes and a short history do not change that. An
// older key counts as a new one.
func TestAnEntityRemembersItsLastKeys(t *testing.T) {
	bucket := missionsBucket
	bucket.History = 1
	b := brokertest.Server(t, broker.Config{Buckets: []jetstream.KeyValueConfig{bucket}})
	r, other := rigOn(t, b), rigOn(t, b, workflow.WithoutView())
	ctx := testContext(t)
	r.create(t, "m1", "planning")
	count := func(m *Mission) error { m.Count++; return nil }
	for i := range workflow.MaxKeys + 1 {
		must(t, r.missions.Update(ctx, "m1", count, workflow.Key(fmt.Sprint(i))))
	}
	for range 200 {
		must(t, r.missions.Update(ctx, "m1", func(m *Mission) error { m.Replicas++; return nil }))
	}
	counted := workflow.MaxKeys + 1
	for i := 1; i <= workflow.MaxKeys; i++ {
		must(t, other.missions.Update(ctx, "m1", count, workflow.Key(fmt.Sprint(i))))
		if at, landed, err := other.Landed(ctx, survey, "m1", fmt.Sprint(i)); !landed || err != nil || at == 0 {
			t.Errorf("key %d: %d, %v, %v", i, at, landed, err)
		}
	}
	if m, err := r.missions.Get(ctx, "m1"); err != nil || m.Count != counted {
		t.Errorf("%+v, %v; want %d", m, err, counted)
	}
	if _, landed, err := r.Landed(ctx, survey, "m1", "0"); landed || err != nil {
		t.Errorf("the key before the last %d: %v, %v", workflow.MaxKeys, landed, err)
	}
	must(t, r.missions.Update(ctx, "m1", count, workflow.Key("0")))
	if m, err := r.missions.Get(ctx, "m1"); err != nil || m.Count != counted+1 {
		t.Errorf("%+v, %v; want %d", m, err, counted+1)
	}
}

// TestKeyedUpdatesOfManyProcessesLandOnce lets callers of two processes, one of them
// without a view, repeat their updates of one entity, as after a lost answer: each
// happens once, and Landed knows it.
func TestKeyedUpdatesOfManyProcessesLandOnce(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	rigs := []*rig{rigOn(t, b), rigOn(t, b, workflow.WithoutView())}
	ctx := testContext(t)
	rigs[0].create(t, "hot", "planning")
	const keys = 40
	var all sync.WaitGroup
	for n := range 2 * keys {
		r := rigs[n/keys]
		all.Go(func() {
			key := workflow.Key(strconv.Itoa(n % keys))
			if err := r.missions.Update(ctx, "hot", func(m *Mission) error { m.Count++; return nil }, key); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	m, err := rigs[0].missions.Get(ctx, "hot")
	must(t, err)
	if m.Count != keys {
		t.Errorf("%d updates landed, want %d", m.Count, keys)
	}
	for n := range keys {
		if _, landed, err := rigs[1].Landed(ctx, survey, "hot", strconv.Itoa(n)); !landed || err != nil {
			t.Errorf("the update with key %d: %v, %v", n, landed, err)
		}
	}
}
