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
		Requires: []conventions.Require{
			{Module: "github.com/pleme-io/lifecycle-go"},
			{Module: "github.com/pleme-io/lifecycle-go/vet", TestOnly: true},
			{Module: "go.uber.org/goleak", TestOnly: true},
			{Module: "go.yaml.in/yaml/v3", TestOnly: true},
		},
	})
}
