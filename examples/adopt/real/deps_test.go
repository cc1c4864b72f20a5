package real

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
			all("podinfo/...", "github.com/stefanprodan/podinfo", "github.com/spf13/pflag", "github.com/spf13/viper", "go.uber.org/zap"),
			all("ratelimit/...", "github.com/envoyproxy/ratelimit", "github.com/envoyproxy/go-control-plane/envoy", "github.com/coocood/freecache",
				"github.com/libp2p/go-reuseport", "github.com/sirupsen/logrus", "google.golang.org/grpc"),
			all("trustmanager/...", "github.com/cert-manager/trust-manager", "github.com/spf13/cobra", "k8s.io/apimachinery", "k8s.io/client-go",
				"k8s.io/klog/v2", "sigs.k8s.io/controller-runtime"),
			all("."),
		},
		Requires: []conventions.Require{
			{Module: "github.com/pleme-io/lifecycle-go"},
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
			{Module: "go.uber.org/goleak", TestOnly: true},
			{Module: "go.uber.org/zap"},
			{Module: "google.golang.org/grpc"},
			{Module: "k8s.io/apimachinery"},
			{Module: "k8s.io/client-go"},
			{Module: "k8s.io/klog/v2"},
			{Module: "sigs.k8s.io/controller-runtime"},
		},
	})
}
