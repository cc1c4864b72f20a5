package bench

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions lists the compared modules. Measurements are tests, so
// only tests of this module may import a peer.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{Path: "."},
			{Path: "probes"},
			{Path: "units"},
			{Path: "serving"},
			{Path: "stop"},
			{Path: "upgrade"},
			{Path: "rest"},
			{Path: "workers"},
			{Path: "procpool"},
			{Path: "workflow"},
			{Path: "host"},
			{Path: "clients"},
			{
				Path: "clients/server",
				Imports: []string{
					".", "github.com/coder/websocket", "google.golang.org/grpc", "google.golang.org/protobuf",
				},
				Brings: []string{"..."},
			},
			{Path: "clients/cmd/clientdoc", Imports: []string{"./bench/clients", "./internal/pages"}},
			{Path: "internal/rawhttp", Imports: []string{"./bench/internal/cpu"}},
			{Path: "internal/..."},
			{Path: "cmd/benchdoc", Imports: []string{"./internal/pages", "golang.org/x/perf", "go.yaml.in/yaml/v3"}, Brings: []string{"..."}},
		},
	})
}
