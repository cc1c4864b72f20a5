package workflow_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
	"github.com/pleme-io/lifecycle-go/internal/models"
)

// Two writers of an entity, one of which loses answers and asks again with its key, go along the model.
func TestWritesConformToTheModel(t *testing.T) {
	srv := brokertest.NewSite(t).Connect(t, broker.Config{Buckets: buckets()})
	p := muffle(t, srv.ClientURL())
	// Each of the two moves is allowed before and after the other.
	free := workflow.Transitions{"planning": {"flying", "capturing"}, "flying": {"capturing"}, "capturing": {"flying"}}
	writer := func(b *broker.Broker) workflow.Typed[*Mission] {
		m := workflow.NewManager(b.JetStream(), brokertest.Quiet())
		t.Cleanup(func() { must(t, m.Close()) })
		must(t, m.Register(survey, newMission, free))
		return workflow.For[*Mission](m, survey)
	}
	first := writer(brokertest.Connect(t, broker.Config{URL: p.url(), ReconnectWait: 20 * time.Millisecond}))
	second := writer(srv)
	ctx := testContext(t)
	// Faults are rarer the longer the test takes: a slow machine needs more time between two of them.
	began := time.Now()
	slowly := func(d time.Duration) time.Duration { return d + time.Since(began)/10 }
	over := make(chan struct{})
	var faults, all sync.WaitGroup
	faults.Go(func() {
		for {
			select {
			case <-over:
				p.mute.Store(false)
				p.cut() // a connection whose answers were dropped is of no use
				return
			case <-time.After(rand.N(slowly(50 * time.Millisecond))):
				p.mute.Store(!p.mute.Load())
				p.cut()
			}
		}
	})
	const entities = 40
	for i := range entities {
		id := fmt.Sprint("m", i)
		must(t, second.Create(ctx, &Mission{ID: id, State: "planning"}))
		all.Go(func() {
			for once := func() error {
				ctx, cancel := context.WithTimeout(ctx, slowly(500*time.Millisecond))
				defer cancel()
				return first.Transition(ctx, id, "flying", workflow.TransitionSourceRule, "", workflow.Key("first"))
			}; once() != nil && ctx.Err() == nil; {
				continue // its outcome is unknown
			}
		})
		all.Go(func() {
			time.Sleep(rand.N(100 * time.Millisecond))
			err := second.Transition(ctx, id, "capturing", workflow.TransitionSourceRule, "")
			for i := 0; i < 2 && err == nil; i++ {
				time.Sleep(rand.N(100 * time.Millisecond))
				err = second.Update(ctx, id, func(m *Mission) error { m.Count++; return nil })
			}
			if err != nil {
				t.Error(err)
			}
		})
		time.Sleep(rand.N(50 * time.Millisecond))
	}
	all.Wait()
	close(over)
	faults.Wait()
	kv, err := srv.JetStream().KeyValue(ctx, "MISSIONS")
	must(t, err)
	var records [][]models.Event
	for i := range entities {
		revisions, err := kv.History(ctx, fmt.Sprint("mission.m", i))
		must(t, err)
		var record []models.Event
		for at, count := 1, 0; at < len(revisions); at++ {
			var m Mission
			must(t, json.Unmarshal(revisions[at].Value(), &m))
			switch {
			case m.Count > count:
				record = append(record, models.Event{Life: 2, State: "updates"})
			case m.State == "flying":
				record = append(record, models.Event{Life: 1, State: "transits"})
			default:
				record = append(record, models.Event{Life: 2, State: "transits"})
			}
			count = m.Count
		}
		records = append(records, record)
	}
	models.Conform(t, "workflow", records)
}
