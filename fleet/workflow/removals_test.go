package workflow_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// TestRemovalsWithoutMarkers removes entities in ways that send no message. Lists,
// lookups and watches notice each.
func TestRemovalsWithoutMarkers(t *testing.T) {
	for name, remove := range map[string]func(ctx context.Context, js jetstream.JetStream, s jetstream.Stream) error{
		"time to live": func(ctx context.Context, js jetstream.JetStream, s jetstream.Stream) error {
			before := s.CachedInfo().Config
			short := before
			short.MaxAge, short.Duplicates = time.Second, time.Second
			_, err := js.UpdateStream(ctx, short)
			for left := uint64(1); err == nil && left > 0; {
				var info *jetstream.StreamInfo
				if info, err = s.Info(ctx); err == nil {
					left = info.State.Msgs
					time.Sleep(10 * time.Millisecond)
				}
			}
			if err == nil {
				_, err = js.UpdateStream(ctx, before)
			}
			return err
		},
		"purge of the stream": func(ctx context.Context, _ jetstream.JetStream, s jetstream.Stream) error { return s.Purge(ctx) },
		"purge of a subject": func(ctx context.Context, _ jetstream.JetStream, s jetstream.Stream) error {
			return s.Purge(ctx, jetstream.WithPurgeSubject("$KV.MISSIONS.mission.gone"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			ctx := testContext(t)
			events, err := r.WatchEvents(ctx, survey)
			must(t, err)
			r.create(t, "gone", "flying")
			if name == "purge of a subject" {
				r.create(t, "stays", "flying")
				must(t, r.Delete(ctx, survey, "stays"))
				r.create(t, "stays", "flying")
			}
			await(t, events, func(e workflow.Event) bool {
				return e.Kind == workflow.EventPut && e.Record.EntityID == "gone"
			})
			s, err := r.js.Stream(ctx, "KV_MISSIONS")
			must(t, err)
			must(t, remove(ctx, r.js, s))
			await(t, events, func(e workflow.Event) bool {
				return e.Kind == workflow.EventDeleted && e.Record.EntityID == "gone" || e.Kind == workflow.EventGap
			})
			brokertest.Await(t, "the list to forget the entity", func() bool {
				list, err := r.missions.List(ctx, workflow.ListOptions{Phase: "flying"})
				must(t, err)
				for _, m := range list {
					if m.ID == "gone" {
						return false
					}
				}
				return true
			})
			if _, err := r.LookupByEntityID(ctx, "gone"); !errors.Is(err, workflow.ErrEntityNotFound) {
				t.Errorf("lookup: %v", err)
			}
			r.create(t, "gone", "planning")
			r.move(t, "gone", "flying")
			list, err := r.missions.List(ctx, workflow.ListOptions{Fresh: true, Phase: "flying"})
			must(t, err)
			if len(list) == 0 {
				t.Error("an entity of the same id is not listed")
			}
		})
	}
}

// await reads events until one is as wanted.
func await(t *testing.T, events <-chan workflow.Event, wanted func(workflow.Event) bool) {
	t.Helper()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				t.Fatal("the watch has ended")
			}
			if wanted(e) {
				return
			}
		case <-time.After(patience):
			t.Fatal("the event does not come")
		}
	}
}

// TestBucketThatIsDeleted deletes the bucket under a Manager. Lists and Ready say so,
// the watch sends a gap, and everything works with the bucket's successor.
func TestBucketThatIsDeleted(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	r.create(t, "m", "flying")
	must(t, r.Ready(ctx))
	events, err := r.WatchEvents(ctx, survey)
	must(t, err)
	await(t, events, func(e workflow.Event) bool { return e.Kind == workflow.EventSynced })
	must(t, r.js.DeleteKeyValue(ctx, "MISSIONS"))
	await(t, events, func(e workflow.Event) bool { return e.Kind == workflow.EventGap })
	brokertest.Await(t, "Ready to say that the bucket is away", func() bool {
		brief, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		_, listed := r.List(brief, survey, workflow.ListOptions{})
		return r.Ready(brief) != nil && listed != nil
	})
	brokertest.Await(t, "the bucket's successor", func() bool { // the server removes files a moment later
		_, err := r.js.CreateKeyValue(ctx, missionsBucket)
		return err == nil
	})
	brokertest.Await(t, "Ready to say that the bucket is there", func() bool { return r.Ready(ctx) == nil })
	if got := listIDs(t, r, workflow.ListOptions{}); got != "" {
		t.Errorf("in the new bucket: %s", got)
	}
	r.create(t, "n", "flying")
	await(t, events, func(e workflow.Event) bool { return e.Record.EntityID == "n" })
}

// TestMaxStale asks for a list of a certain age.
func TestMaxStale(t *testing.T) {
	r := newRig(t)
	ctx := testContext(t)
	r.create(t, "m", "flying")
	before := time.Now()
	page, err := r.Query(ctx, survey, workflow.ListOptions{MaxStale: time.Nanosecond})
	must(t, err)
	if len(page.Records) != 1 || page.AsOf.Before(before) {
		t.Errorf("as of %v, asked at %v: %d records", page.AsOf, before, len(page.Records))
	}
	views := r.Views()
	if len(views) != 1 || !views[0].Ready || views[0].Bucket != "MISSIONS" || views[0].Entities != 1 || views[0].AsOf.Before(before) {
		t.Errorf("views: %+v", views)
	}
	must(t, r.js.DeleteKeyValue(ctx, "MISSIONS"))
	brief, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	// On a busy machine the view may know already that the bucket is gone.
	_, err = r.Query(brief, survey, workflow.ListOptions{MaxStale: time.Nanosecond})
	isAway := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, jetstream.ErrBucketNotFound)
	if !isAway {
		t.Errorf("of a bucket that is away: %v", err)
	}
}

// watched is the set of entities that a watch has told of.
type watched struct {
	mu  sync.Mutex
	ids map[string]bool
}

func watchIDs(t *testing.T, r *rig) *watched {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	events, err := r.WatchEvents(ctx, survey)
	must(t, err)
	w := &watched{ids: make(map[string]bool)}
	var reading sync.WaitGroup
	reading.Go(func() {
		for e := range events {
			w.mu.Lock()
			switch e.Kind {
			case workflow.EventPut:
				w.ids[e.Record.EntityID] = true
			case workflow.EventDeleted:
				delete(w.ids, e.Record.EntityID)
			case workflow.EventGap:
				clear(w.ids)
			}
			w.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		cancel()
		reading.Wait()
	})
	return w
}
