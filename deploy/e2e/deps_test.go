package e2e

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions checks what the tests on Kubernetes may import: no
// client of Kubernetes but the project's own, since they use kubectl.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{Path: "."},
			{Path: "app", Imports: []string{".", "./grpcdrain", "github.com/coder/websocket", "google.golang.org/grpc"}, Brings: []string{"..."}},
		},
	})
}
