package grpcdrain_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/grpcdrain"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
)

// A handler whose stream has no end says goodbye when the App drains.
func ExampleOptions() {
	app, err := lifecycle.New(lifecycle.Config{
		HealthAddr: lifecycle.HealthOff, DrainInterval: 50 * time.Millisecond, AcceptQuiet: 10 * time.Millisecond,
	}, lifecycle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		fmt.Println(err)
		return
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	srv := grpc.NewServer(grpcdrain.Options(app, "grpc")...)
	srv.RegisterService(ticks(func(stream grpc.ServerStream) error {
		app.Stop(nil) // or SIGTERM
		select {
		case <-lifecycle.Draining(stream.Context()):
			return stream.SendMsg(&message{Service: "goodbye"})
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}, nil), struct{}{})
	app.GRPC("grpc", srv, ln, health.NewServer()).
		Go("client", func(ctx context.Context) error {
			<-app.Reached(lifecycle.PhaseRunning)
			conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				return err
			}
			defer conn.Close()
			stream, err := watch(context.WithoutCancel(ctx), conn) // the goodbye ends it
			for m := new(message); err == nil; {
				if err = stream.RecvMsg(m); err == nil {
					fmt.Println(m.Service)
				}
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		})
	fmt.Println(app.Run(context.Background()))
	// Output:
	// goodbye
	// <nil>
}
