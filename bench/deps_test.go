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
			{Path: "rest"},
			{Path: "workers"},
			{Path: "procpool"},
			{Path: "workflow"},
			{Path: "host"},
			{Path: "rollout"},
			{Path: "clients"},
			{Path: "clients/server", Imports: []string{".", "github.com/coder/websocket", "google.golang.org/grpc", "google.golang.org/protobuf"}, Brings: []string{"..."}},
			{Path: "clients/cmd/clientdoc", Imports: []string{"./bench/clients", "./internal/pages"}},
			{Path: "internal/rawhttp", Imports: []string{"./bench/internal/cpu"}},
			{Path: "internal/..."},
			{Path: "cmd/scaledoc", Imports: []string{".", "./bench/rollout", "./internal/pages"}, Brings: []string{"golang.org/x/sync"}},
			{Path: "cmd/benchdoc", Imports: []string{"./internal/pages", "golang.org/x/perf", "go.yaml.in/yaml/v3"}, Brings: []string{"..."}},
		},
		Requires: []conventions.Require{
			{Module: "github.com/pleme-io/lifecycle-go"},
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
			{Module: "github.com/aretw0/lifecycle", TestOnly: true},
			{Module: "go.uber.org/fx", TestOnly: true},
			{Module: "golang.org/x/sync"},
			{Module: "golang.org/x/net"}, // its HTTP/2 server is a peer of net/http's
			{Module: "github.com/hashicorp/go-plugin", TestOnly: true},
			{Module: "github.com/hashicorp/go-hclog", TestOnly: true}, // silences go-plugin
			{Module: "github.com/coder/websocket"},                    // of the server that clients meet
			{Module: "google.golang.org/grpc"},
			{Module: "google.golang.org/protobuf"},
			{Module: "github.com/roadrunner-server/pool", TestOnly: true},
			{Module: "github.com/roadrunner-server/goridge/v3", TestOnly: true},
			{Module: "go.uber.org/zap", TestOnly: true}, // silences RoadRunner
			{Module: "go.uber.org/goleak", TestOnly: true},
			{Module: "golang.org/x/perf"},
			{Module: "go.yaml.in/yaml/v3"},
			{Module: "modernc.org/sqlite", TestOnly: true},
			{Module: "github.com/jackc/pgx/v5", TestOnly: true},
		},
	})
}
