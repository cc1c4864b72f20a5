package fleet

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/conventions"
)

// TestConventions holds the import table of the fleet module.
func TestConventions(t *testing.T) {
	const (
		nats    = "github.com/nats-io/nats.go"
		server  = "github.com/nats-io/nats-server/v2"
		connect = "connectrpc.com/connect"
		proto   = "google.golang.org/protobuf"
		cli     = "github.com/spf13/cobra"
		yaml    = "go.yaml.in/yaml/v3"
		api     = "google.golang.org/genproto/googleapis/api"
		rpc     = "google.golang.org/genproto/googleapis/rpc"
	)
	conventions.Check(t, conventions.Module{
		Rooms: []conventions.Room{
			{Path: "."},
			{Path: "internal/canary", Imports: []string{nats}, Brings: []string{"..."}, Never: []string{server}},
			{Path: "internal/pull", Imports: []string{nats}, Brings: []string{"..."}, Never: []string{server}},
			{Path: "internal/splice", Imports: []string{"github.com/tidwall/gjson"}, Brings: []string{"..."}},
			{Path: "internal/effects", Imports: []string{"./fleet/host/engine"}, Brings: []string{"..."}, Never: []string{nats, server}},
			{Path: "internal/replay", Imports: []string{nats}, Brings: []string{"..."}, Never: []string{server}},
			{Path: "internal/eventlog", Imports: []string{nats, "./fleet/broker/natserr", "./fleet/internal/replay"}, Brings: []string{"..."}, Never: []string{server}},
			{
				Path: "internal/diagnosis",
				Imports: []string{
					".", "./fleet/internal/endclass", "./fleet/internal/unittree", "./health", "./worker", "./internal/text",
					"./fleet/operator/operatorv1", proto,
				},
				Brings: []string{"..."},
				Never:  []string{nats, server},
			},
			{Path: "internal/...", Imports: []string{"./fsm", "./internal/text", "./worker"}},
			// Of the broker's folder, these build no server.
			{Path: "broker/natserr", Imports: []string{nats}, Brings: []string{"..."}, Never: []string{server}},
			{Path: "broker/identity"},
			{
				Path: "broker/...",
				Imports: []string{
					nats, server, "./worker", "./fleet/broker/...", "./fleet/internal/canary",
					"./fleet/internal/filelock", "./fleet/internal/redact",
				},
				Brings: []string{"..."},
			},
			{
				Path:    "cron",
				Imports: []string{nats, "./worker", "./internal/asynclog", "./internal/call", "./fleet/broker/natserr"},
				Brings:  []string{"..."},
				Never:   []string{server},
			},
			{
				Path:    "lease",
				Imports: []string{nats, "./fleet/broker/...", "./internal/deadline", "github.com/nats-io/nuid"},
				Brings:  []string{"..."},
				Never:   []string{server},
			},
			{
				Path: "workflow",
				Imports: []string{
					nats, "github.com/nats-io/nuid", "github.com/google/btree",
					"./fsm", "./trace", "./worker", "./internal/...", "./fleet/broker/natserr", "./fleet/internal/canary",
					"./fleet/internal/lanes", "./fleet/internal/pace",
					"./fleet/internal/pull", "./fleet/internal/replay", "./fleet/internal/servertime",
					"./fleet/internal/splice", "./fleet/internal/stream",
				},
				Brings: []string{"..."},
				Never:  []string{server},
			},
			{Path: "workflow/workflowtest", Imports: []string{nats, server, "./fleet/broker", "./fleet/internal/pace", "./fleet/workflow"}, Brings: []string{"..."}},
			{Path: "host", Imports: []string{
				".", "./worker", "./fsm", "./trace", "./internal/call", "./internal/cgroup", "./internal/text", "./fleet/broker/...",
				"./fleet/workflow", "./fleet/internal/effects", "./fleet/internal/lanes", "./fleet/internal/pull",
				"./fleet/internal/replay", "./fleet/internal/servertime",
				"./fleet/host/codesign", "./fleet/host/engine", "./fleet/host/engine/isolate", "./fleet/host/fetch", "./fleet/host/outbound", nats,
				"github.com/google/btree", "golang.org/x/sync", "golang.org/x/time",
			}, Brings: []string{"..."}},
			{Path: "workflow/metrics", Imports: []string{"./fleet/workflow", "github.com/prometheus/client_golang"}, Brings: []string{"..."}},
			{Path: "host/metrics", Imports: []string{"./fleet/host", "github.com/prometheus/client_golang"}, Brings: []string{"..."}},
			// A program with one engine does not build the others.
			{Path: "host/codesign"},
			{Path: "host/fetch"},
			{Path: "host/outbound", Imports: []string{"./fleet/host/engine", "./fleet/host/fetch"}},
			{Path: "host/engine", Imports: []string{"./trace"}},
			{Path: "host/internal/attacks"},
			{Path: "host/engine/enginetest", Imports: []string{"./fleet/host/engine", "./fleet/internal/effects"}},
			{Path: "host/engine/internal/...", Imports: []string{"./fleet/host/engine"}},
			{Path: "host/engine/native", Imports: []string{"./fleet/host/engine", "./internal/call"}},
			{
				Path: "host/engine/wasm",
				Imports: []string{
					"./fleet/host/engine", "./internal/call", "github.com/tetratelabs/wazero",
				},
				Brings: []string{"golang.org/x/sys"},
			},
			{Path: "host/engine/starlark", Imports: []string{"./fleet/host/engine/...", "./internal/call", "go.starlark.net"}, Brings: []string{"golang.org/x/sys"}},
			{Path: "host/engine/js", Imports: []string{"./fleet/host/engine/...", "./internal/call", "github.com/dop251/goja"}, Brings: []string{"..."}},
			{Path: "host/engine/isolate", Imports: []string{"./fleet/host/engine/...", "./procpool/...", "./worker", "golang.org/x/sys"}, Brings: []string{"..."}},
			{Path: "host/engine/python", Imports: []string{"./fleet/host/engine/...", "./procpool/..."}, Brings: []string{"golang.org/x/sys"}},
			{
				Path: "presence",
				Imports: []string{
					nats, ".", "./fsm", "./worker", "./internal/call", "./internal/cgroup",
					"./internal/setting", "./internal/text", "./fleet/broker/identity",
					"./fleet/broker/natserr", "./fleet/internal/endclass", "./fleet/internal/eventlog", "./fleet/internal/redact",
					"./fleet/internal/stream", "./fleet/internal/unittree", "golang.org/x/sync", "golang.org/x/time",
				},
				Brings: []string{"..."},
				Never:  []string{server},
			},
			{
				Path: "operator/operatorv1/...",
				Imports: []string{
					connect, proto, api, "./fleet/operator/operatorv1",
				},
				Brings: []string{"..."},
				Never:  []string{nats, server},
			},
			{
				Path: "operator/client",
				Imports: []string{
					connect, rpc, "./fleet/operator/operatorv1/operatorv1connect",
				},
				Brings: []string{"..."},
				Never:  []string{nats, server},
			},
			{
				Path: "operator/internal/dashboard",
				Imports: []string{
					connect, proto, "github.com/klauspost/compress/gzhttp", "./internal/text",
					"./fleet/internal/diagnosis", "./fleet/internal/diagram", "./fleet/operator/client",
					"./fleet/operator/internal/httpcode", "./fleet/operator/operatorv1/...",
				},
				Brings: []string{"..."},
				Never:  []string{nats, server},
			},
			{Path: "operator/internal/httpcode", Imports: []string{connect}, Brings: []string{"..."}, Never: []string{nats, server}},
			{Path: "operator/internal/...", Imports: []string{"./worker", "./fleet/internal/stream", "github.com/google/btree"}, Never: []string{nats, server}},
			{
				Path: "operator/metrics",
				Imports: []string{
					"./fleet/operator", "./fleet/internal/diagnosis", "./fleet/operator/operatorv1",
					"github.com/prometheus/client_golang",
				},
				Brings: []string{"..."},
			},
			{Path: "operator", Imports: []string{
				".", "./fsm", "./trace", "./worker", "./internal/call", "./internal/suggest", "./internal/text", "./internal/token", "./fleet/workflow",
				"./fleet/host", "./fleet/host/engine", "./fleet/broker/identity", "./fleet/broker/natserr", "./fleet/presence",
				"./fleet/internal/canary", "./fleet/internal/diagnosis", "./fleet/internal/eventlog", "./fleet/internal/stream",
				"./fleet/operator/...", nats, connect, proto, api, rpc,
				"connectrpc.com/vanguard", "connectrpc.com/grpchealth", "connectrpc.com/grpcreflect", "golang.org/x/time",
				"github.com/coreos/go-oidc/v3", "golang.org/x/oauth2", "golang.org/x/sync", "github.com/rogpeppe/go-internal/diff",
			}, Brings: []string{"..."}},
			{Path: "cmd/engine", Imports: []string{"./fleet/host/engine/..."}, Brings: []string{"..."}, Never: []string{nats, server}},
			{
				Path: "cmd/lifecyclectl/dev",
				Imports: []string{
					"./fleet/host/engine/...", "./fleet/internal/effects", "./fleet/operator/operatorv1", proto,
				},
				Brings: []string{"..."},
				Never:  []string{nats, server},
			},
			{Path: "cmd/lifecyclectl/prove/load"},
			{Path: "cmd/lifecyclectl/prove", Imports: []string{
				"./fleet/cmd/lifecyclectl/cli", "./fleet/cmd/lifecyclectl/output", "./fleet/cmd/lifecyclectl/prove/load",
				"./internal/cmdline", cli, "golang.org/x/sync", "k8s.io/api", "k8s.io/apimachinery",
			}, Brings: []string{"..."}, Never: []string{nats, server, "k8s.io/client-go"}},
			{Path: "cmd/lifecyclectl/output", Imports: []string{
				"./fleet/internal/diagnosis", cli, proto, yaml, "github.com/charmbracelet/x/ansi", "golang.org/x/term",
			}, Brings: []string{"..."}, Never: []string{nats, server}},
			{Path: "cmd/lifecyclectl/cli", Imports: []string{
				"./internal/suggest", "./fleet/cmd/lifecyclectl/output", "./fleet/operator/client", "./fleet/operator/operatorv1",
				cli, "github.com/spf13/pflag", connect, proto, yaml, "github.com/muesli/cancelreader", "golang.org/x/sys",
				"github.com/coreos/go-oidc/v3", "golang.org/x/oauth2",
			}, Brings: []string{"..."}, Never: []string{nats, server}},
			{Path: "cmd/lifecyclectl/workflows", Imports: []string{
				nats, "./fsm", "./fleet/cmd/lifecyclectl/cli", "./fleet/cmd/lifecyclectl/output", "./fleet/internal/diagnosis",
				"./fleet/operator/operatorv1", "./fleet/workflow", cli, "github.com/spf13/pflag", connect, proto, yaml,
			}, Brings: []string{"..."}, Never: []string{server}},
			{Path: "cmd/lifecyclectl", Imports: []string{"./internal/run", "./vet/command", "./fleet/cmd/lifecyclectl/...", cli, proto}, Brings: []string{"..."}, Never: []string{"k8s.io/client-go", server}},
			// The other nouns.
			{Path: "cmd/lifecyclectl/...", Imports: []string{
				".", "./fsm", "./worker", "./internal/suggest", "./fleet/cmd/lifecyclectl/...", "./fleet/host/codesign", "./fleet/host/engine",
				"./fleet/operator/client", "./fleet/operator/operatorv1", "./fleet/internal/diagnosis",
				"./fleet/internal/diagram", "./fleet/internal/endclass", "./fleet/internal/redact",
				cli, connect, proto, yaml, "github.com/coreos/go-oidc/v3", "golang.org/x/oauth2",
			}, Brings: []string{"..."}, Never: []string{nats, server}},
		},
	})
}
