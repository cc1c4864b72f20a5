package fleet

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions holds the import table of the fleet module.
func TestConventions(t *testing.T) {
	const (
		nats   = "github.com/nats-io/nats.go"
		server = "github.com/nats-io/nats-server/v2"
	)
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{Path: "."},
			{Path: "broker/...", Imports: []string{nats, server, "./worker", "./fleet/broker"}, Brings: []string{"..."}},
			{Path: "lease", Imports: []string{nats, "github.com/nats-io/nuid"}, Brings: []string{"..."}, Never: []string{server}},
			{Path: "workflow", Imports: []string{nats, "github.com/nats-io/nuid", "github.com/google/btree", "./fsm", "./internal/..."}, Brings: []string{"..."}, Never: []string{server}},
			{Path: "host", Imports: []string{
				".", "./worker", "./fsm", "./internal/safe", "./fleet/broker", "./fleet/workflow", "./fleet/host/engine", "./fleet/host/fetch", nats,
			}, Brings: []string{"..."}},
			{Path: "host/metrics", Imports: []string{"./fleet/host", "github.com/prometheus/client_golang"}, Brings: []string{"..."}},
			// Whoever wants one engine does not build the others.
			{Path: "host/fetch"},
			{Path: "host/engine"},
			{Path: "host/engine/enginetest", Imports: []string{"./fleet/host/engine"}},
			{Path: "host/engine/internal/...", Imports: []string{"./fleet/host/engine"}},
			{Path: "host/engine/native", Imports: []string{"./fleet/host/engine", "./internal/safe"}},
			{Path: "host/engine/wasm", Imports: []string{"./fleet/host/engine", "./internal/safe", "github.com/tetratelabs/wazero"}, Brings: []string{"golang.org/x/sys"}},
			{Path: "host/engine/starlark", Imports: []string{"./fleet/host/engine/...", "./internal/safe", "go.starlark.net"}, Brings: []string{"golang.org/x/sys"}},
			{Path: "host/engine/js", Imports: []string{"./fleet/host/engine/...", "./internal/safe", "github.com/dop251/goja"}, Brings: []string{"..."}},
			{Path: "host/engine/python", Imports: []string{"./fleet/host/engine/...", "./procpool/..."}},
		},
		Requires: []conventions.Require{
			{Module: "github.com/pleme-io/lifecycle-go"},
			{Module: nats},
			{Module: server},
			{Module: "github.com/nats-io/nkeys"},
			{Module: "github.com/nats-io/nuid"},
			{Module: "github.com/google/btree"},
			{Module: "github.com/anishathalye/porcupine", TestOnly: true},
			{Module: "github.com/prometheus/client_golang"},
			{Module: "github.com/tetratelabs/wazero"},
			{Module: "go.starlark.net"},
			{Module: "github.com/dop251/goja"},
			{Module: "go.uber.org/goleak", TestOnly: true},
		},
	})
}
