package workflow_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// Complete never guesses: where the table leads to more than one terminal phase, and no
// option names one, nothing is written and the error lists them.
func TestCompleteRefusesToGuess(t *testing.T) {
	order := workflow.Transitions{
		"new":     {"paid", "cancelled"},
		"paid":    {"shipped", "refunded"},
		"shipped": {}, "refunded": {}, "cancelled": {},
	}
	for name, c := range map[string]struct {
		table workflow.Transitions
		opts  []workflow.RegisterOption
		from  string
		want  string // the phase afterwards
		says  []string
	}{
		"a mission that flies": {table, nil, "flying", "flying", []string{`"aborted", "completed"`, "WithCompletion"}},
		"a mission that lands": {table, nil, "landing", "completed", nil},
		"a new order":          {order, nil, "new", "new", []string{`"cancelled", "refunded", "shipped"`}},
		"a paid order":         {order, nil, "paid", "paid", []string{`"refunded", "shipped"`}},
		"named":                {order, []workflow.RegisterOption{workflow.WithCompletion("shipped")}, "paid", "shipped", nil},
		"named, not yet":       {order, []workflow.RegisterOption{workflow.WithCompletion("shipped")}, "new", "new", []string{`"new" -> "shipped"`}},
		"named, in the air":    {table, []workflow.RegisterOption{workflow.WithCompletion("completed")}, "flying", "flying", []string{`"flying" -> "completed"`}},
		"only failed":          {workflow.Transitions{"a": {"failed"}, "failed": {}}, nil, "a", "a", []string{"no terminal phase", "Fail"}},
		"no edge to it":        {workflow.Transitions{"a": {"b"}, "b": {"c"}, "c": {}}, nil, "a", "a", []string{`"a" -> "c"`}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			b := brokertest.Server(t, broker.Config{Buckets: buckets()})
			m := workflow.NewManager(b.JetStream(), brokertest.Quiet())
			defer m.Close()
			must(t, m.Register(survey, newMission, c.table, c.opts...))
			missions := workflow.For[*Mission](m, survey)
			must(t, missions.Create(ctx, &Mission{ID: "m", State: c.from}))
			err := missions.Complete(ctx, "m")
			got, getErr := missions.Get(ctx, "m")
			must(t, getErr)
			if got.State != c.want {
				t.Errorf("Complete moved %q to %q, want %q", c.from, got.State, c.want)
			}
			if (err != nil) != (c.says != nil) || err != nil && !errors.Is(err, workflow.ErrInvalidTransition) {
				t.Errorf("error: %v", err)
			}
			for _, text := range c.says {
				if err != nil && !strings.Contains(err.Error(), text) {
					t.Errorf("the error does not say %s: %v", text, err)
				}
			}
		})
	}
}

func TestCompletionIsATerminalPhase(t *testing.T) {
	m := workflow.NewManager(brokertest.Server(t, broker.Config{}).JetStream(), brokertest.Quiet())
	defer m.Close()
	for _, phase := range []string{"", "flying", "complete"} {
		err := m.Register(survey, newMission, table, workflow.WithCompletion(phase))
		if !errors.Is(err, workflow.ErrInvalidTransitionsTable) || !strings.Contains(err.Error(), "aborted, completed, failed") {
			t.Errorf("WithCompletion(%q): %v", phase, err)
		}
	}
	must(t, m.Register(survey, newMission, table, workflow.WithCompletion("completed")))
	def, err := m.GetWorkflowDefinition(survey)
	must(t, err)
	if def.Completion != "completed" {
		t.Errorf("the definition has the completion %q", def.Completion)
	}
}
