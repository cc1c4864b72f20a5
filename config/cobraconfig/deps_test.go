package cobraconfig_test

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions holds the import table of the cobraconfig module.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{Path: ".", Imports: []string{"github.com/spf13/cobra", "github.com/spf13/pflag", "./config"}, Brings: []string{"..."}},
		},
	})
}
