package worker_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/models"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Two Suspends, a Resume and a Stop at any times go along the model of suspends.
func TestSuspendsConformToTheModel(t *testing.T) {
	var records [][]models.Event
	for i := range uint64(100) {
		synctest.Test(t, func(t *testing.T) { records = append(records, recordedSuspends(t, rand.New(rand.NewPCG(i, 0)))) })
	}
	models.Conform(t, "suspend", records)
}

// recordedSuspends returns the statuses of a worker from Running on, and when its function works.
func recordedSuspends(t *testing.T, random *rand.Rand) (record []models.Event) {
	any := func(most time.Duration) time.Duration { return time.Duration(random.Int64N(int64(most))) + 1 }
	var works []time.Time
	length := any(2 * time.Second)
	f := worker.NewFunc("f", func(ctx context.Context) error {
		for worker.Pause(ctx) == nil {
			works = append(works, time.Now())
			time.Sleep(length)
		}
		return ctx.Err()
	})
	var events fsm.Dispatcher
	f.PublishTo(&events)
	sub := events.Subscribe(1000)
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	call := func(after, within time.Duration, fn func(context.Context) error) {
		calls.Go(func() {
			time.Sleep(after)
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			_ = fn(ctx) // what it does is in the record
		})
	}
	call(any(5*time.Second), any(3*time.Second), f.Suspend)
	call(any(5*time.Second), any(3*time.Second), f.Suspend)
	call(any(8*time.Second), time.Minute, f.Resume)
	call(any(10*time.Second), time.Minute, f.Stop)
	calls.Wait()
	synctest.Wait()
	running := false
	for _, e := range drained(t, sub) {
		// A status comes before what the function does at the same moment.
		turns := models.Event{Life: 1, State: "turns"}
		for len(works) > 0 && works[0].Before(e.At) {
			if len(record) == 0 || record[len(record)-1] != turns { // a turn may repeat
				record = append(record, turns)
			}
			works = works[1:]
		}
		if running {
			record = append(record, models.Event{State: "Status" + e.To})
		}
		running = running || e.To == string(worker.StatusRunning)
	}
	if len(works) > 0 {
		t.Errorf("the function worked %d times after the end of its worker", len(works))
	}
	return record
}
