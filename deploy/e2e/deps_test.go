package e2e

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions holds what the tests on Kubernetes may bring with them: no
// client of Kubernetes, since kubectl is one.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{Path: "."},
			{Path: "app", Imports: []string{".", "google.golang.org/grpc"}, Brings: []string{"..."}},
		},
		Requires: []conventions.Require{
			{Module: "github.com/pleme-io/lifecycle-go"},
			{Module: "github.com/coder/websocket", TestOnly: true},
			{Module: "go.uber.org/goleak", TestOnly: true},
			{Module: "google.golang.org/grpc"},
		},
	})
}
