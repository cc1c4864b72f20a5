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
			all("operator/...", "sigs.k8s.io/controller-runtime", "k8s.io/api"),
			all("grpc/...", "./grpcdrain", "google.golang.org/grpc", "google.golang.org/grpc/examples"),
			all("httpnats/...", "github.com/jackc/pgx/v5", "github.com/nats-io/nats.go"),
			all("real/podinfo/...", "github.com/stefanprodan/podinfo", "github.com/spf13/pflag", "github.com/spf13/viper", "go.uber.org/zap"),
			all("real/ratelimit/...", "github.com/envoyproxy/ratelimit", "github.com/envoyproxy/go-control-plane/envoy",
				"github.com/coocood/freecache", "github.com/libp2p/go-reuseport", "github.com/sirupsen/logrus", "google.golang.org/grpc"),
			all("real/trustmanager/...", "github.com/cert-manager/trust-manager", "github.com/spf13/cobra", "k8s.io/apimachinery",
				"k8s.io/client-go", "k8s.io/klog/v2", "sigs.k8s.io/controller-runtime"),
			all("."),
		},
		Requires: []conventions.Require{
			{Module: "github.com/pleme-io/lifecycle-go"},
			{Module: "github.com/pleme-io/lifecycle-go/grpcdrain"},
			{Module: "github.com/jackc/pgx/v5"},
			{Module: "github.com/nats-io/nats.go"},
			{Module: "github.com/nats-io/nats-server/v2", TestOnly: true},
			{Module: "github.com/oklog/run"},
			{Module: "github.com/thejerf/suture/v4"},
			{Module: "go.uber.org/fx"},
			{Module: "golang.org/x/sync"},
			{Module: "google.golang.org/grpc"},
			{Module: "google.golang.org/grpc/examples"},
			{Module: "k8s.io/api"},
			{Module: "sigs.k8s.io/controller-runtime"},
			{Module: "github.com/alicebob/miniredis/v2", TestOnly: true},
			{Module: "github.com/cert-manager/trust-manager"},
			{Module: "github.com/coocood/freecache"},
			{Module: "github.com/envoyproxy/go-control-plane/envoy"},
			{Module: "github.com/envoyproxy/ratelimit"},
			{Module: "github.com/libp2p/go-reuseport"},
			{Module: "github.com/sirupsen/logrus"},
			{Module: "github.com/spf13/cobra"},
			{Module: "github.com/spf13/pflag"},
			{Module: "github.com/spf13/viper"},
			{Module: "github.com/stefanprodan/podinfo"},
			{Module: "go.uber.org/zap"},
			{Module: "k8s.io/apimachinery"},
			{Module: "k8s.io/client-go"},
			{Module: "k8s.io/klog/v2"},
			{Module: "go.uber.org/goleak", TestOnly: true},
		},
	})
}
