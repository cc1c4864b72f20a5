package viperconfig_test

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions holds the import table of the viperconfig module.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{Path: ".", Imports: []string{"github.com/go-viper/mapstructure", "github.com/spf13/viper", ".", "./config"}, Brings: []string{"..."}},
		},
	})
}
