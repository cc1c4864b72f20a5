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
		},
		Requires: []conventions.Require{
			{Module: "github.com/pleme-io/lifecycle-go"},
			{Module: nats},
			{Module: server},
			{Module: "github.com/nats-io/nkeys"},
			{Module: "github.com/nats-io/nuid"},
			{Module: "github.com/google/btree"},
			{Module: "github.com/anishathalye/porcupine", TestOnly: true},
			{Module: "go.uber.org/goleak", TestOnly: true},
		},
	})
}
