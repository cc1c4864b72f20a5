// Package grpcdrain lets the handlers of a gRPC server see that their App drains.
//
// An App sees a gRPC server only through its Go methods, such as GracefulStop, and sees
// none of its calls. With the interceptors of this package [lifecycle.Draining] works in
// handlers. An endless stream that listens to it ends in time; one that does not holds
// the stop until its connection is cut, and Run returns an error. The Watch of grpc's own
// health service, which clients with health checks have open all the time, ends too.
//
//	srv := grpc.NewServer(grpcdrain.Options(app, "grpc")...)
//	app.GRPC("grpc", srv, ln, health)
//
// In a handler the channel of Draining closes after the window, a moment after the server
// has asked its clients by GOAWAY to open no further calls here: a client that calls again
// at once then finds another process. To stop work at the beginning of the drain (T0),
// watch [lifecycle.App.Draining].
package grpcdrain

import (
	"context"

	"github.com/pleme-io/lifecycle-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Options returns the two interceptors of this package as options for grpc.NewServer.
// server is the name given to [lifecycle.App.GRPC], which may be called later. They run
// beside other interceptors, in the order of the options.
func Options(app *lifecycle.App, server string) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(Unary(app, server)),
		grpc.ChainStreamInterceptor(Stream(app, server)),
	}
}

// Unary returns an interceptor after which [lifecycle.Draining] works with the context
// of a unary call, such as a long poll.
func Unary(app *lifecycle.App, server string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		return handle(app.CallContext(ctx, server), req)
	}
}

// Stream returns an interceptor after which [lifecycle.Draining] works with the context
// of a stream. The Watch of grpc's own health service has no end and does not listen: the
// interceptor ends it, with the code Unavailable.
func Stream(app *lifecycle.App, server string) grpc.StreamServerInterceptor {
	return func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		ctx := app.CallContext(s.Context(), server)
		if info.FullMethod == healthWatch {
			return endWatch(ctx, func(ctx context.Context) error { return handle(srv, &stream{s, ctx}) })
		}
		return handle(srv, &stream{s, ctx})
	}
}

const healthWatch = "/grpc.health.v1.Health/Watch"

// endWatch cancels the context of watch when the App drains.
func endWatch(ctx context.Context, watch func(context.Context) error) error {
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-lifecycle.Draining(ctx):
			cancel()
		case <-ended:
		}
	}()
	err := watch(own)
	if own.Err() != nil && ctx.Err() == nil {
		return status.Error(codes.Unavailable, "the server is draining")
	}
	return err
}

type stream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns the stream's context.
func (s *stream) Context() context.Context { return s.ctx }
