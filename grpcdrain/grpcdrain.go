// Package grpcdrain tells the handlers of a gRPC server that their App drains.
//
// An App knows a gRPC server by its methods alone and sees none of its calls. With the
// interceptors of this package [lifecycle.Draining] works in handlers. An endless stream
// that listens to it ends in time; one that does not holds the stop until its connection
// is cut, and Run returns an error.
//
//	srv := grpc.NewServer(grpcdrain.Options(app, "grpc")...)
//	app.GRPC("grpc", srv, ln, health)
//
// The channel closes after the window, a moment after the server has told its clients by
// GOAWAY to open no further calls here: a client that calls again at once then finds
// another process. A consumer that is to stop at T0 watches [lifecycle.App.Draining].
package grpcdrain

import (
	"context"

	"github.com/pleme-io/lifecycle-go"
	"google.golang.org/grpc"
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
// of a stream.
func Stream(app *lifecycle.App, server string) grpc.StreamServerInterceptor {
	return func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		return handle(srv, &stream{s, app.CallContext(s.Context(), server)})
	}
}

// stream is a grpc.ServerStream with a context of its own.
type stream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns the stream's context.
func (s *stream) Context() context.Context { return s.ctx }
