package examples

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions checks that the example programs import only public packages,
// as any other user does.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{Path: "service", Imports: []string{
				".", "./config", "./kube", "./metrics", "./worker", "github.com/coder/websocket", "github.com/prometheus/client_golang", "modernc.org/sqlite",
			}, Brings: []string{"..."}},
			{Path: "consumer", Imports: []string{".", "./worker", "./fleet/broker", "github.com/nats-io/nats.go"}, Brings: []string{"..."}},
			{Path: "orders", Imports: []string{".", "./config", "modernc.org/sqlite"}, Brings: []string{"..."}},
			{Path: "upgrade", Imports: []string{"."}, Brings: []string{"golang.org/x/sync"}},
			{Path: "tree", Imports: []string{".", "./worker"}, Brings: []string{"golang.org/x/sync"}},
			{Path: "mission", Imports: []string{".", "./fleet/broker", "./fleet/workflow", "github.com/nats-io/nats.go"}, Brings: []string{"..."}},
			{Path: "fleet", Imports: []string{
				".", "./worker", "./fleet/broker", "./fleet/workflow", "./fleet/presence", "./fleet/operator", "./fleet/host/...", "github.com/nats-io/nats.go",
			}, Brings: []string{"..."}},
			{Path: "shop", Imports: []string{
				"./worker", ".", "./config", "./procpool", "./procpool/sdk", "./fleet/broker", "./fleet/lease", "./fleet/workflow",
				"./fleet/presence", "./fleet/operator", "./fleet/host/...", "github.com/nats-io/nats.go",
			}, Brings: []string{"..."}},
			{Path: "pool", Imports: []string{".", "./procpool", "./procpool/sdk", "./worker"}, Brings: []string{"golang.org/x/sync"}},
			{Path: "hosted", Imports: []string{".", "./fleet/broker", "./fleet/host/...", "github.com/nats-io/nats.go"}, Brings: []string{"..."}},
		},
	})
}
