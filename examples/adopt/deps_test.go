package adopt

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions holds what the programs of this module may import.
func TestConventions(t *testing.T) {
	all := func(path string, imports ...string) conventions.Room {
		return conventions.Room{Path: path, Imports: append(imports, "."), Brings: []string{"..."}}
	}
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			all("migrate/oklogrun/...", "github.com/oklog/run"),
			all("migrate/errgroup/...", "golang.org/x/sync"),
			all("migrate/signalcontext/..."),
			all("migrate/fx/...", "go.uber.org/fx"),
			all("migrate/suture/...", "github.com/thejerf/suture/v4", "./worker"),
			all("migrate/controllerruntime/...", "sigs.k8s.io/controller-runtime", "k8s.io/api"),
			all("grpc/...", "./grpcdrain", "google.golang.org/grpc", "google.golang.org/grpc/examples"),
			all("httpnats/...", "github.com/jackc/pgx/v5", "github.com/nats-io/nats.go"),
			all("."),
		},
	})
}
