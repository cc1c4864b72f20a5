package serving

import (
	"net"
	"testing"

	lifecycle "github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/grpcdrain"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// plainGRPC serves the health service on ln with grpc-go alone.
func plainGRPC(tb testing.TB, ln net.Listener) (stop func()) {
	srv := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(srv, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	return func() {
		srv.GracefulStop()
		if err := <-served; err != nil {
			tb.Error(err)
		}
	}
}

// trackedGRPC serves the same on ln with an App, whose interceptors let handlers see
// the drain.
func trackedGRPC(tb testing.TB, ln net.Listener) (stop func()) {
	return runApp(tb, "", func(a *lifecycle.App) {
		srv := grpc.NewServer(grpcdrain.Options(a, "grpc")...)
		checks := health.NewServer()
		grpc_health_v1.RegisterHealthServer(srv, checks)
		a.GRPC("grpc", srv, ln, checks)
	})
}

// BenchmarkGRPC measures a unary call of 20 callers that share a connection. The
// client's share is in the numbers of both peers.
func BenchmarkGRPC(b *testing.B) {
	const callers = 20
	for _, s := range []struct {
		peer  string
		serve func(testing.TB, net.Listener) (stop func())
	}{{"grpc-go", plainGRPC}, {"lifecycle-go", trackedGRPC}} {
		b.Run("peer="+s.peer, func(b *testing.B) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer s.serve(b, ln)()
			conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			client := grpc_health_v1.NewHealthClient(conn)
			call := func() error {
				_, err := client.Check(b.Context(), new(grpc_health_v1.HealthCheckRequest))
				return err
			}
			if err := call(); err != nil {
				b.Fatal(err)
			}
			measure(b, callers, call)
		})
	}
}
