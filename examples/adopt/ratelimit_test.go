//go:build unix

package adopt

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	entry "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

const limits = `domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1000000}
`

// ratelimit answers every call and every request of the window, and says NOT_SERVING
// there. It exits with 0.
func TestRatelimitStops(t *testing.T) {
	if testing.Short() {
		t.Skip("it links and runs the program: make test-long runs it")
	}
	folder := t.TempDir()
	if err := os.MkdirAll(filepath.Join(folder, "shop", "config"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "shop", "config", "limits.yaml"), []byte(limits), 0o600); err != nil {
		t.Fatal(err)
	}
	health, port, grpcPort := freeAddr(t), freePort(t), freePort(t)
	p := start(t, "./real/ratelimit", "http://"+health+"/readyz", []string{
		"HEALTH_ADDR=" + health, "HOST=127.0.0.1", "PORT=" + port, "GRPC_HOST=127.0.0.1", "GRPC_PORT=" + grpcPort, "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + freePort(t),
		"DISABLE_STATS=true", "RUNTIME_ROOT=" + folder, "RUNTIME_SUBDIRECTORY=shop", "RUNTIME_WATCH_ROOT=false",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + miniredis.RunT(t).Addr(),
	})
	conn, err := grpc.NewClient(net.JoinHostPort("127.0.0.1", grpcPort), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	call := func(when string) {
		t.Helper()
		res, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &pb.RateLimitRequest{
			Domain: "shop", Descriptors: []*entry.RateLimitDescriptor{{Entries: []*entry.RateLimitDescriptor_Entry{{Key: "user", Value: "ada"}}}},
		})
		if err != nil || res.GetOverallCode() != pb.RateLimitResponse_OK || len(res.GetStatuses()) != 1 {
			t.Errorf("%s: %v, %v", when, res, err)
		}
		status, _, err := p.ask(t, http.MethodPost, "http://127.0.0.1:"+port+"/json", `{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ada"}]}]}`)
		if err != nil || status != http.StatusOK {
			t.Errorf("%s: status %d, %v", when, status, err)
		}
	}
	call("before the stop")
	p.stop(t)
	for {
		res, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "ratelimit"})
		if err != nil {
			t.Fatal(err)
		}
		if res.GetStatus() == healthpb.HealthCheckResponse_NOT_SERVING {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	for end := time.Now().Add(during); time.Now().Before(end); {
		call("in the window")
	}
	_ = conn.Close()
	p.exit(t)
}
