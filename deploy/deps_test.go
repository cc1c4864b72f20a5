package deploy

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions checks what the tests of the manifests may import: the module
// has no package to import.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{{Path: "."}},
	})
}
