package docker

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions checks the import table of the Docker module.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{
				Path: ".",
				Imports: []string{
					"./worker", "github.com/moby/moby/client", "github.com/moby/moby/api",
					"github.com/containerd/errdefs",
				},
				Brings: []string{"..."},
			},
			{Path: "internal/..."},
		},
	})
}
