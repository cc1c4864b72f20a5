package lifecycle_test

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions checks the imports of the root module against their table. The
// table keeps a promise: a program that imports lifecycle gets golang.org/x/sync,
// and no other module from outside.
func TestConventions(t *testing.T) {
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{Path: ".", Imports: []string{"golang.org/x/sync", "./fsm", "./health", "./worker", "./internal/..."}},
			{Path: "fsm"},
			{Path: "internal/statusz", Imports: []string{"./worker", "./internal/..."}},
			{
				Path: "internal/run",
				Imports: []string{
					"github.com/prometheus/client_golang",
					".", "./config", "./health", "./metrics", "./worker",
					"./internal/cmdline", "./internal/run/runconfig",
				},
				Brings: []string{"..."},
			},
			{Path: "internal/run/runconfig", Imports: []string{".", "./worker"}, Brings: []string{"..."}},
			{Path: "cmd/lifecycle-run", Imports: []string{"./internal/run"}, Brings: []string{"..."}},
			{Path: "internal/...", Imports: []string{"./fsm", "./internal/..."}},
			{Path: "trace"},
			{Path: "health", Imports: []string{"./fsm", "./internal/..."}},
			{Path: "worker", Imports: []string{"./fsm", "./internal/..."}},
			{Path: "procpool/sdk"},
			{Path: "procpool/wire"},
			{Path: "procpool/child", Imports: []string{"./procpool/wire", "./internal/..."}},
			{Path: "procpool/child/example", Imports: []string{"./procpool/child"}},
			{Path: "procpool/conformance", Imports: []string{"./procpool/wire", "./worker"}},
			{Path: "procpool/cmd/conformance", Imports: []string{"./procpool/conformance"}},
			{Path: "procpool/sdk"},
			{Path: "procpool", Imports: []string{"./trace", "./procpool/wire", "./procpool/child", "./fsm", "./worker", "./internal/..."}},
			{Path: "lifecycletest", Imports: []string{".", "./fsm", "./internal/suggest"}},
			{
				Path: "metrics",
				Imports: []string{
					"github.com/prometheus/client_golang", ".", "./fsm", "./health", "./worker", "./procpool",
					"./internal/...",
				},
				Brings: []string{"..."},
			},
			{Path: "config", Imports: []string{
				"github.com/knadh/koanf", "go.yaml.in/yaml/v3",
				".", "./internal/configjson", "./internal/setting", "./internal/suggest", "./internal/text",
			}, Brings: []string{"..."}},
		},
	})
}
