package fleet

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions holds the import table of the fleet module.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{Path: "."},
			{Path: "host/engine/wasm", Imports: []string{"./fleet/host/engine", "./internal/safe", "github.com/tetratelabs/wazero"}, Brings: []string{"..."}},

		},
		Requires: []conventions.Require{
			{Module: "github.com/pleme-io/lifecycle-go"},
			{Module: "go.uber.org/goleak", TestOnly: true},
		},
	})
}
