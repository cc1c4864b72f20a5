package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

const (
	bucket = "MISSIONS"
	survey = "drone-survey"
)

// table is the life of a mission.
var table = workflow.Transitions{
	"planning":  {"flying", "aborted"},
	"flying":    {"capturing", "landing", "aborted"},
	"capturing": {"flying"},
	"landing":   {"completed", "failed"},
	"completed": {}, "failed": {}, "aborted": {},
}

// Mission is one flight of a drone.
type Mission struct {
	ID       string `json:"id" lifecycle:"id"`
	State    string `json:"phase" lifecycle:"phase"`
	Org      string `json:"org" lifecycle:"indexable"`
	Pictures int    `json:"pictures"`
	Priority int    `json:"priority" lifecycle:"operator_writable"`
	Comment  string `json:"comment" lifecycle:"operator_writable"`
}

// EntityID returns the mission's id.
func (m *Mission) EntityID() string { return m.ID }

// Workflow returns the type under which missions are registered.
func (*Mission) Workflow() string { return survey }

// Phase returns its phase.
func (m *Mission) Phase() string { return m.State }

// IsTerminal reports whether its phase is terminal.
func (m *Mission) IsTerminal() bool { return table.IsTerminal(m.State) }

// KVBucket returns the bucket of missions.
func (*Mission) KVBucket() string { return bucket }

// KVKey returns the key of a mission: its id.
func (*Mission) KVKey(id string) string { return id }

// ParentEntityID is empty: a mission has no parent.
func (*Mission) ParentEntityID() string { return "" }

func missions(b *broker.Broker, log *slog.Logger) (*workflow.Manager, error) {
	mgr := workflow.NewManager(b.JetStream(), log)
	return mgr, mgr.Register(survey, func() workflow.Participant { return new(Mission) }, table)
}

// fly plans missions and moves active ones. Two processes do so at
// once: the table refuses a move that the other process has already made.
func fly(app *lifecycle.App, b *broker.Broker, log *slog.Logger) error {
	mgr, err := missions(b, log)
	if err != nil {
		return err
	}
	all := workflow.For[*Mission](mgr, survey)
	step := func(ctx context.Context) error {
		active, err := all.List(ctx, workflow.ListOptions{Active: true})
		if err != nil {
			return err
		}
		if len(active) < 12 {
			id := fmt.Sprintf("acme.drones.north.survey.mission.%06d", rand.IntN(1e6))
			return all.Create(ctx, &Mission{ID: id, State: "planning", Org: []string{"acme", "globex", "initech"}[rand.IntN(3)]})
		}
		m := active[rand.IntN(len(active))]
		next, note := decide(m)
		err = all.TransitionWith(ctx, m.ID, next, workflow.TransitionSourceRule, note, func(m *Mission) error {
			if next == "capturing" {
				m.Pictures++
			}
			return nil
		})
		if errors.Is(err, workflow.ErrInvalidTransition) || errors.Is(err, workflow.ErrTerminalPhase) {
			return nil // the other process, or an operator, was faster
		}
		return err
	}
	app.Go("pilot", func(ctx context.Context) error {
		return lifecycle.RunLoop(ctx, 700*time.Millisecond, step, lifecycle.WithImmediateTick())
	}).OnShutdown("missions", func(context.Context) error { return mgr.Close() })
	return nil
}

// decide returns the next phase of a mission.
func decide(m *Mission) (next, note string) {
	switch dice := rand.IntN(10); {
	case m.State == "planning" && dice == 0:
		return "aborted", "no clearance"
	case m.State == "planning":
		return "flying", "wind is fine"
	case m.State == "flying" && dice < 6:
		return "capturing", "target in sight"
	case m.State == "flying":
		return "landing", ""
	case m.State == "capturing":
		return "flying", ""
	case dice < 2:
		return "failed", "hard landing"
	}
	return "completed", ""
}
