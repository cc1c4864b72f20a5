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
			{Path: "cmd/lifecyclectl/run", Imports: []string{".", "./config", "./worker"}, Brings: []string{"..."}, Never: []string{"github.com/nats-io/nats-server/v2"}},
			{Path: "vet", Imports: []string{".", "./internal/safe", "k8s.io/api", "k8s.io/apimachinery", "sigs.k8s.io/json", "go.yaml.in/yaml/v3"}, Brings: []string{"..."}, Never: []string{"k8s.io/client-go", "github.com/nats-io/nats-server/v2"}},
			{Path: "cmd/lifecyclectl", Imports: []string{".", "./config", "./fleet/vet", "./fleet/cmd/lifecyclectl/run", "github.com/spf13/cobra"}, Brings: []string{"..."}, Never: []string{"k8s.io/client-go", "github.com/nats-io/nats-server/v2"}},
		},
		Requires: []conventions.Require{
			{Module: "github.com/pleme-io/lifecycle-go"},
			{Module: "github.com/rogpeppe/go-internal", TestOnly: true},
			{Module: "github.com/spf13/cobra"},
			{Module: "go.uber.org/goleak", TestOnly: true},
			{Module: "go.yaml.in/yaml/v3"},
			{Module: "k8s.io/api"},
			{Module: "k8s.io/apimachinery"},
			{Module: "sigs.k8s.io/json"},
		},
	})
}
