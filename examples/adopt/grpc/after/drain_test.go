package main

import (
	"context"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/examples/features/proto/echo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A port that another program has is an error that says which server wanted it.
func TestPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	err = serve(lifecycletest.New(t, lifecycle.Config{}).App, taken.Addr().String())
	if err == nil || !strings.Contains(err.Error(), "listen for gRPC: ") || !strings.Contains(err.Error(), taken.Addr().String()) {
		t.Errorf("serve on a port in use: %v", err)
	}
}

// A stop under load loses no call.
func TestDrainUnderLoad(t *testing.T) {
	app := lifecycletest.New(t, lifecycle.Config{DrainInterval: time.Second})
	if err := serve(app.App, "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	app.Start()
	conn, err := grpc.NewClient(app.Addr("grpc").String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := echo.NewEchoClient(conn)
	calls := app.LoadFunc(func(ctx context.Context, _ int) error {
		_, err := client.UnaryEcho(ctx, &echo.EchoRequest{Message: "hello"})
		return err
	})
	stream, err := client.ClientStreamingEcho(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&echo.EchoRequest{Message: "hello"}); err != nil {
		t.Fatal(err)
	}

	app.Signal(syscall.SIGTERM)
	if err := stream.RecvMsg(new(echo.EchoResponse)); err != nil { // the server says goodbye
		t.Errorf("the stream was cut: %v", err)
	}
	calls.WantNoneLost()
	app.WantClean()
}
