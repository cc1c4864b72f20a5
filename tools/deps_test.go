package tools

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions holds what the generators may import.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{Path: "docgen", Imports: []string{".", "./fsm", "./worker", "./procpool", "./internal/..."}, Brings: []string{"golang.org/x/sync"}},
		},
		Requires: []conventions.Require{
			{Module: "github.com/pleme-io/lifecycle-go"},
			{Module: "go.uber.org/goleak", TestOnly: true},
		},
	})
}
