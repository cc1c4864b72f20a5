package workflowtest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/workflow"
	"github.com/pleme-io/lifecycle-go/fleet/workflow/workflowtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type order struct {
	ID    string `json:"id"    lifecycle:"id"`
	State string `json:"phase" lifecycle:"phase"`
}

func (o *order) EntityID() string       { return o.ID }
func (o *order) Workflow() string       { return "order" }
func (o *order) Phase() string          { return o.State }
func (o *order) IsTerminal() bool       { return workflow.DefaultIsTerminal(o, phases) }
func (o *order) KVBucket() string       { return "ORDERS" }
func (o *order) KVKey(id string) string { return id }
func (o *order) ParentEntityID() string { return "" }

var phases = workflow.Transitions{"placed": {"paid", "cancelled"}, "paid": {"shipped"}, "shipped": {}, "cancelled": {}}

// TestOrderOfADay tests what takes hours: a deadline, reminders, and a hook that fails
// for half an hour.
func TestOrderOfADay(t *testing.T) {
	workflowtest.Run(t, []string{"ORDERS"}, func(t *testing.T, w *workflowtest.World) {
		began := time.Now()
		reminded, shipped := 0, time.Duration(0)
		err := w.Register("order", func() workflow.Participant { return new(order) }, phases, workflow.WithJournal(),
			workflow.WithDeadline("placed", "cancelled", 14*time.Hour),
			workflow.WithHook(workflow.Hook{Name: "remind", Timers: []string{"remind"}, Do: func(context.Context, workflow.Reaction) error {
				reminded++
				return nil
			}}),
			workflow.WithHook(workflow.Hook{Name: "ship", On: []string{"shipped"}, Attempts: 100, Do: func(_ context.Context, r workflow.Reaction) error {
				if time.Since(r.At) < 30*time.Minute {
					return errors.New("the carrier is away")
				}
				shipped = time.Since(r.At)
				return nil
			}}))
		if err != nil {
			t.Fatal(err)
		}
		w.Start()
		ctx := t.Context()
		orders := workflow.For[*order](w.Manager, "order")
		for _, id := range []string{"paid", "unpaid"} {
			if err := orders.Create(ctx, &order{id, "placed"}); err != nil {
				t.Fatal(err)
			}
		}
		w.Advance(13 * time.Hour)
		if err := orders.Transition(ctx, "paid", "paid", workflow.TransitionSourceRule, "", workflow.SetTimer(workflow.Timer{Name: "remind", After: 30 * time.Minute, Every: 30 * time.Minute})); err != nil {
			t.Fatal(err)
		}
		w.Advance(2 * time.Hour)
		if o, err := orders.Get(ctx, "unpaid"); err != nil || o.State != "cancelled" {
			t.Errorf("unpaid for 15 hours: %+v, %v", o, err)
		}
		if reminded != 4 {
			t.Errorf("reminded %d times in 2 hours, want 4", reminded)
		}
		if err := orders.Transition(ctx, "paid", "shipped", workflow.TransitionSourceRule, ""); err != nil {
			t.Fatal(err)
		}
		w.Advance(time.Hour)
		if shipped < 30*time.Minute || shipped > 40*time.Minute {
			t.Errorf("shipped after %v", shipped)
		}
		w.Advance(2 * time.Hour)
		if reminded != 4 {
			t.Errorf("reminded %d times, want none in a terminal phase", reminded)
		}
		if events, err := orders.History(ctx, "paid"); err != nil || len(events) != 3 || events[1].At.Sub(began).Round(time.Minute) != 13*time.Hour {
			t.Errorf("%+v, %v", events, err)
		}
	})
}

// TestWorldsOneAfterTheOther asks for some bubbles at once.
func TestWorldsOneAfterTheOther(t *testing.T) {
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			workflowtest.Run(t, []string{"ORDERS"}, func(t *testing.T, w *workflowtest.World) {
				err := w.Register("order", func() workflow.Participant { return new(order) }, phases, workflow.WithDeadline("placed", "cancelled", time.Hour))
				if err != nil {
					t.Fatal(err)
				}
				w.Start()
				if err := w.Create(t.Context(), &order{"1", "placed"}); err != nil {
					t.Fatal(err)
				}
				w.Advance(59 * time.Minute)
				if o, err := w.Get(t.Context(), "order", "1"); err != nil || o.Phase() != "placed" {
					t.Errorf("early: %v, %v", o, err)
				}
				w.Advance(time.Minute)
				if o, err := w.Get(t.Context(), "order", "1"); err != nil || o.Phase() != "cancelled" {
					t.Errorf("late: %v, %v", o, err)
				}
			})
		})
	}
}

// TestStuckEntities counts and lists what has been in its phase for hours.
func TestStuckEntities(t *testing.T) {
	workflowtest.Run(t, []string{"ORDERS"}, func(t *testing.T, w *workflowtest.World) {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(w.Register("order", func() workflow.Participant { return new(order) }, phases))
		ctx, began := t.Context(), time.Now()
		must(w.Create(ctx, &order{"1", "placed"}))
		must(w.Create(ctx, &order{"2", "placed"}))
		w.Advance(2 * time.Hour)
		must(w.Create(ctx, &order{"3", "placed"}))
		must(w.Transition(ctx, "order", "2", "paid", workflow.TransitionSourceRule, ""))
		w.Advance(time.Hour)
		counts, err := w.Counts(ctx, "order", 2*time.Hour)
		must(err)
		got := ""
		for _, c := range counts {
			got += fmt.Sprintf("%s %d %d %v, ", c.Phase, c.Entities, c.Stuck, c.Terminal)
		}
		if got != "cancelled 0 0 true, paid 1 0 false, placed 2 1 false, shipped 0 0 true, " || counts[2].Oldest.Sub(began) > time.Minute {
			t.Errorf("%s%+v", got, counts)
		}
		for _, c := range []struct {
			opts workflow.ListOptions
			want int
		}{
			{workflow.ListOptions{InPhaseFor: 2 * time.Hour}, 1}, {workflow.ListOptions{InPhaseFor: time.Hour}, 3},
			{workflow.ListOptions{InPhaseFor: time.Hour, Phase: "paid"}, 1}, {workflow.ListOptions{InPhaseFor: 4 * time.Hour}, 0},
		} {
			list, err := w.List(ctx, "order", c.opts)
			must(err)
			if len(list) != c.want {
				t.Errorf("%+v: %d, want %d", c.opts, len(list), c.want)
			}
		}
	})
}
