package examples

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions holds what the example programs may import: the public rooms,
// as anybody else would.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{Path: "service", Imports: []string{
				".", "github.com/coder/websocket", "github.com/prometheus/client_golang", "modernc.org/sqlite",
			}, Brings: []string{"..."}},
			{Path: "tree", Imports: []string{".", "./worker"}, Brings: []string{"golang.org/x/sync"}},
			{Path: "pool", Imports: []string{".", "./procpool", "./worker"}, Brings: []string{"golang.org/x/sync"}},
			{Path: "handover", Imports: []string{".", "./worker"}, Brings: []string{"golang.org/x/sync"}},
		},
		Requires: []conventions.Require{
			{Module: "github.com/pleme-io/lifecycle-go"},
			{Module: "github.com/coder/websocket"},
			{Module: "github.com/prometheus/client_golang"},
			{Module: "modernc.org/sqlite"},
			{Module: "go.uber.org/goleak", TestOnly: true},
		},
	})
}
