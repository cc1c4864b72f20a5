package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
	lifecycle "github.com/pleme-io/lifecycle-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// work is what each request takes.
const work = 5 * time.Millisecond

var answer = strings.Repeat("ok ", 66) + "ok" // 200 bytes

// routes is the handler of both kinds of server. ready answers /readyz, for proxies that
// can only ask the port that they send requests to.
func routes(ready http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/readyz", ready)
	mux.HandleFunc("/socket", socket)
	mux.HandleFunc("/events", events)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(work)
		_, _ = io.WriteString(w, answer)
	})
	return mux
}

// socket echoes messages. When the process is stopping it closes the websocket with 1001,
// as soon as no message is in progress. Draining never closes without an App.
func socket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // the page has another origin
	if err != nil {
		return
	}
	defer func() { _ = c.CloseNow() }()
	messages := make(chan []byte)
	go func() {
		defer close(messages)
		for {
			_, text, err := c.Read(context.Background())
			if err != nil {
				return
			}
			messages <- text
		}
	}()
	for {
		select {
		case text, ok := <-messages:
			if !ok {
				return
			}
			time.Sleep(work)
			if err := c.Write(r.Context(), websocket.MessageText, text); err != nil {
				return
			}
		case <-lifecycle.Draining(r.Context()):
			go func() {
				for range messages { // until Read has returned
				}
			}()
			_ = c.Close(websocket.StatusGoingAway, "stopping") // the client may be gone
			return
		}
	}
}

// events sends an event for each tick, a tenth of a second, from the one behind
// Last-Event-ID on. When the process is stopping it returns, and the browser comes back.
func events(w http.ResponseWriter, r *http.Request) {
	const tick = 100 // milliseconds
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Content-Type", "text/event-stream")
	next := time.Now().UnixMilli() / tick
	if last, err := strconv.ParseInt(r.Header.Get("Last-Event-ID"), 10, 64); err == nil {
		next = last + 1
	}
	_, _ = io.WriteString(w, "retry: 200\n\n")
	for ; ; next++ {
		select {
		case <-time.After(time.Until(time.UnixMilli(next * tick))):
		case <-lifecycle.Draining(r.Context()):
			return
		case <-r.Context().Done():
			return
		}
		if _, err := fmt.Fprintf(w, "id: %d\ndata: %d\n\n", next, next); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush() // the next write fails too
	}
}

// newGRPC returns a server with the method /bench.Echo/Call, which takes and returns a
// BytesValue: a client without generated code sends an empty message.
func newGRPC(config *tls.Config) *grpc.Server {
	var opts []grpc.ServerOption
	if config != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(config)))
	}
	srv := grpc.NewServer(opts...)
	srv.RegisterService(&grpc.ServiceDesc{
		ServiceName: "bench.Echo",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Call",
			Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				if err := decode(new(wrapperspb.BytesValue)); err != nil {
					return nil, err
				}
				time.Sleep(work)
				return wrapperspb.Bytes([]byte(answer)), nil
			},
		}},
	}, nil)
	return srv
}
