//go:build linux

package upgrade

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/coder/websocket"
	lifecycle "github.com/pleme-io/lifecycle-go"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// moment is how long a handler takes, as one does that asks a database.
const moment = 2 * time.Millisecond

// server is what the peers end in the way of its kind: by Shutdown or by GracefulStop.
type server struct {
	Serve func(net.Listener) error
	stop  func() error
}

func newServer() server {
	if os.Getenv(grpcVar) != "" {
		srv := grpcServer()
		return server{srv.Serve, func() error { srv.GracefulStop(); return nil }}
	}
	srv := httpServer("")
	return server{srv.Serve, func() error {
		late, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		return srv.Shutdown(late)
	}}
}

// httpServer answers HTTP/1.1, HTTP/2 without TLS, and websockets.
func httpServer(addr string) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	mux := http.NewServeMux()
	mux.HandleFunc("/", answer)
	mux.HandleFunc("/socket", echo)
	return &http.Server{Addr: addr, Handler: mux, Protocols: protocols}
}

// answer says which process it is.
func answer(w http.ResponseWriter, req *http.Request) {
	_, _ = io.Copy(io.Discard, req.Body)
	time.Sleep(moment)
	fmt.Fprint(w, os.Getpid())
}

// echo answers each message of a websocket with the process. When it is to end, which only one peer
// says, it goes behind an answer, or when no message has come for a while.
func echo(w http.ResponseWriter, req *http.Request) {
	draining := lifecycle.Draining(req.Context())
	conn, err := websocket.Accept(w, req, nil)
	if err != nil {
		return
	}
	defer func() { _ = conn.CloseNow() }() // after a Close there is nothing left to do
	ctx, cancel := context.WithCancel(context.WithoutCancel(req.Context()))
	defer cancel()
	go func() {
		select {
		case <-draining:
			time.Sleep(100 * time.Millisecond)
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		if _, _, err := conn.Read(ctx); err != nil {
			return
		}
		time.Sleep(moment)
		if err := conn.Write(context.WithoutCancel(ctx), websocket.MessageText, fmt.Append(nil, os.Getpid())); err != nil {
			return
		}
		select {
		case <-draining:
			_ = conn.Close(websocket.StatusGoingAway, "")
			return
		default:
		}
	}
}

// grpcMethod is the one method of grpcServer. It has no service of its own: that needs no generated code.
const grpcMethod = "/bench.Upgrade/PID"

func grpcServer() *grpc.Server {
	return grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if err := stream.RecvMsg(new(emptypb.Empty)); err != nil {
			return err
		}
		time.Sleep(moment)
		return stream.SendMsg(wrapperspb.Int64(int64(os.Getpid())))
	}))
}
