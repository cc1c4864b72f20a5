package diagram

import (
	"context"
	"maps"
	"testing"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagram"
	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1/operatorv1connect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// flown is the server of an entity that was polled once, and paused.
type flown struct {
	operatorv1connect.WorkflowServiceClient
}

func (flown) GetEntity(context.Context, *operatorv1.GetEntityRequest) (*operatorv1.Entity, error) {
	return &operatorv1.Entity{Phase: "flying"}, nil
}

func (flown) GetHistory(context.Context, *operatorv1.GetHistoryRequest) (*operatorv1.GetHistoryResponse, error) {
	return &operatorv1.GetHistoryResponse{Entries: []*operatorv1.HistoryEntry{
		{To: "planning"},
		{From: "planning", To: "flying"},
		{From: "flying", To: "flying"},
		{From: "flying", To: "flying", Pause: "pause"},
		{From: "flying", To: "flying", Pause: "resume"},
	}}, nil
}

// A pause is no transition, also where a phase may follow itself.
func TestPausesAreNotCounted(t *testing.T) {
	cmd := Command()
	cmd.SetContext(t.Context())
	c := &cli.Call{Command: cmd, Server: &cli.Server{Client: &client.Client{Workflows: flown{}}}}
	d := drawingOf(&operatorv1.Definition{Type: "survey"})
	if err := d.addEntity(c, "survey", "m-1"); err != nil {
		t.Fatal(err)
	}
	want := map[diagram.Edge]int{{From: "planning", To: "flying"}: 1, {From: "flying", To: "flying"}: 1}
	if d.Current != "flying" || !maps.Equal(d.Been, want) {
		t.Errorf("it is %q and has been %v, want %v", d.Current, d.Been, want)
	}
}
