package bench

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions holds what is compared with what. Measurements are tests, so
// no package of this module may need a peer outside of them.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{Path: "."},
			{Path: "probes"},
			{Path: "units"},
			{Path: "serving"},
			{Path: "stop"},
			{Path: "host"},
			{Path: "workflow"},
			{Path: "internal/..."},
			{Path: "cmd/benchdoc", Imports: []string{"golang.org/x/perf"}, Brings: []string{"..."}},
		},
		Requires: []conventions.Require{
			{Module: "github.com/pleme-io/lifecycle-go", TestOnly: true},
			{Module: "github.com/pleme-io/lifecycle-go/fleet", TestOnly: true},
			{Module: "github.com/nats-io/nats.go", TestOnly: true},
			{Module: "github.com/c360studio/semstreams", TestOnly: true},
			{Module: "github.com/AppsFlyer/go-sundheit", TestOnly: true},
			{Module: "github.com/alexliesenfeld/health", TestOnly: true},
			{Module: "github.com/hellofresh/health-go/v5", TestOnly: true},
			{Module: "sigs.k8s.io/controller-runtime", TestOnly: true},
			{Module: "github.com/go-logr/logr", TestOnly: true}, // silences controller-runtime
			{Module: "github.com/oklog/run", TestOnly: true},
			{Module: "github.com/thejerf/suture/v4", TestOnly: true},
			{Module: "go.uber.org/fx", TestOnly: true},
			{Module: "golang.org/x/sync", TestOnly: true},
			{Module: "go.uber.org/goleak", TestOnly: true},
			{Module: "golang.org/x/perf"},
		},
	})
}
