package grpcdrain_test

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions holds the import table of the grpcdrain module.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{Path: ".", Imports: []string{"google.golang.org/grpc", "."}, Brings: []string{"..."}},
		},
	})
}
