package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/pleme-io/lifecycle-go"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// selfSigned makes a certificate for the TLS server. Its clients do not check it.
func selfSigned() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS13}, nil
}

// newTLSServer serves the same as the other server, by TLS.
func newTLSServer(addr string) (*http.Server, error) {
	config, err := selfSigned()
	if err != nil {
		return nil, err
	}
	srv := newServer(addr, routes())
	srv.Protocols = nil // the default: HTTP/1 and HTTP/2
	srv.TLSConfig = config
	return srv, nil
}

// events is a stream that ends with the event "end" after the time that the client
// asks for, or with the event "goodbye" once the App drains.
func events(w http.ResponseWriter, r *http.Request) {
	length, err := time.ParseDuration(r.FormValue("for"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	draining := lifecycle.Draining(r.Context())
	w.Header().Set("Content-Type", "text/event-stream")
	say := func(event string) error {
		fmt.Fprintf(w, "event: %s\ndata: .\n\n", event)
		return http.NewResponseController(w).Flush()
	}
	if say("hello") != nil {
		return
	}
	over := time.NewTimer(length)
	defer over.Stop()
	select {
	case <-over.C:
		_ = say("end")
	case <-draining:
		_ = say("goodbye")
	case <-r.Context().Done():
	}
}

// goodbye is the message that asks a client of a chat to finish and to go. The
// server answers everything that the client sends before it does.
const goodbye = "goodbye"

// chat is a websocket that answers each message with the same.
func chat(w http.ResponseWriter, r *http.Request) {
	draining := lifecycle.Draining(r.Context())
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return // Accept has answered
	}
	ctx, cancel := context.WithCancel(r.Context())
	var teller sync.WaitGroup
	defer teller.Wait()
	defer cancel()
	defer func() { _ = conn.CloseNow() }() // the client has closed it, or it is cut
	teller.Go(func() {
		select {
		case <-draining:
			_ = conn.Write(ctx, websocket.MessageText, []byte(goodbye))
		case <-ctx.Done():
		}
	})
	for {
		kind, text, err := conn.Read(ctx)
		if err != nil || conn.Write(ctx, kind, text) != nil {
			return
		}
	}
}

// chatService is the same as a stream of gRPC. It uses the messages of gRPC's health
// service: SERVING is an answer, SERVICE_UNKNOWN the goodbye.
var chatService = grpc.ServiceDesc{
	ServiceName: "e2e.Chat", HandlerType: (*any)(nil),
	Streams: []grpc.StreamDesc{{StreamName: "Chat", ServerStreams: true, ClientStreams: true, Handler: chatByCall}},
}

func chatByCall(_ any, stream grpc.ServerStream) error {
	draining := lifecycle.Draining(stream.Context())
	ctx, cancel := context.WithCancel(stream.Context())
	var sending sync.Mutex
	send := func(status healthpb.HealthCheckResponse_ServingStatus) error {
		sending.Lock()
		defer sending.Unlock()
		return stream.SendMsg(&healthpb.HealthCheckResponse{Status: status})
	}
	var teller sync.WaitGroup
	defer teller.Wait()
	defer cancel()
	teller.Go(func() {
		select {
		case <-draining:
			_ = send(healthpb.HealthCheckResponse_SERVICE_UNKNOWN)
		case <-ctx.Done():
		}
	})
	for {
		if err := stream.RecvMsg(new(healthpb.HealthCheckRequest)); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := send(healthpb.HealthCheckResponse_SERVING); err != nil {
			return err
		}
	}
}

// plainProtocols serves the other protocols without the library, and returns what
// stops them as most programs do.
func plainProtocols(secure, calls string) (stop func(context.Context), err error) {
	var servers []func(context.Context)
	if secure != "" {
		srv, err := newTLSServer(secure)
		if err != nil {
			return nil, err
		}
		ln, err := net.Listen("tcp", secure)
		if err != nil {
			return nil, err
		}
		plainly.Go(func() { _ = srv.ServeTLS(ln, "", "") })
		servers = append(servers, func(ctx context.Context) { _ = srv.Shutdown(ctx) })
	}
	if calls != "" {
		ln, err := net.Listen("tcp", calls)
		if err != nil {
			return nil, err
		}
		srv, _ := newGRPC()
		plainly.Go(func() { _ = srv.Serve(ln) })
		servers = append(servers, func(ctx context.Context) {
			late := context.AfterFunc(ctx, srv.Stop)
			srv.GracefulStop()
			late()
		})
	}
	return func(ctx context.Context) {
		var all sync.WaitGroup
		for _, s := range servers {
			all.Go(func() { s(ctx) })
		}
		all.Wait()
	}, nil
}

// plainly has the goroutines of plain servers, which end with the process.
var plainly sync.WaitGroup
