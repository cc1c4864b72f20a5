package vet

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions checks the imports of the vet module against their table.
func TestConventions(t *testing.T) {
	const (
		yaml  = "go.yaml.in/yaml/v3"
		cobra = "github.com/spf13/cobra"
	)
	// A check in CI builds in seconds.
	never := []string{"k8s.io/client-go", "github.com/nats-io/nats.go", "github.com/nats-io/nats-server/v2"}
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{
				Path: ".",
				Imports: []string{
					".", "./config", "./internal/cmdline", "./internal/text",
					"k8s.io/api", "k8s.io/apimachinery", "sigs.k8s.io/json", "sigs.k8s.io/yaml", yaml,
				},
				Brings: []string{"..."},
				Never:  never,
			},
			{Path: "command", Imports: []string{".", "./config", "./vet", cobra}, Brings: []string{"..."}, Never: never},
			{Path: "cmd/lifecycle-vet", Imports: []string{"./vet/command", cobra}, Brings: []string{"..."}, Never: never},
		},
	})
}
