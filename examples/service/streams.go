package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/coder/websocket"
	"github.com/pleme-io/lifecycle-go"
)

const (
	writeTimeout = 5 * time.Second  // for one message to one client
	stillHere    = 20 * time.Second // between heartbeats on a quiet stream
	goodbyeText  = "this instance stops: connect again and find another"
)

// events sends the hub's texts as server-sent events. When the App drains it
// says goodbye: the browser's EventSource connects again, and the cluster sends
// it elsewhere.
func (s *service) events(w http.ResponseWriter, r *http.Request) {
	draining := lifecycle.Draining(r.Context())
	me, leave := s.hub.Join()
	defer leave()

	control := http.NewResponseController(w)
	send := func(format string, args ...any) error {
		if err := control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, format, args...); err != nil {
			return err
		}
		return control.Flush()
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	if send("retry: 1000\nevent: hello\ndata: welcome\n\n") != nil {
		return
	}
	alive := time.NewTicker(stillHere)
	defer alive.Stop()
	for {
		var err error
		select {
		case <-draining:
			_ = send("event: goodbye\ndata: %s\n\n", goodbyeText) // the last word either way
			return
		case <-r.Context().Done():
			return
		case text := <-me.news:
			err = send("event: work\ndata: %s\n\n", text)
		case <-alive.C:
			err = send(": still here\n\n")
		}
		if err != nil {
			return
		}
	}
}

// socket sends the same over a websocket, and ends it with a close frame of
// status 1001, "going away".
func (s *service) socket(w http.ResponseWriter, r *http.Request) {
	draining := lifecycle.Draining(r.Context())
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return // Accept has answered
	}
	defer func() { _ = conn.CloseNow() }() // after a Close there is nothing left to do
	me, leave := s.hub.Join()
	defer leave()

	gone := conn.CloseRead(r.Context()) // nothing is expected from the client but its goodbye
	send := func(text string) error {
		ctx, cancel := context.WithTimeout(gone, writeTimeout)
		defer cancel()
		return conn.Write(ctx, websocket.MessageText, []byte(text))
	}
	if send("welcome") != nil {
		return
	}
	alive := time.NewTicker(stillHere)
	defer alive.Stop()
	for {
		var err error
		select {
		case <-draining:
			_ = conn.Close(websocket.StatusGoingAway, goodbyeText) // waits for the client's own, a while
			return
		case <-gone.Done():
			return
		case text := <-me.news:
			err = send(text)
		case <-alive.C:
			ctx, cancel := context.WithTimeout(gone, writeTimeout)
			err = conn.Ping(ctx)
			cancel()
		}
		if err != nil {
			return
		}
	}
}
