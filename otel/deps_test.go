package otel

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions checks the imports of the otel module against their table.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{
				Path: ".",
				Imports: []string{
					"go.opentelemetry.io/otel", "go.opentelemetry.io/otel/metric", ".", "./fsm", "./trace", "./worker",
					"./internal/call", "./internal/text",
				},
				Brings: []string{"..."},
				Never:  []string{"go.opentelemetry.io/otel/sdk"},
			},
		},
	})
}
