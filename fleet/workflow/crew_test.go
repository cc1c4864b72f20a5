package workflow_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// TestUpdatesOutliveTheOneThatWritesThem drops the answer to a write that many updates
// share, and ends the context of the one that sent it. That one does not know; the
// others find out, and each has happened once.
func TestUpdatesOutliveTheOneThatWritesThem(t *testing.T) {
	srv := brokertest.NewSite(t).Connect(t, broker.Config{Buckets: buckets()})
	p := muffle(t, srv.ClientURL())
	here := rigOn(t, srv)
	there := rigOn(t, brokertest.Connect(t, broker.Config{URL: p.url(), ReconnectWait: 20 * time.Millisecond}))
	ctx := testContext(t)
	here.create(t, "hot", "planning")
	_, err := there.missions.List(ctx, workflow.ListOptions{Fresh: true})
	must(t, err)

	own, cancel := context.WithCancel(ctx)
	has, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	first := make(chan error, 1)
	go func() {
		first <- there.missions.Update(own, "hot", func(m *Mission) error {
			once.Do(func() { close(has) })
			<-release
			m.Count++
			return nil
		})
	}()
	<-has
	const others = 20
	var all sync.WaitGroup
	var asked atomic.Int64
	for range others {
		all.Go(func() {
			asked.Add(1)
			if err := there.missions.Update(ctx, "hot", func(m *Mission) error { m.Count++; return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	brokertest.Await(t, "the others to begin", func() bool { return asked.Load() == others })
	p.mute.Store(true)
	close(release)
	brokertest.Await(t, "the write to be carried out", func() bool {
		m, err := here.missions.Get(ctx, "hot")
		return err == nil && m.Count > 0
	})
	cancel()
	if err := <-first; !errors.Is(err, workflow.ErrOutcomeUnknown) {
		t.Errorf("the update whose context ended: %v", err)
	}
	p.mute.Store(false)
	p.cut()
	all.Wait()
	m, err := here.missions.Get(ctx, "hot")
	must(t, err)
	if m.Count != others+1 {
		t.Errorf("%d updates landed, want %d", m.Count, others+1)
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
			key := workflow.WithKey(strconv.Itoa(n % keys))
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
