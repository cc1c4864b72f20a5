package main

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync/atomic"

	"github.com/pleme-io/lifecycle-go"
	"google.golang.org/grpc/examples/features/proto/echo"
)

// server counts the unary calls.
type server struct {
	echo.UnimplementedEchoServer

	unary atomic.Int64
}

func (s *server) UnaryEcho(_ context.Context, req *echo.EchoRequest) (*echo.EchoResponse, error) {
	s.unary.Add(1)
	return &echo.EchoResponse{Message: req.GetMessage()}, nil
}

// ClientStreamingEcho answers with the count when the client has sent all, or when the
// App drains: the stream then says goodbye and ends without an error.
func (s *server) ClientStreamingEcho(stream echo.Echo_ClientStreamingEchoServer) error {
	ended := make(chan error, 1)
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				ended <- err
				return
			}
		}
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, io.EOF) {
			return err
		}
	case <-lifecycle.Draining(stream.Context()):
	}
	return stream.SendAndClose(&echo.EchoResponse{Message: strconv.FormatInt(s.unary.Load(), 10)})
}
