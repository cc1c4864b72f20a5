// Command after is a gRPC server with a stream, as a unit of an App. It serves the service of
// grpc-go's own example (examples/features/gracefulstop/server), whose main it replaces.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/grpcdrain"
	"google.golang.org/grpc"
	"google.golang.org/grpc/examples/features/proto/echo"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func main() {
	port, planes := flag.Int("port", 50052, "serve gRPC on this port"), flag.String("health", ":8081", "address of the health server")
	flag.Parse()
	lifecycle.Main(func() error { return run(*port, *planes) })
}

func run(port int, planes string) error {
	app, err := lifecycle.New(lifecycle.Config{HealthAddr: planes, TerminationGrace: 30 * time.Second})
	if err != nil {
		return err
	}
	if err := serve(app, fmt.Sprintf(":%v", port)); err != nil {
		return err
	}
	return app.Run(context.Background())
}

// serve adds the gRPC server and grpc-go's health service to the App.
func serve(app *lifecycle.App, addr string) error {
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen for gRPC: %w", err)
	}
	srv, states := grpc.NewServer(grpcdrain.Options(app, "grpc")...), health.NewServer()
	echo.RegisterEchoServer(srv, new(server))
	healthpb.RegisterHealthServer(srv, states)
	app.GRPC("grpc", srv, lis, states)
	return nil
}
