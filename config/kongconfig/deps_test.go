package kongconfig_test

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions holds the import table of the kongconfig module.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{Path: ".", Imports: []string{"github.com/alecthomas/kong", "./config"}, Brings: []string{"..."}},
		},
		Requires: []conventions.Require{
			{Module: "github.com/pleme-io/lifecycle-go"},
			{Module: "github.com/alecthomas/kong"},
			{Module: "go.uber.org/goleak", TestOnly: true},
		},
	})
}
